from __future__ import annotations

import numpy as np
import pytest

from adacur.errors import DamagedIndex, EmptyInput, InputError, UnknownName
from adacur.first_stages.saved import write_ids
from adacur.records import Item
from adacur_lab.first_stages import TfIdf

ITEMS = [
    Item("a", "Cats chase mice, and mice chase cheese."),
    Item("b", "The cat sleeps."),
    Item("c", "Dogs bark at the moon."),
    Item("d", "The moon shines on sleeping dogs and on the cat."),
]
QUERIES = ["the cat and the moon", "mice mice cheese", "do dogs sleep?"]


def found(stage: TfIdf, query: str, k: int = 4) -> tuple[str, ...]:
    (answer,) = stage.search([query], k)
    return tuple(stage.ids[position] for position in answer.positions)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"ngrams": (1, 2), "sublinear": True}, {"ngram_range": (1, 2), "sublinear_tf": True}),
        ({"stopwords": "english"}, {"stop_words": "english"}),
        ({"analyzer": "char", "ngrams": (2, 3)}, {"analyzer": "char", "ngram_range": (2, 3)}),
        ({"analyzer": "char_wb", "ngrams": (3, 5)}, {"analyzer": "char_wb", "ngram_range": (3, 5)}),
    ],
)
def test_scores_are_the_dot_products_of_scikit_learn_s_vectors(ours, theirs) -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    vectorizer = text.TfidfVectorizer(**theirs)
    items = vectorizer.fit_transform([item.text for item in ITEMS]).toarray()
    expected = vectorizer.transform(QUERIES).toarray() @ items.T
    for row, hits in zip(expected, TfIdf.build(ITEMS, **ours).search(QUERIES, 4), strict=True):
        assert set(hits.positions.tolist()) == set(np.flatnonzero(row > 0).tolist())
        np.testing.assert_allclose(hits.scores, np.sort(row)[::-1][: len(hits.scores)], rtol=1e-6)


def test_an_item_asked_for_by_its_own_text_scores_one() -> None:
    for item in ITEMS:
        (hits,) = TfIdf.build(ITEMS).search([item.text], 1)
        assert ITEMS[hits.positions[0]] == item
        assert hits.scores[0] == pytest.approx(1)


def test_letters_find_what_is_misspelt() -> None:
    assert found(TfIdf.build(ITEMS), "chese") == ()
    assert found(TfIdf.build(ITEMS, analyzer="char_wb", ngrams=(2, 3)), "chese", 1) == ("a",)


@pytest.mark.parametrize("query", ["zebra", "?!", "x"])
def test_a_query_without_a_known_term_has_no_hits(query) -> None:
    (hits,) = TfIdf.build(ITEMS).search([query], 3)
    assert len(hits.positions) == len(hits.scores) == 0


def test_stopwords_can_be_dropped_or_chosen() -> None:
    assert set(found(TfIdf.build(ITEMS), "the")) == {"b", "c", "d"}
    assert found(TfIdf.build(ITEMS, stopwords="english"), "the") == ()
    assert found(TfIdf.build(ITEMS, stopwords=("moon",)), "moon") == ()


def test_items_are_read_once_from_any_iterable() -> None:
    assert found(TfIdf.build(item for item in ITEMS), "cheese") == ("a",)


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InputError, match=r"char_wb.*'words'"):
        TfIdf.build(ITEMS, analyzer="words")
    with pytest.raises(InputError, match=r"got \(3, 2\)"):
        TfIdf.build(ITEMS, ngrams=(3, 2))
    with pytest.raises(UnknownName, match="'klingon'; 'english' is"):
        TfIdf.build(ITEMS, stopwords="klingon")
    with pytest.raises(InputError, match="know no stopwords"):
        TfIdf.build(ITEMS, analyzer="char", stopwords="english")
    with pytest.raises(EmptyInput, match="stopwords=None"):
        TfIdf.build([Item("a", "the of and")], stopwords="english")


def test_settings_survive_the_disk_and_postings_stay_on_it(tmp_path) -> None:
    built = TfIdf.build(ITEMS, analyzer="char_wb", ngrams=(2, 4), sublinear=True)
    built.save(tmp_path)
    loaded = TfIdf.load(tmp_path)
    assert isinstance(loaded._weights, np.memmap)
    for one, other in zip(built.search(QUERIES, 4), loaded.search(QUERIES, 4), strict=True):
        assert one.positions.tolist() == other.positions.tolist()
        assert one.scores.tobytes() == other.scores.tobytes()


def test_files_that_disagree_are_refused(tmp_path) -> None:
    TfIdf.build(ITEMS).save(tmp_path)
    write_ids(tmp_path, ["a", "b"])
    with pytest.raises(DamagedIndex, match="'ids': 2"):
        TfIdf.load(tmp_path)
    TfIdf.build(ITEMS).save(tmp_path)
    np.save(tmp_path / "weights.npy", np.zeros(3, dtype=np.float32))
    with pytest.raises(DamagedIndex, match="'weights': 3"):
        TfIdf.load(tmp_path)
    (tmp_path / "terms.json").unlink()
    with pytest.raises(DamagedIndex, match="Build it again"):
        TfIdf.load(tmp_path)
