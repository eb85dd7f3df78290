from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from adacur.errors import DamagedIndex, EmptyInput, UnknownName
from adacur.first_stages import BM25
from adacur.first_stages.saved import write_ids
from adacur.records import Item

ITEMS = [
    Item("a", "Cats chase mice."),
    Item("b", "The cat sleeps."),
    Item("c", "Dogs bark at the moon."),
]


def found(stage: BM25, query: str) -> tuple[str, ...]:
    (answer,) = stage.search([query], 3)
    return tuple(stage.ids[position] for position in answer.positions)


def test_items_without_a_word_of_the_query_are_not_returned() -> None:
    assert set(found(BM25.build(ITEMS), "cat")) == {"a", "b"}
    assert (BM25.build(ITEMS).search(["cat"], 3)[0].scores > 0).all()


@pytest.mark.parametrize("query", ["zebra", "the at", "?!", "x"])
def test_a_query_without_a_known_word_has_no_hits(query) -> None:
    (hits,) = BM25.build(ITEMS).search([query], 3)
    assert len(hits.positions) == len(hits.scores) == 0


def test_without_a_stemmer_only_the_very_word_matches() -> None:
    assert found(BM25.build(ITEMS, stemmer=None), "cat") == ("b",)


def test_stopwords_can_be_kept_or_chosen() -> None:
    assert found(BM25.build(ITEMS), "the") == ()
    assert set(found(BM25.build(ITEMS, stopwords=None), "the")) == {"b", "c"}
    assert found(BM25.build(ITEMS, stopwords=("moon",)), "moon") == ()


def test_unknown_languages_are_refused() -> None:
    with pytest.raises(UnknownName):
        BM25.build(ITEMS, stemmer="klingon")
    with pytest.raises(UnknownName):
        BM25.build(ITEMS, stopwords="klingon")


def test_items_of_stopwords_alone_are_refused() -> None:
    with pytest.raises(EmptyInput):
        BM25.build([Item("a", "the of and")])


def test_nothing_is_printed(capfd, tmp_path) -> None:
    retriever = BM25.build(ITEMS)
    retriever.save(tmp_path)
    BM25.load(tmp_path).search(["cat"], 2)
    assert capfd.readouterr() == ("", "")


def test_equal_items_write_equal_files_in_every_process(tmp_path) -> None:
    code = (
        "import sys; from adacur.records import Item; from adacur.first_stages import BM25;"
        "BM25.build([Item(str(n), f'word{n} word{n + 1} common') for n in range(50)]).save(sys.argv[1])"
    )
    for seed in ("1", "2"):
        command = [sys.executable, "-c", code, str(tmp_path / seed)]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": seed})
    files = [path.relative_to(tmp_path / "1") for path in (tmp_path / "1").rglob("*") if path.is_file()]
    assert len(files) >= 6
    assert all((tmp_path / "1" / file).read_bytes() == (tmp_path / "2" / file).read_bytes() for file in files)


def test_files_that_disagree_are_refused(tmp_path) -> None:
    BM25.build(ITEMS).save(tmp_path)
    write_ids(tmp_path, ["a", "b"])
    with pytest.raises(DamagedIndex):
        BM25.load(tmp_path)
    (tmp_path / "ids.utf8").unlink()
    with pytest.raises(DamagedIndex):
        BM25.load(tmp_path)


def words_of_items(n: int = 60) -> list[Item]:
    kinds = ("river", "castle", "lamp", "violin")
    return [Item(f"i{at}", " ".join([kinds[at % 4]] * (1 + at % 3) + [kinds[at % 3]])) for at in range(n)]


def test_what_words_add_sums_to_the_score() -> None:
    stage = BM25.build(words_of_items())
    (terms,), (ranking,) = stage.terms(["lamp violin lamp"], 60), stage.search(["lamp violin"], 60)
    assert len(terms) == 2
    total = np.zeros(60)
    for positions, added in terms:
        total[positions] += added
    assert total[ranking.positions] == pytest.approx(ranking.scores, rel=1e-5)
    assert np.count_nonzero(total) == len(ranking.positions)


@pytest.mark.parametrize("query", ["zebra", "the at", "?!", "x"])
def test_a_query_without_a_known_word_has_no_terms(query) -> None:
    assert BM25.build(ITEMS).terms([query], 3) == [[]]


def test_a_word_of_too_many_items_counts_where_it_adds_most_whatever_their_order() -> None:
    items = words_of_items()

    def added(items: list[Item]) -> dict[str, float]:
        stage = BM25.build(items)
        ((positions, values),) = stage.terms(["lamp"], 7)[0]
        return {stage.ids[at]: value for at, value in zip(positions.tolist(), values.tolist(), strict=True) if value}

    whole = BM25.build(items).terms(["lamp"], 60)[0][0].scores
    forwards = added(items)
    assert added(items[::-1]) == pytest.approx(forwards)
    assert 0 < len(forwards) <= 7 < len(whole)
    assert max(forwards.values()) == pytest.approx(np.sort(whole)[-1] - np.sort(whole)[-8])


@pytest.mark.parametrize(("name", "wrong"), [("data", np.nan), ("data", np.inf), ("indices", 3), ("indices", -1)])
def test_postings_that_are_no_numbers_or_of_no_item_are_damage(name: str, wrong: float) -> None:
    stage = BM25.build([Item(f"i{n}", text) for n, text in enumerate(("red kettle", "red toaster", "oak table"))])
    postings = stage._model.scores[name] = np.array(stage._model.scores[name])
    postings[:] = wrong
    with pytest.raises(DamagedIndex):
        stage.terms(["red table"], 10)
    if wrong != -1:
        with pytest.raises(DamagedIndex):
            stage.search(["red table"], 2)
