from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Item, Query
from adacur.as_json import as_json
from adacur.errors import DamagedIndex, InputError, OtherFormat
from adacur.first_stages import Matrix
from adacur.replay.tune_index import store_relevance
from adacur.scorers import MatrixScorer
from adacur.search.relevance import RELEVANCE, Calibration, Relevance, read_relevance
from adacur.store import AnchorTable

N_ITEMS, N_ANCHORS = 60, 40
ITEMS = [Item(f"i{at}", f"item {at}") for at in range(N_ITEMS)]


def world(*, prefix: str = "a", n_anchors: int = N_ANCHORS) -> tuple[AnchorIndex, np.ndarray]:
    """The best item of anchor query n scores n, its second n − 5, all others −100."""
    scores = np.full((n_anchors, N_ITEMS), -100.0)
    scores[:, 0], scores[:, 1] = np.arange(n_anchors), np.arange(n_anchors) - 5.0
    anchors = [Query(f"{prefix}{at}", f"anchor {at}") for at in range(n_anchors)]
    new = [Query(f"q{best}", f"new {best}") for best in (-50, 10, 39)]
    mine = np.full((len(new), N_ITEMS), -100.0)
    mine[:, 3], mine[:, 4] = [-50.0, 10.0, 39.0], [-60.0, 8.5, 20.5]
    index = AnchorIndex.from_arrays(
        items=ITEMS,
        anchor_queries=anchors,
        scores=scores,
        scorer=MatrixScorer(new, ITEMS, mine),
        first={"dense": Matrix(queries=new, items=ITEMS, scores=mine)},
    )
    return index, scores


def search(index: AnchorIndex, query: str, **options):
    return index.search(Query(query, query), 2, budget=10, method="rerank", **options)


def test_relevance_is_the_share_of_anchor_queries_whose_best_item_scores_lower() -> None:
    index, _ = world()
    assert search(index, "q10").relevance.tolist() == [10 / N_ANCHORS, 9 / N_ANCHORS]
    hit = search(index, "q39")[0]
    assert (hit.relevance, hit.score) == (39 / N_ANCHORS, 39.0)
    assert search(index, "q-50").trace.settings["relevance"] == "anchors"


def test_the_verdict_goes_by_anchor_queries_with_and_without_their_best_item() -> None:
    index, scores = world()
    relevance = index.snapshot.relevance()
    assert relevance.nothing == np.quantile(scores.max(axis=1), 0.1)
    assert relevance.answered == np.quantile(np.sort(scores, axis=1)[:, -2], 0.9)
    assert [search(index, query).verdict for query in ("q-50", "q10", "q39")] == [
        "nothing found",
        "doubtful",
        "answered",
    ]


def test_the_own_item_of_a_pseudo_query_does_not_count() -> None:
    real, pseudo = (world(prefix=prefix)[0].snapshot.relevance() for prefix in ("a", "pq-"))
    assert np.subtract(real.best, 5).tolist() == list(pseudo.best)
    assert pseudo.answered < 0 < real.answered


def test_hits_below_a_floor_are_left_out_and_there_may_be_none() -> None:
    index, _ = world()
    assert search(index, "q10", min_score=9).ids == ("i3",)
    assert search(index, "q10", min_relevance=9.5 / N_ANCHORS).ids == ("i3",)
    empty = search(index, "q10", min_score=11)
    assert (empty.ids, len(empty.relevance), empty.verdict) == ((), 0, "nothing found")
    # What was paid for stays in the trace.
    assert empty.trace.calls == 10
    assert as_json(empty)["verdict"] == "nothing found"
    assert as_json(search(index, "q10"))["hits"][0]["relevance"] == 0.25


def test_where_nothing_tells_what_scores_mean_nothing_is_said_of_them() -> None:
    index, _ = world(n_anchors=19)
    hits = search(index, "q10")
    assert (hits.relevance, hits.verdict, hits[0].relevance) == (None, None, None)
    assert "relevance" not in as_json(hits)["hits"][0]
    assert search(index, "q10", min_score=11).verdict == "nothing found"
    with pytest.raises(InputError, match="20 anchor queries"):
        search(index, "q10", min_relevance=0.5)


