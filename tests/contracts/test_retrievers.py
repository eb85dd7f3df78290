"""What every first stage promises."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from adacur.core.errors import EmptyInput, InputError
from adacur.core.protocols import Retriever, SavedRetriever
from adacur.core.records import Item, Query
from adacur.first_stages import (
    BM25,
    Dense,
    EncoderCard,
    MatrixRetriever,
    MultiVector,
    RandomRetriever,
    TfIdf,
    load_retriever,
)

ITEMS = [
    Item("penicillin", "Penicillin is an antibiotic discovered by Alexander Fleming in 1928."),
    Item("fleming", "Alexander Fleming was a Scottish physician who discovered penicillin."),
    Item("london", "London is the capital of the United Kingdom, on the river Thames."),
    Item("thames", "The Thames is a river that flows through London."),
    Item("twin-b", "A river is a natural watercourse."),
    Item("twin-a", "A river is a natural watercourse."),
    Item("paris", "Paris is the capital of France, on the river Seine."),
    Item("moss", "Moss grows on stones."),
]
QUERIES = [
    Query("q1", "Who discovered penicillin?"),
    Query("q2", "a river through the capital"),
    Query("q3", "natural watercourse"),
]


class LetterPairEncoder:
    """Counts of letter pairs, hashed: a real encoder, of texts and of their words, that needs no model."""

    dimension = 64
    card = EncoderCard(kind="letter-pairs", dimension=64, weights="v1")

    def encode_items(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            for pair in zip(text.lower(), text.lower()[1:], strict=False):
                vectors[row, hashlib.blake2b("".join(pair).encode(), digest_size=1).digest()[0] % 64] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    encode_queries = encode_items

    def encode_item_tokens(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode_items([f" {word} " for word in text.split()]) for text in texts]

    encode_query_tokens = encode_item_tokens


def known_scores(queries: list[Query], items: list[Item]) -> np.ndarray:
    def words(text: str) -> set[str]:
        return set(text.lower().split())

    return np.array([[len(words(q.text) & words(i.text)) for i in items] for q in queries], dtype=float)


MAKERS: dict[str, Callable[[list[Item]], Retriever]] = {
    "random": RandomRetriever,
    "matrix": lambda items: MatrixRetriever(queries=QUERIES, items=items, scores=known_scores(QUERIES, items)),
    "bm25": BM25.build,
    "tfidf": TfIdf.build,
    "tfidf-letters": lambda items: TfIdf.build(items, analyzer="char_wb", ngrams=(2, 4), sublinear=True),
    "dense-float16": lambda items: Dense.build(items, encoder=LetterPairEncoder()),
    "dense-float32": lambda items: Dense.build(items, encoder=LetterPairEncoder(), storage="float32"),
    "dense-int8": lambda items: Dense.build(items, encoder=LetterPairEncoder(), storage="int8"),
    "multi-vector": lambda items: MultiVector.build(items, encoder=LetterPairEncoder()),
}
# These return only what shares a term with the query.
LEXICAL = ("bm25", "tfidf")
ENCODED = ("dense", "multi-vector")
OPTIONS = {name: {"encoder": LetterPairEncoder()} if name.startswith(ENCODED) else {} for name in MAKERS}


@pytest.fixture(params=MAKERS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def retriever(kind) -> Retriever:
    return MAKERS[kind](ITEMS)


def columns(hits) -> list[tuple[str, tuple[str, ...], list[float]]]:
    return [(found.query.id, found.ids, found.scores.tolist()) for found in hits]


def test_it_is_a_retriever_with_a_name(retriever, kind) -> None:
    assert isinstance(retriever, Retriever)
    assert retriever.name == (kind if kind == "multi-vector" else kind.split("-")[0])


def test_hits_come_in_the_order_of_the_queries_best_first_without_repeats(retriever) -> None:
    hits = retriever.search(QUERIES, 4)
    assert [found.query for found in hits] == QUERIES
    for found in hits:
        assert len(found.ids) == len(found.scores) == len(set(found.ids)) <= 4
        assert set(found.ids) <= {item.id for item in ITEMS}
        assert np.all(np.diff(found.scores) <= 0)
        assert np.isfinite(found.scores).all()


def test_a_k_larger_than_the_collection_returns_all_it_has(retriever, kind) -> None:
    for found in retriever.search(QUERIES, 1000):
        assert len(found) == len(ITEMS) or (kind.startswith(LEXICAL) and 0 < len(found) < len(ITEMS))


def test_the_best_k_are_the_first_of_the_best_more(retriever) -> None:
    everything = retriever.search(QUERIES, 1000)
    for k in (1, 2, 3, 5):
        assert [found.ids for found in retriever.search(QUERIES, k)] == [found.ids[:k] for found in everything]


def test_a_query_alone_is_answered_as_in_a_batch(retriever) -> None:
    batch = columns(retriever.search([*QUERIES, *reversed(QUERIES)], 5))
    alone = [columns(retriever.search([query], 5))[0] for query in (*QUERIES, *reversed(QUERIES))]
    assert batch == alone


def test_the_order_of_the_items_does_not_matter(kind) -> None:
    one, other = MAKERS[kind](ITEMS), MAKERS[kind](ITEMS[::-1])
    for k in (1, 3, 5, 8):
        assert columns(one.search(QUERIES, k)) == columns(other.search(QUERIES, k))


def test_equal_items_come_in_the_order_of_their_ids(retriever, kind) -> None:
    if kind == "random":
        pytest.skip("the random order knows no equal items")
    ids = retriever.search(QUERIES, 8)[2].ids
    assert ids[:2] == ("twin-a", "twin-b")


def test_no_queries_have_no_hits(retriever) -> None:
    assert retriever.search([], 3) == []


def test_queries_and_k_that_mean_nothing_are_refused(retriever) -> None:
    with pytest.raises(InputError, match="at least 1; got 0"):
        retriever.search(QUERIES, 0)
    with pytest.raises(InputError, match="Wrap it"):
        retriever.search("river", 3)
    with pytest.raises(EmptyInput):
        retriever.search([Query("q1", " ")], 3)


def test_no_items_and_repeated_ids_are_refused(kind) -> None:
    with pytest.raises(EmptyInput):
        MAKERS[kind]([])
    with pytest.raises(InputError, match="'london' occurs more than once"):
        MAKERS[kind]([*ITEMS, ITEMS[2]])


def test_a_saved_retriever_answers_as_before(retriever, kind, tmp_path) -> None:
    if not isinstance(retriever, SavedRetriever):
        assert kind in ("random", "matrix")
        return
    retriever.save(tmp_path / "first")
    again = load_retriever(tmp_path / "first", **OPTIONS[kind])
    assert columns(again.search(QUERIES, 5)) == columns(retriever.search(QUERIES, 5))
    again.save(tmp_path / "second")
    assert sorted(path.read_bytes() for path in (tmp_path / "first").rglob("*") if path.is_file()) == sorted(
        path.read_bytes() for path in (tmp_path / "second").rglob("*") if path.is_file()
    )
