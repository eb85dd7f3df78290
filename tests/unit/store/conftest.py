"""A small collection whose every score is known."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from adacur.records import Item, Query
from adacur.scorers.known import MatrixScorer
from adacur.scorers.metered import Metered
from adacur.store import IndexFolder, build_scores


@dataclass(frozen=True)
class Known:
    items: list[Item]
    anchors: list[Query]
    scores: np.ndarray

    @property
    def scorer(self) -> MatrixScorer:
        return MatrixScorer(self.anchors, self.items, self.scores)

    @property
    def metered(self) -> Metered:
        return Metered(self.scorer)

    def build(self, path: Path, **options) -> IndexFolder:
        options.setdefault("block_items", 10)
        if "scorer" not in options:
            options["scorer"] = self.scorer
        return build_scores(self.items, self.anchors, path=path, **options)


@pytest.fixture
def known() -> Known:
    scores = np.random.default_rng(0).normal(size=(7, 53)).astype(np.float32) * 5
    return Known(
        items=[Item(f"i{position}", f"item number {position}", {"n": position}) for position in range(53)],
        anchors=[Query(f"a{position}", f"anchor {position}") for position in range(7)],
        scores=scores,
    )


@dataclass
class Clock:
    """A clock that only sleeping moves: what is timed by it does not depend on how busy this machine is."""

    now: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the estimate."""
    clock = Clock()
    monkeypatch.setattr(importlib.import_module("adacur.store.estimate"), "time", clock)
    return clock
