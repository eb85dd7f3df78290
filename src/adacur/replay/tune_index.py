"""`adacur.tune`: the first stage and the settings of searches for a k and a budget, stored, and said in words."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from adacur.budget import Budget, check_k
from adacur.errors import InputError
from adacur.replay.chosen_settings import choose_settings, replays
from adacur.replay.judged_tuning import JudgedSearches, Queries, judged_queries, judged_relevance
from adacur.replay.measures import FEWEST_QUERIES, Qrels
from adacur.replay.searches import check_anchors, check_exact, exact_anchors
from adacur.search import AnchorIndex
from adacur.search.relevance import RELEVANCE, Relevance
from adacur.search.relevance import as_stored as relevance_text
from adacur.search.tuned import TUNED, Judged, Mean, Tuning, read_tunings
from adacur.search.tuned import as_stored as tunings_text
from adacur.store import locked
from adacur.store.writing import full_disk_reported, write_atomically

_QUERIES = 100


def tune(
    index: AnchorIndex,
    *,
    k: int = 10,
    budget: int = 100,
    queries: Queries | None = None,
    qrels: Qrels | str | Path | None = None,
    seed: int = 0,
    quick: bool = False,
) -> Tuning:
    """Choose the first stage and the settings of searches for k items within a budget, and predict their recall.

    Anchor queries are searched for as if they were new; no scorer is called. Searches for about this k within about
    this budget (up to twice or half) then start from this first stage and use these settings, unless they name
    others. They are stored in the index folder, or in memory where it cannot be written to.

    Every first stage of the index is tried, and all of them together. Then, starting from the defaults, one setting is
    changed at a time. A change must gain more than its standard error. The recall predicted for "gaussian" is measured
    on queries that the choice has not seen: each half of them is searched as the other half would have chosen.
    Re-ranking starts from the first stage that is best for it.

    With judgements, `budget` is the most to spend, and the judged quality (nDCG of the k hits) chooses the first stage,
    the smallest budget that is as good, and what orders the hits (`Judged`). Searches for about this k that name none
    of these use them. The relevance of hits then is the chance to be judged relevant, fitted to the hits of these
    queries.

    Also learned is when a search has done enough (`effort`), unless `quick`.

    - `k`, `budget`: what to tune for. A budget of every item or more is exact: there is nothing to choose or store;
    - `queries`: how many anchor queries to replay at most, by a draw with this `seed` (default: 100; 300 if judged).
      With `qrels` also judged queries, or a file of them: of those that are no anchor queries the scorer is called;
      `judged_queries(…).most_calls(…)` says how often at most. Never report on queries that chose;
    - `qrels`: grades by query id and item id, or a file of them. Without `queries`, anchor queries are judged;
    - `quick`: try only what matters most, once.
    """
    check_anchors(index, "Tuning")
    check_k(k, Budget(budget).calls)
    # A damaged file is reported before the work and not after it.
    _ = index.tunings
    most = queries if isinstance(queries, int) else _QUERIES
    if qrels is None and not isinstance(queries, int | None):
        raise InputError(
            "queries must be the number of anchor queries to replay, unless they are judged; give qrels=…."
        )
    if budget < len(index):
        if exact_anchors(index).sum() < FEWEST_QUERIES <= len(index.anchor_queries):
            check_exact(index)
        check_anchors(index, "Tuning", fewest=FEWEST_QUERIES)
        if most < FEWEST_QUERIES:
            raise InputError(f"queries must be at least {FEWEST_QUERIES}; got {most}.")
    relevance = None
    searches = replays(index, k=k, queries=most, seed=seed)
    if qrels is None:
        tuning = choose_settings(searches, budget=budget, seed=seed, quick=quick)
    else:
        queries_of = judged_queries(index, qrels, queries, seed=seed)
        judged = JudgedSearches(index, queries_of, k=k, largest=min(budget, len(index)), seed=seed)
        chosen = judged.choose()
        tuning = choose_settings(searches, budget=chosen.budget, first=chosen.first, seed=seed, quick=quick)
        tuning = replace(tuning, judged=judged.measured(chosen, tuning.settings))
        answers = judged.hits(chosen, tuning.settings)
        relevance = judged_relevance(answers, queries_of.qrels, anchors=index.anchors)
    store_relevance(index, relevance)
    # Last: by it a build that was killed knows that it was tuned.
    if tuning.judged is not None or not tuning.is_exact:
        store(index, tuning)
    return tuning


# Seconds: another tuning is written in far less, and what was tuned for minutes is not to be lost to it.
_PATIENCE = 10.0


def store(index: AnchorIndex, tuning: Tuning) -> None:
    """Let searches of an index use a tuning, in the place of one for the same k and budget.

    Of tunings by judgements there is one for each k: it says how much to spend.
    """
    snapshot = index.snapshot
    snapshot.tunings = _with(snapshot.tunings, tuning)
    queries = snapshot.anchors.anchor_queries

    def write(home: Path) -> None:
        # What belongs to other anchor queries is replaced, which is the remedy that the warning names.
        snapshot.tunings = _with(read_tunings(home, anchor_queries=queries, warn=False), tuning)
        write_atomically(home / TUNED, tunings_text(snapshot.tunings, anchor_queries=queries))

    _where_writable(snapshot.home, write)


def store_relevance(index: AnchorIndex, relevance: Relevance | None) -> None:
    """Let searches of an index read scores by this; without, by what is known, or by the anchor queries."""
    snapshot = index.snapshot
    # What judgements say is not given up for anchor scores.
    relevance = relevance or snapshot.relevance() or Relevance.of_anchors(snapshot.anchors)
    if relevance is None:
        return
    snapshot.set_relevance(relevance)
    text = relevance_text(relevance, anchor_queries=snapshot.anchors.anchor_queries)
    _where_writable(snapshot.home, lambda home: write_atomically(home / RELEVANCE, text))


def _with(tunings: Iterable[Tuning], tuning: Tuning) -> tuple[Tuning, ...]:
    others = (
        one
        for one in tunings
        if (one.k, one.budget) != (tuning.k, tuning.budget) and not (one.k == tuning.k and one.judged and tuning.judged)
    )
    return tuple(sorted([*others, tuning], key=lambda one: (one.k, one.budget)))


def _where_writable(home: Path | None, write: Callable[[Path], None]) -> None:
    """Write to an index folder, locked; what is served from where nobody can write is left as it is."""
    if home is None:
        return
    try:
        with full_disk_reported(home, lambda: "the index is as it was", what="tuning"), locked(home, wait=_PATIENCE):
            write(home)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


# What an index has to add to re-ranking before one would build it for that.
_WORTH = 0.02


def verdict(tuning: Tuning) -> str:
    """In words: what the judges prefer, what the index adds to re-ranking, and whether that is worth having."""
    k, budget, gain = tuning.k, tuning.budget, tuning.gain
    by_judges = f"{_judges_verdict(tuning, tuning.judged)} " if tuning.judged else ""
    if gain is None:
        return "There were too few anchor queries to tune with. The default settings are used."
    if tuning.is_exact:
        return f"{by_judges}{budget} calls score every item: every method finds the exact top {k}. Nothing to tune."
    plain, more, low, high = map(_short, (tuning.recall_of("rerank").recall, gain.recall, gain.low, gain.high))
    reranked = tuning.rerank_first or tuning.first
    without = f"Re-ranking {reranked}'s best {budget}" if reranked else f"Scoring {budget} at random"
    if gain.high < 0:
        advice = "re-ranking does better here. Search with method='rerank'."
    elif gain.low <= 0 and gain.high >= _WORTH:
        # Queries that would tell this gain from none, or from one that is not worth having, if it stays as it is.
        narrow = max(gain.recall, _WORTH - gain.recall)
        needed = -(-math.ceil(tuning.n_queries * ((gain.high - gain.low) / 2 / narrow) ** 2) // 10) * 10
        advice = f"too few anchor queries to tell; {tuning.n_queries} were replayed, and about {needed:,} are needed."
    else:
        advice = "probably not worth building for this." if gain.recall < _WORTH else "worth having."
    if tuning.pseudo:
        advice += " The anchor queries are pseudo-queries, made from the items: real queries may give other numbers."
    return f"{by_judges}{without} finds {plain} of the top {k}; the index adds {more} [{low}, {high}]: {advice}"


def _judges_verdict(tuning: Tuning, judged: Judged) -> str:
    means = (judged.chosen, judged.plain, judged.rerank, judged.alone)
    quality, plain, rerank, alone = (_short(mean.value) for mean in means)
    said = (
        f"By {judged.n_queries} judged queries: {tuning.budget} calls from {tuning.first} with {judged.order()} reach "
        f"{judged.measure} {quality}, {_more(judged.gain)} more than a search of {judged.largest} calls without "
        f"tuning ({plain}); re-ranking as many with the same order reaches {rerank}."
    )
    if (worth := judged.worth) is None:
        return said
    said += f" {judged.alone_first} alone, 0 calls, reaches {alone}: the calls add {_more(worth)}."
    if worth.high < 0:
        return f"{said} Use no scorer here."
    if worth.low <= 0:
        return f"{said} No gain is proved: use no scorer here, or judge more queries."
    if judged.rerank.value >= judged.chosen.value:
        said += " The judges see nothing in what the search finds beyond re-ranking."
    return said


def _more(gain: Mean) -> str:
    return f"{_short(gain.value)} [{_short(gain.low)}, {_short(gain.high)}]"


def _short(value: float) -> str:
    return f"{value:.2f}".replace("0.", ".", 1).replace("-", "−")
