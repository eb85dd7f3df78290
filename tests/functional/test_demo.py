"""`adacur demo` with the real models, articles and shipped index."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import pytest

from adacur import BM25, AnchorIndex, Item, Query
from adacur.cli.demo import Race, open_index
from adacur.data import wikivital
from adacur.scorers import Cached


def test_a_shipped_question_is_raced_with_the_real_model_at_equal_calls() -> None:
    shipped = json.loads(files("adacur.data").joinpath("demo_questions.json").read_text(encoding="utf-8"))
    race = Race({shipped[0]["question"]: shipped[0]["best"]}, budget=20)

    race.run(shipped[0]["question"], open_index().with_scorer(Cached))

    assert race.calls == {"first stages alone": 0, "re-ranking": 20, "adacur": 20}
    assert all(0 < found <= 10 for found in race.found.values())
    assert len(race.depths) <= race.total == 10


def test_each_shipped_question_names_ten_different_articles() -> None:
    known = {item.id for item in wikivital()}
    shipped = json.loads(files("adacur.data").joinpath("demo_questions.json").read_text(encoding="utf-8"))

    assert len({one["question"] for one in shipped}) == 25
    assert all(len({*one["best"]} & known) == 10 for one in shipped)


@pytest.fixture
def race() -> Race:
    """Two questions over 40 items, of which the scorer likes the last best, and the first stage the first."""
    texts = [f"{'word ' * (40 - at)}number{at}" for at in range(40)]
    items = [Item(f"i{at}", text) for at, text in enumerate(texts)]
    index = AnchorIndex.from_arrays(
        items=items,
        anchor_queries=[Query(str(at), f"anchor {at}") for at in range(6)],
        scores=np.arange(40.0)[None] + np.arange(6.0)[:, None],
        scorer=lambda pairs: [float(text.rpartition("number")[2]) for _, text in pairs],
        first={"bm25": BM25.build(items)},
    )
    race = Race({"word": ["i39", "i38", "i37"], "word word": ["i39", "i38", "i37"]}, budget=10)
    for question in race.best:
        race.run(question, index)
    return race


def test_a_race_counts_what_each_method_finds_and_spends(race: Race) -> None:
    assert race.calls == {"first stages alone": 0, "re-ranking": 20, "adacur": 20}
    assert race.found["first stages alone"] == race.found["re-ranking"] == 0
    assert race.found["adacur"] == 6
    assert race.table().row_count == 3


def test_re_ranking_needs_the_depth_at_which_as_many_are_listed(race: Race) -> None:
    depths = sorted(race.depths)

    assert race.calls_to_rerank(6) == depths[-1] * 2
    assert race.calls_to_rerank(len(depths) + 1) is None
    assert race.calls_to_rerank(0) is None
    assert f"{depths[-1] * 2:,} calls" in race.summary()
