"""Stored runs side by side: what each found, for how much, and whether the difference to a rival is certain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from adacur.first_stages.joined import SEPARATOR
from adacur.replay.means import FEWEST_QUERIES, MATTERS, mean_of
from adacur.replay.runs import Run, paired_difference
from adacur.search.tuned import Mean

JUDGED = "nDCG@10"
# Of the order by the scorer alone, where the order that is judged blends the first stage in.
OWN_ORDER = f"{JUDGED} in the scorer's order"
# The method that calls no scorer, and the one that needs no index.
ALONE, RERANK = "first", "rerank"
# Where all items are scored, a gain this large must not be overlooked.
_OVERLOOKED = 0.05


@dataclass(frozen=True, slots=True)
class Row:
    """One run as a table shows it: its measures, and how far it is from the rival at the same budget."""

    run: Run
    means: Mapping[str, Mean]
    differences: Mapping[str, Mean]

    @property
    def name(self) -> str:
        """The method and what it starts from."""
        first = self.run.settings.get("first")
        return f"{self.run.method} · {first}" if first else self.run.method

    @property
    def paid(self) -> int:
        """Scorer calls before the first search: anchor queries × items."""
        return int(self.run.settings.get("anchors", 0)) * int(self.run.made["items"])


def compare(runs: Sequence[Run], *, rival: str = RERANK) -> list[Row]:
    """A row per run, by budget; differences are taken to the rival's run of the same budget and first stage.

    The rival "first" has one: all first stages joined, with 0 calls.
    """
    measures = _measures_of(runs)
    of_rival = [run for run in runs if run.method == rival]
    rows = []
    for run in sorted(runs, key=lambda run: run.settings.get("budget", np.inf)):
        same = [one for one in of_rival if all(one.settings.get(of) == run.settings.get(of) for of in _PRICE)]
        other = _most_joined(of_rival) if rival == ALONE else next(iter(same), None)
        # A rival has none, and all joined is not compared with itself.
        is_rival = run is other if rival == ALONE else run.method == rival
        differences = {}
        if other is not None and not is_rival:
            both = [name for name in measures if _has(run, name) and _has(other, name)]
            differences = {name: paired_difference(run, other, name) for name in both}
        means = {name: mean_of(run.values(name)) for name in measures if _has(run, name)}
        rows.append(Row(run, means, differences))
    return rows


_PRICE = ("budget", "first")


def verdict(runs: Sequence[Run]) -> str:
    """In two sentences: whether the scorer is worth any call, and more depth its calls.

    What was not run, or not judged, is left out.
    """
    return " ".join(filter(None, (worth(runs), depth(runs))))


def worth(runs: Sequence[Run]) -> str:
    """Whether the scorer is worth its calls, by judgements: the best way to spend them against the best without any."""
    judged = [run for run in runs if _has(run, JUDGED)]
    # The best of what costs nothing, joined or not: a scorer that only mends a bad start is not worth its calls.
    alone = max((run for run in judged if run.method == ALONE), key=_quality, default=None)
    spent = [run for run in judged if run.settings.get("budget")]
    if alone is None or not spent:
        return ""
    best = max(spent, key=_quality)
    # Of many runs the best is flattered: the interval is that of all of them together.
    gain = paired_difference(best, alone, JUDGED, level=1 - 0.05 / len(spent), samples=10_000)
    unproved = f"No gain is proved on {gain.n} judged queries; use none, or more of them (--queries)"
    answer = "Yes" if gain.low > 0 else "No: use none here" if gain.high < MATTERS else unproved
    fuse = f", fuse {best.settings['fuse']:g}" if best.settings.get("fuse") else ""
    return (
        f"Is the scorer worth its calls? {_told(gain, answer)}. {alone.settings['first']} alone, 0 calls: {JUDGED} "
        f"{_quality(alone):.3f}; {best.method} ({best.settings['first']} first{fuse}), "
        f"{best.settings['budget']} calls, the best of {len(spent)}: {gain.value:+.3f} (95 % {gain.low:+.3f} to "
        f"{gain.high:+.3f})."
    )


def depth(runs: Sequence[Run]) -> str:
    """Whether the scorer's own order gets better or worse where it sees every item; empty where that was not judged.

    A scorer that was trained on near misses alone has opinions about everything else that nobody corrected.
    """
    judged = [run for run in runs if _has(run, JUDGED)]
    exact = next((run for run in judged if run.method == "exact"), None)
    # The most that one would re-rank, from the most first stages joined.
    most = max((run.settings["budget"] for run in judged if run.method == RERANK), default=0)
    reranked = _most_joined([run for run in judged if run.method == RERANK and run.settings["budget"] == most])
    if exact is None or reranked is None or most >= exact.made["items"]:
        return ""
    change = paired_difference(exact, reranked, OWN_ORDER)
    if change.high < 0 and change.value <= -MATTERS:
        answer = "No: mend it first (adacur train), or search only the first stage's best"
    elif change.low > 0 and change.value >= MATTERS:
        answer = "Yes, deeper is better"
    elif max(change.high, -change.low) > _OVERLOOKED:
        answer = f"Too wide an interval to tell on {change.n} judged queries; use more (--queries)"
    else:
        answer = "Deeper is neither better nor worse for certain"
    return (
        f"Can the scorer be searched? {_told(change, answer)}. From {reranked.settings['first']}'s best {most} to all "
        f"{exact.made['items']:,} items {JUDGED} in the scorer's own order changes by {change.change()}."
    )


def _told(mean: Mean, answer: str) -> str:
    """The answer, where there are queries enough for one."""
    few = f"{mean.n} judged queries cannot tell; use at least {FEWEST_QUERIES} (--queries)"
    return few if mean.n < FEWEST_QUERIES else answer


def _measures_of(runs: Sequence[Run]) -> list[str]:
    """The recalls by k, then judged quality: the two numbers always stand together."""
    recalls = {name for run in runs for name in run.measures if name.startswith("recall@")}
    judged = [JUDGED] if any(_has(run, JUDGED) for run in runs) else []
    return [*sorted(recalls, key=lambda name: int(name.removeprefix("recall@"))), *judged]


def _most_joined(runs: Iterable[Run]) -> Run | None:
    return max(runs, key=lambda run: run.settings["first"].count(SEPARATOR), default=None)


def _has(run: Run, measure: str) -> bool:
    return measure in run.measures and len(run.values(measure)) > 0


def _quality(run: Run) -> float:
    return float(run.values(JUDGED).mean())
