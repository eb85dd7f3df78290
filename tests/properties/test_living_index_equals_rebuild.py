"""Whatever becomes of an index, it answers as one that was built as it is now."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import adacur
from adacur.first_stages import FIRST_STAGES
from tests import living_world as world
from tests.editing import Edited
from tests.living_world import METHODS, build, found, item, query

ASKED = ["which red thing?", "a modern square thing", "something else"]
OPERATIONS = ("add", "remove", "replace", "add_anchors", "drop_anchors", "add_anchor_scores", "compact", "reopen")


class Steps:
    """Drawn changes, applied to an index and to plain lists."""

    def __init__(self, index: adacur.AnchorIndex, data: st.DataObject, reopen) -> None:
        self.index, self._data, self._open = index, data, reopen
        self.items = list(index.items.at(range(len(index))))
        self.anchors = list(index.anchor_queries)
        self._next = 1000

    def take(self, operation: str) -> None:
        getattr(self, f"_{operation}")()

    def _some(self, of: list, most: int) -> list:
        chosen = st.lists(st.sampled_from(of), min_size=1, max_size=most, unique_by=lambda record: record.id)
        return self._data.draw(chosen)

    def _numbers(self, most: int) -> list[int]:
        start, self._next = self._next, self._next + most
        return list(range(start, start + self._data.draw(st.integers(1, most))))

    def _add(self) -> None:
        new = [item(number) for number in self._numbers(4)]
        assert Edited(self.index).add(new).calls == len(new) * len(self.anchors)
        self.items += new

    def _remove(self) -> None:
        gone = {one.id for one in self._some(self.items, 5)}
        if len(gone) < len(self.items):
            Edited(self.index).remove(gone)
            self.items = [one for one in self.items if one.id not in gone]

    def _replace(self) -> None:
        self._next += 1
        new = [item(int(one.id[1:]), edition=self._next) for one in self._some(self.items, 3)]
        Edited(self.index).replace(new)
        ids = {one.id for one in new}
        self.items = [one for one in self.items if one.id not in ids] + new

    def _add_anchors(self) -> None:
        new = [query(number) for number in self._numbers(3)]
        assert Edited(self.index).add_anchors(new).calls == len(new) * len(self.items)
        self.anchors += new

    def _add_anchor_scores(self) -> None:
        new = [query(number) for number in self._numbers(2)]
        scores = [world.score([(one.text, own.text) for own in self.items]) for one in new]
        assert Edited(self.index).add_anchor_scores(new, np.array(scores)).calls == 0
        self.anchors += new

    def _drop_anchors(self) -> None:
        gone = {one.id for one in self._some(self.anchors, 2)}
        if len(gone) < len(self.anchors):
            Edited(self.index).drop_anchors(gone)
            self.anchors = [one for one in self.anchors if one.id not in gone]

    def _compact(self) -> None:
        assert Edited(self.index).compact().calls == 0

    def _reopen(self) -> None:
        self.index = self._open()


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
@given(
    data=st.data(),
    operations=st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=6),
    dtype=st.sampled_from(["float32", "float16"]),
)
def test_a_changed_index_answers_as_one_built_of_the_same_items_and_anchor_queries(data, operations, dtype) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, encoder = Path(name), world.Encoder()
        options = {"first": [*FIRST_STAGES], "encoder": encoder, "dtype": dtype}
        if dtype == "float16":
            # Scores that come from outside are kept in float32.
            operations = [one for one in operations if one != "add_anchor_scores"]
        index = build(folder / "living", [item(n) for n in range(20)], [query(n) for n in range(8)], **options)
        encoder.encoded.clear()
        steps = Steps(index, data, lambda: adacur.load(folder / "living", scorer=world.score, encoder=encoder))
        for operation in operations:
            steps.take(operation)
        assert len(encoder.encoded) == len(set(encoder.encoded))
        living = adacur.load(folder / "living", scorer=world.score, encoder=encoder)
        assert steps.index.version == living.version
        assert adacur.store.verify(folder / "living").ok
        rebuilt = build(folder / "rebuilt", steps.items, steps.anchors, **options)
        reversed_ = build(folder / "reversed", steps.items[::-1], steps.anchors, **options)
        assert living.matrix.tobytes() == rebuilt.matrix.tobytes()
        assert living.anchor_queries == rebuilt.anchor_queries
        for method in METHODS:
            for first in FIRST_STAGES:
                options = {} if method == "exact" else {"first": first}
                ours = found(living, ASKED, method=method, **options)
                assert ours == found(rebuilt, ASKED, method=method, **options), (method, first)
                assert ours == found(reversed_, ASKED, method=method, **options), (method, first)
        assert found(steps.index, ASKED, method="gaussian") == found(rebuilt, ASKED, method="gaussian")


@pytest.mark.parametrize("first", FIRST_STAGES)
def test_every_first_stage_follows(tmp_path, first) -> None:
    options = {"first": [first], "encoder": world.Encoder()}
    index = build(tmp_path / "living", [item(n) for n in range(20)], [query(n) for n in range(8)], **options)
    Edited(index).add([item(30), item(31)])
    Edited(index).replace([item(4, edition=1)])
    Edited(index).remove(["i7", "i30"])
    left = [item(n) for n in (*range(4), 5, 6, *range(8, 20), 31)] + [item(4, edition=1)]
    rebuilt = build(tmp_path / "rebuilt", left, [query(n) for n in range(8)], **options)
    for method in ("gaussian", "rerank"):
        assert found(index, ASKED, method=method) == found(rebuilt, ASKED, method=method)
    one, two = (ix.first_stage(first).search(ASKED, 20) for ix in (index, rebuilt))
    for updated, anew in zip(one, two, strict=True):
        assert updated.positions.tolist() == anew.positions.tolist()
        assert updated.scores.tolist() == anew.scores.tolist()
