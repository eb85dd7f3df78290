"""`adacur.tune`: the first stage and the settings of searches for a k and a budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from adacur.budget import Budget, check_k
from adacur.data import read_qrels, read_queries
from adacur.errors import InputError
from adacur.records import Query, as_queries
from adacur.replay.calibration import judged_relevance
from adacur.replay.chosen_settings import choose_settings, replays
from adacur.replay.held_out import check_anchors, check_exact, exact_anchors
from adacur.replay.judged_tuning import JudgedQueries, JudgedSearches
from adacur.replay.means import FEWEST_QUERIES
from adacur.replay.measures import Qrels
from adacur.replay.storing import store, store_relevance
from adacur.search import AnchorIndex
from adacur.search.tuned import Tuning

Queries = int | str | Path | Iterable[Query | str]
_QUERIES = 100
# Judged quality differs more from query to query than recall does.
_MOST_JUDGED = 300


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


def judged_queries(
    index: AnchorIndex, qrels: Qrels | str | Path, queries: Queries | None = None, *, seed: int = 0
) -> JudgedQueries:
    """The queries that `tune` chooses by, given the same options; refused where they are too few to choose by."""
    grades = read_qrels(qrels) if isinstance(qrels, str | Path) else qrels
    if isinstance(queries, int | None):
        return JudgedQueries.of(index, grades, None, most=queries or _MOST_JUDGED, seed=seed)
    given = read_queries(queries) if isinstance(queries, str | Path) else as_queries(list(queries))
    return JudgedQueries.of(index, grades, list(given), seed=seed)
