"""`adacur search`: questions in groups, each answered as soon as it is found."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adacur.cli.messages import hits_table, print_json, print_table, seconds_line, tell
from adacur.core.arrays import FloatArray
from adacur.core.as_json import as_json
from adacur.core.protocols import Scorer, ScorerCard
from adacur.core.records import Pair, Query
from adacur.core.results import Hits
from adacur.search import AnchorIndex, search_options

__all__ = ["search_command"]

_USUAL_K, _USUAL_BUDGET = 10, 100
# Questions that share scorer calls, and then are answered together.
_TOGETHER = 16
_PAIRS_PER_STEP = 64
# What comparing methods leaves on the command line; exact search is the same with and without. A budget is a wall.
_IDLE_IN_EXACT = ("rounds", "first")


def search_command(
    index: AnchorIndex,
    asked: Sequence[Query],
    *,
    k: int | None,
    method: str | None,
    options: Mapping[str, Any],
    run: Path | None,
    full: bool,
    json: bool,
) -> None:
    """Search for all questions and print what is found; a run file of TREC is written to `run`."""
    given = dict(options) | ({} if method is None else {"method": method})
    if method == "exact":
        idle = [name for name in _IDLE_IN_EXACT if name in given and not (name == "first" and "fuse" in given)]
        if idle:
            flags = " and ".join(f"--{name}" for name in idle)
            tell(f"--method exact scores all {len(index):,} items; {flags} made no difference.")
        given = {name: value for name, value in given.items() if name not in idle}
    if k is None:
        k = min(_USUAL_K, max(1, given.get("budget", _USUAL_K)))
    # A deadline is that of all questions together.
    together = len(asked) if "deadline" in given else _TOGETHER
    per_question = len(index) if method == "exact" else min(given.get("budget", _USUAL_BUDGET), len(index))
    found: list[Hits] = []
    with _progress(index, per_question * len(asked), shown=method == "exact" or len(asked) > 1) as searched:
        for start in range(0, len(asked), together):
            some = searched.search(asked[start : start + together], k, **search_options(index, **given))
            if not start:
                tell(f"Scorer: {index.scorer.card}")
                if index.drift is not None and index.drift.n_probes:
                    tell(f"Besides the budget, {index.drift.n_probes} calls went into recognising the scorer.")
            known = _cache_facts(index.scorer)
            for hits in some:
                if json:
                    print_json(as_json(hits) | ({"cache": known} if known else {}))
                else:
                    print_table(hits_table(hits, title=hits.query.text, ids=True, full=full))
                    tell(seconds_line(hits) + "\n")
            sys.stdout.flush()
            found += some if run is not None else ()
    if run is not None:
        from adacur.evaluation import write_trec

        write_trec(run, found, tag=str(found[0].trace.settings["method"]))
        tell(f"{run}: a TREC run of {len(found):,} {'question' if len(found) == 1 else 'questions'}.")
    if known and not json:
        free, paid = known["hits"], known["misses"]
        probes = index.drift.n_probes if index.drift is not None else 0
        beside = f", beside the {probes} that recognised the scorer" if probes else ""
        tell(
            f"Cache: {free} of {free + paid} scores were known ({known['hit_rate']:.0%}); {paid} were paid for{beside}."
        )


@contextlib.contextmanager
def _progress(index: AnchorIndex, pairs: int, *, shown: bool) -> Iterator[AnchorIndex]:
    """The index, with a bar on a terminal over the pairs that it scores."""
    from tqdm import tqdm

    if not shown or not sys.stderr.isatty():
        yield index
        return
    with tqdm(total=pairs, unit=" pairs", unit_scale=True, desc="scoring", leave=False) as bar:
        yield index.with_scorer(lambda scorer: _Watched(scorer, bar))


class _Watched:
    """A scorer that moves a bar, also within a call of thousands of pairs."""

    def __init__(self, scorer: Scorer, bar: Any) -> None:
        self._scorer = scorer
        self._bar = bar

    @property
    def card(self) -> ScorerCard:
        return self._scorer.card

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        parts = []
        for start in range(0, len(pairs), _PAIRS_PER_STEP):
            some = pairs[start : start + _PAIRS_PER_STEP]
            parts.append(np.asarray(self._scorer.score(some)))
            self._bar.update(len(some))
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)


def _cache_facts(scorer: Scorer) -> dict[str, Any] | None:
    from adacur.scorers import Cached

    if not isinstance(scorer, Cached):
        return None
    return {"hits": scorer.hits, "misses": scorer.misses, "hit_rate": scorer.hit_rate}