@pytest.mark.parametrize(
    "floor", [{"min_relevance": 1.5}, {"min_relevance": -0.1}, {"min_score": float("nan")}, {"min_score": "high"}]
)
def test_a_floor_that_means_nothing_is_refused(floor) -> None:
    index, _ = world()
    with pytest.raises(InputError, match=next(iter(floor))):
        search(index, "q10", **floor)


def test_by_judgements_relevance_falls_with_the_rank_and_rises_with_the_score() -> None:
    index, _ = world()
    calibration = Calibration((-100.0, 40.0), (0.0, 10.0), -2.0, 0.5, -1.5, queries=30, error=0.02)
    index.snapshot.set_relevance(Relevance((0.0, 10.0), 20.0, 5.0, calibration))
    hits = search(index, "q10")
    odds = -2.0 + 0.5 * (110 / 14)
    assert hits.relevance[0] == pytest.approx(1 / (1 + np.exp(-odds)))
    assert hits.relevance[1] == pytest.approx(1 / (1 + np.exp(-(odds - 0.5 * 1.5 / 14 + -1.5 * np.log(2)))))
    assert (hits.trace.settings["relevance"], hits.verdict) == ("judgements", "doubtful")


def test_it_is_stored_with_the_index_and_read_again(tmp_path: Path) -> None:
    index, _ = world()
    index.save(tmp_path / "index")
    opened = adacur.load(tmp_path / "index")
    calibration = Calibration((-100.0, 40.0), (0.0, 10.0), -2.0, 0.5, -1.5, queries=30, error=0.02)
    stored = Relevance((0.0, 10.0), 20.0, 5.0, calibration)
    store_relevance(opened, stored)
    assert adacur.load(tmp_path / "index").snapshot.relevance() == stored
    # Tuning without judgements does not forget what they told.
    store_relevance(opened, None)
    assert adacur.load(tmp_path / "index").snapshot.relevance() == stored
    (opened.snapshot.home / RELEVANCE).unlink()
    assert adacur.load(tmp_path / "index").snapshot.relevance().source == "anchors"


def test_of_other_anchor_queries_it_is_not_used(tmp_path: Path) -> None:
    index, scores = world()
    index.save(tmp_path)
    opened = adacur.load(tmp_path)
    store_relevance(opened, Relevance((0.0, 1.0), 20.0, 5.0))
    others = [Query(f"b{at}", f"other {at}") for at in range(N_ANCHORS)]
    table = AnchorTable.from_arrays(items=ITEMS, anchor_queries=others, scores=scores)
    assert read_relevance(opened.snapshot.home, opened.anchors).best == (0.0, 1.0)
    assert read_relevance(opened.snapshot.home, table).best != (0.0, 1.0)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: data | {"relevance": data["relevance"] | {"best": [3.0, 1.0]}}, DamagedIndex),
        (lambda data: data | {"relevance": data["relevance"] | {"answered": "high"}}, DamagedIndex),
        (lambda data: data | {"relevance": data["relevance"] | {"nothing": 1e9}}, DamagedIndex),
        (lambda data: data | {"type": "cake"}, DamagedIndex),
        (lambda data: [], DamagedIndex),
        (lambda data: data | {"format": 99}, OtherFormat),
    ],
)
def test_a_file_that_says_nonsense_is_refused_by_its_name(tmp_path: Path, change, error) -> None:
    index, _ = world()
    index.save(tmp_path)
    opened = adacur.load(tmp_path)
    store_relevance(opened, None)
    file = opened.snapshot.home / RELEVANCE
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(error, match=RELEVANCE):
        adacur.load(tmp_path).snapshot.relevance()


def test_a_calibration_whose_chances_would_be_no_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="larger than"):
        Calibration((-1e308, 1e308), (-1e308, 1e308), 1e308, 1e308, -1e308, 5, 0.1)


def test_a_folder_in_the_place_of_the_file_is_a_damaged_index(tmp_path: Path) -> None:
    (tmp_path / RELEVANCE).mkdir()
    with pytest.raises(DamagedIndex, match="is a folder"):
        read_relevance(tmp_path, world()[0].anchors)
