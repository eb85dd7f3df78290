"""Searches in a vector engine find what searches in memory find."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Gaussian, Item, Query
from adacur.errors import EmptyInput, EngineUnavailable, InputError, UnknownName
from adacur.extras.engines import EngineWarning, search_in
from adacur.extras.engines.vector_store import Found
from tests.contracts.test_first_stages import LetterPairEncoder as Counts
from tests.engine_tables import InLanceDB
from tests.memory_store import MemoryStore
from tests.stopping import Stopping


class LetterPairEncoder(Counts):
    """Without ties, whose order is each engine's own."""

    def encode_items(self, texts: Any) -> np.ndarray:
        own = np.stack([np.random.default_rng(hash_of(text)).normal(size=64) for text in texts])
        return np.asarray(super().encode_items(texts) + 0.02 * own, dtype=np.float32)

    encode_queries = encode_items


RNG = np.random.default_rng(3)
WORDS = [
    "river",
    "stone",
    "moss",
    "capital",
    "physician",
    "bridge",
    "harvest",
    "lantern",
    "copper",
    "violin",
    "glacier",
]
ITEMS = [
    Item(
        f"i{at}",
        " ".join(RNG.choice(WORDS, size=7)) + f" {at}",
        {"parity": at % 2, "title": f"number {at}"},
    )
    for at in range(400)
]
QUERIES = [Query(f"q{at}", " ".join(RNG.choice(WORDS, size=3))) for at in range(12)]


def scorer(pairs: Any) -> np.ndarray:
    """Shared words, later ones worth less, and something of each item's own."""
    values = []
    for query, item in pairs:
        words = item.split()
        own = (hash_of(item) % 97) / 97
        values.append(sum(1 / (1 + words.index(word)) for word in query.split() if word in words) + 0.3 * own)
    return np.array(values)


def hash_of(text: str) -> int:
    return sum((at + 1) * ord(letter) * 31 for at, letter in enumerate(text))


VECTORS = LetterPairEncoder().encode_items([item.text for item in ITEMS])


def as_it_is(kind: type[MemoryStore] = MemoryStore, **vectors: np.ndarray) -> MemoryStore:
    return kind(ITEMS, vectors or {"": VECTORS}, name="things")


def searched(store: MemoryStore, scorer: Any = scorer, **options: Any) -> AnchorIndex:
    return search_in(store, scorer=scorer, encoder=LetterPairEncoder(), **options)


@pytest.fixture(scope="module")
def index() -> AnchorIndex:
    """The same items in memory."""
    return AnchorIndex.from_items(ITEMS, scorer=scorer, first="dense", encoder=LetterPairEncoder(), progress=False)


@pytest.fixture(scope="module")
def there(index) -> AnchorIndex:
    """With the vectors as memory keeps them, in half precision."""
    return searched(as_it_is(**{"": index.snapshot.item_vectors().all_rows()}))


def scored(hits: Any) -> list[list[str]]:
    return [[item.id for item in round_.items] for round_ in hits.trace.rounds]


def scored_here(index: AnchorIndex, hits: Any) -> list[list[str]]:
    return [[item.id for item in index.items.at(round_.positions.tolist())] for round_ in hits.trace.rounds]


def test_the_same_items_are_scored_in_the_same_rounds_as_in_memory(index, there) -> None:
    method = Gaussian(rounds=5)
    for query in QUERIES:
        here = index.search(query, 5, budget=60, method=method, first="dense")
        hits = there.search(query, 5, budget=60, method=method, first="dense")
        assert scored(hits) == scored_here(index, here)
        assert hits.ids == here.ids
        np.testing.assert_allclose(
            np.concatenate([one.predicted for one in hits.trace.rounds[1:]]),
            np.concatenate([one.predicted for one in here.trace.rounds[1:]]),
            rtol=1e-3,
            atol=1e-3,
        )


def test_many_queries_step_together_and_find_what_each_finds_alone(there) -> None:
    together = there.search(QUERIES, 5, budget=40, first="dense")
    for query, hits in zip(QUERIES, together, strict=True):
        assert hits.ids == there.search(query, 5, budget=40, first="dense").ids


def test_all_items_above_a_line_are_found_as_in_memory(index, there) -> None:
    for query in QUERIES[:4]:
        here = index.find(query, above=1.2, budget=150, first="dense")
        found = there.find(query, above=1.2, budget=150, first="dense")
        assert found.ids == here.ids
        assert found.trace.calls == here.trace.calls
        assert (found.certificate.basis, here.certificate.basis) == ("none", "none")
        assert found.certificate.reasons


def test_an_audit_is_refused_where_nothing_can_be_drawn_at_random(there) -> None:
    with pytest.raises(InputError):
        there.find(QUERIES[0], above=1.2, budget=150, audit=20)


def test_re_ranking_and_stopping_are_as_in_memory(index, there) -> None:
    for options in (
        {"method": "rerank"},
        {"method": Stopping(stop_when=0.9)},
    ):
        options = {"first": "dense"} | options
        for query in QUERIES[:6]:
            here = index.search(query, 5, budget=40, **options)
            hits = there.search(query, 5, budget=40, **options)
            assert hits.ids == here.ids
            assert (hits.trace.calls, hits.trace.stopped) == (here.trace.calls, here.trace.stopped)


def test_nothing_is_scored_twice_and_no_call_is_made_over_budget() -> None:
    calls: list[str] = []

    def counting(pairs: Any) -> np.ndarray:
        calls.extend(item for _, item in pairs)
        return scorer(pairs)

    there = searched(as_it_is(), counting)
    for first in there.first_stages:
        calls.clear()
        hits = there.search(QUERIES[0], 10, budget=77, first=first)
        assert len(calls) == 77 == len(set(calls)) == hits.trace.calls


def test_a_budget_that_covers_all_items_gives_the_exact_answer(index, there) -> None:
    exact = index.search(QUERIES[1], 10, method="exact")
    hits = there.search(QUERIES[1], 10, budget=1000)
    assert hits.ids == exact.ids
    assert (hits.trace.calls, hits.trace.stopped) == (400, "exhausted")


def test_metadata_filters_in_the_engine(there) -> None:
    hits = there.search(QUERIES[2], 10, budget=30, filter={"parity": 1})
    assert {hit.item.metadata["parity"] for hit in hits} == {1}
    assert there.search(QUERIES[2], 10, budget=1000, filter={"parity": 1}).trace.calls == 200
    with pytest.raises(EmptyInput):
        there.search(QUERIES[2], 10, budget=30, filter={"parity": 7})
    with pytest.raises(InputError):
        there.search(QUERIES[2], 10, budget=30, filter=lambda item: True)


def test_what_needs_a_prediction_of_every_item_is_refused_with_the_reason(there) -> None:
    for method in ("adacur", "anncur", "exact", Gaussian(keep_predictions="last")):
        with pytest.raises(InputError):
            there.search(QUERIES[0], 5, budget=400, method=method)
    with pytest.raises(UnknownName):
        there.search(QUERIES[0], 5, budget=40, first="bm25")
    with pytest.raises(InputError), there.edit():
        pass


class Flaky(MemoryStore):
    """Stops answering after some questions."""

    answers = 10**9

    def best(self, vector: str, questions: Any, **options: Any) -> list[Found]:
        if Flaky.answers <= 0:
            raise EngineUnavailable(f"{self.name} does not answer.")
        Flaky.answers -= 1
        return super().best(vector, questions, **options)


def test_a_search_ends_with_what_it_has_where_the_engine_stops_answering() -> None:
    Flaky.answers = 10**9
    there = searched(as_it_is(Flaky))
    Flaky.answers = 2
    with pytest.warns(EngineWarning):
        hits = there.search(QUERIES[0], 5, budget=50, first="dense", method=Gaussian(rounds=5, first_batch=0.2))
    assert (hits.trace.stopped, hits.trace.calls, len(hits)) == ("engine", 20, 5)
    Flaky.answers = 0
    with pytest.raises(EngineUnavailable):
        there.search(QUERIES[0], 5, budget=50, first="dense")


class RankedByWords(MemoryStore):
    """Its words add up: an item has a number for each."""

    adds_words = True

    def words(self, text: str, n: int, *, where: Any = None) -> Found:
        words = text.lower().split()
        values = np.array([sum(item.text.split().count(word) for word in words) for item in ITEMS], dtype=np.float64)
        order = np.argsort(-values, kind="stable")[: min(n, np.count_nonzero(values))]
        return Found(order.tolist(), values[order])


def test_the_word_that_matters_to_the_scorer_is_learned_where_the_engine_ranks_by_words(monkeypatch) -> None:
    def only_violin(pairs: Any) -> list[float]:
        return [float(item.split().count("violin")) for _, item in pairs]

    found = []
    for kind in (False, True):
        monkeypatch.setattr(RankedByWords, "adds_words", kind)
        store = RankedByWords(ITEMS, {"": np.ones((len(ITEMS), 2), np.float32)})
        hits = search_in(store, scorer=only_violin).search("moss violin stone", 20, budget=40)
        assert hits.trace.calls == 40
        found.append(sum(hit.score for hit in hits))
    assert found[1] > found[0]


def test_a_collection_without_an_encoder_starts_from_words() -> None:
    found = search_in(as_it_is(), scorer=scorer)
    assert found.first_stages == ("words",)
    hits = found.search("violin moss", 5, budget=40)
    assert (hits.trace.calls, hits.trace.settings["method"]) == (40, "gaussian")


def test_another_encoder_than_the_one_of_the_vectors_is_refused() -> None:
    class Other(LetterPairEncoder):
        def encode_items(self, texts: Any) -> np.ndarray:
            return np.roll(super().encode_items(texts), 17, axis=1)

    class Longer(LetterPairEncoder):
        dimension = 65

    with pytest.raises(InputError):
        search_in(as_it_is(), scorer=scorer, encoder=Other())
    with pytest.raises(InputError):
        search_in(as_it_is(), scorer=scorer, encoder=Longer())
    with pytest.raises(UnknownName):
        search_in(as_it_is(), scorer=scorer, vector="nosuch")


def test_an_engine_is_asked_once_a_round_for_all_queries() -> None:
    asked: list[int] = []

    class Counting(MemoryStore):
        def best(self, vector: str, questions: Any, **options: Any) -> list[Found]:
            asked.append(len(questions))
            return super().best(vector, questions, **options)

    searched(as_it_is(Counting)).search(QUERIES, 5, budget=50, first="dense", method=Gaussian(rounds=5))
    assert asked == [len(QUERIES), *[2 * len(QUERIES)] * 4]


def without_vectors() -> MemoryStore:
    return MemoryStore(ITEMS, {})


def test_a_question_without_a_word_in_common_has_no_hits_and_harms_no_other() -> None:
    found = search_in(without_vectors(), scorer=scorer)
    assert found.snapshot.default_method == "rerank"
    some = found.search(["violin", "zzz"], 5, budget=20, filter={"parity": 1})
    assert [len(hits) for hits in some] == [5, 0]
    assert len(found.search("zzz", 5, budget=20, filter={"parity": 1})) == 0
    assert [len(hits) for hits in found.search_iter("zzz", 5, budget=20, filter={"parity": 1})] == [0]


def test_re_ranking_within_all_items_is_exact() -> None:
    found = search_in(without_vectors(), scorer=scorer)
    hits = found.search("violin moss", 5, budget=1000)
    best = np.argsort(-scorer([("violin moss", item.text) for item in ITEMS]))[:5]
    assert (set(hits.ids), hits.trace.calls) == ({ITEMS[at].id for at in best}, 400)


class Emptied(MemoryStore):
    """Forgets some items when they are asked for."""

    gone: ClassVar[set[Any]] = set()

    def items(self, keys: Any) -> Any:
        return {key: item for key, item in super().items(keys).items() if key not in Emptied.gone}


def test_a_round_whose_items_have_all_gone_does_not_end_the_search(index) -> None:
    Emptied.gone = set()
    there = searched(as_it_is(Emptied))
    for method in (Gaussian(rounds=4, first_batch=0.25), "rerank"):
        Emptied.gone = set()
        before = there.search(QUERIES[3], 5, budget=40, first="dense", method=method)
        first = [item.id for item in before.trace.rounds[0].items]
        Emptied.gone = set(index.items.positions(first).tolist())
        hits = there.search(QUERIES[3], 5, budget=40, first="dense", method=method)
        assert (len(hits), hits.trace.calls) == (5, 40)
    Emptied.gone = set()


def test_silence_is_told_wherever_it_comes(monkeypatch) -> None:
    Flaky.answers = 10**9
    there = searched(as_it_is(Flaky))
    method = Gaussian(rounds=5, first_batch=0.2)
    Flaky.answers = 2
    with pytest.warns(EngineWarning):
        last = list(there.search_iter(QUERIES[0], 5, budget=50, first="dense", method=method))[-1]
    assert (last.trace.stopped, last.trace.calls) == ("engine", 20)
    Flaky.answers = 1
    with pytest.warns(EngineWarning):
        hits = there.search(QUERIES[0], 5, budget=50, first="dense", method=Stopping(rounds=5, stop_when=0.99))
    assert hits.trace.stopped == "engine"
    assert hits.trace.calls > 0
    # The second group of queries cannot even begin.
    monkeypatch.setattr("adacur.search.rounds._PAIRS_AT_ONCE", 50)
    Flaky.answers = 5
    with pytest.warns(EngineWarning):
        some = there.search(QUERIES[:3], 5, budget=50, first="dense", method=method)
    assert [(len(one), one.trace.stopped) for one in some] == [(5, "budget"), (0, "engine"), (0, "engine")]
    Flaky.answers = 10**9


def test_how_queries_are_grouped_changes_no_answer_from_joined_stages(there) -> None:
    for method in ("gaussian", "rerank"):
        together = there.search(QUERIES, 5, budget=40, method=method, first="dense+words")
        for query, hits in zip(QUERIES, together, strict=True):
            alone = there.search(query, 5, budget=40, method=method, first="dense+words")
            assert [set(names) for names in scored(alone)] == [set(names) for names in scored(hits)]


def test_what_works_on_the_folder_says_so(there, tmp_path) -> None:
    with pytest.raises(InputError):
        adacur.tune(there, k=5, budget=30)
    with pytest.raises(InputError):
        there.save(tmp_path / "copy")
    with pytest.raises(InputError):
        there.first_stage("dense")


def test_items_that_come_later_are_counted_where_all_can_be_afforded() -> None:
    store = as_it_is()
    found = search_in(store, scorer=scorer, encoder=LetterPairEncoder())
    more = [Item(f"late{at}", f"violin moss {at}") for at in range(10)]
    store.put(more, {"": LetterPairEncoder().encode_items([item.text for item in more])})
    assert found.search(QUERIES[0], 5, budget=1000).trace.calls == 410


def test_a_store_that_was_opened_by_its_url_is_closed_with_the_index(tmp_path) -> None:
    items = [Item(str(at), item.text) for at, item in enumerate(ITEMS[:50])]
    store = InLanceDB(tmp_path).filled("things", items, {"dense": VECTORS[:50]})
    for _ in range(2):
        with adacur.load(store.name, scorer=scorer, encoder=LetterPairEncoder()) as opened:
            assert len(opened.search(QUERIES[0], 3, budget=20)) == 3


def test_a_collection_takes_no_options_of_folders() -> None:
    with pytest.raises(InputError):
        adacur.load("qdrant://:memory:/x")
    with pytest.raises(InputError):
        adacur.load("qdrant://:memory:/x", scorer=scorer, device="cpu")


def test_texts_in_another_field_are_refused_and_the_fields_named() -> None:
    items = [Item(item.id, "", {"body": item.text}) for item in ITEMS[:40]]
    with pytest.raises(InputError):
        searched(MemoryStore(items, {"": VECTORS[:40]}))


def test_items_without_a_word_are_not_scored_and_not_built_from() -> None:
    from adacur.data import DataWarning
    from adacur.extras.engines.engine_index import StoreItems

    items = [Item(item.id, " " if at % 10 == 0 else item.text) for at, item in enumerate(ITEMS[:60])]
    store = MemoryStore(items, {"": VECTORS[:60]})
    hits = searched(store).search(QUERIES[0], 10, budget=60)
    assert hits.trace.calls == 54
    assert all(hit.item.text.strip() for hit in hits)
    with pytest.warns(DataWarning):
        assert len(list(StoreItems(store))) == 54


def test_vectors_of_another_text_are_told() -> None:
    class Noisy(LetterPairEncoder):
        def encode_items(self, texts: Any) -> np.ndarray:
            vectors = super().encode_items(texts)
            noise = np.random.default_rng(5).normal(size=vectors.shape)
            return vectors + 0.09 * noise.astype(np.float32)

    with pytest.warns(EngineWarning):
        search_in(as_it_is(), scorer=scorer, encoder=Noisy())


def test_rows_of_another_size_end_a_search_with_a_clear_error() -> None:
    class Wider(MemoryStore):
        def rows(self, vector: str, keys: Any) -> Any:
            extra = 1 if len(keys) < 200 else 0
            return {key: np.append(row, np.zeros(extra)) for key, row in super().rows(vector, keys).items()}

    found = searched(as_it_is(Wider), check=False)
    with pytest.raises(EngineUnavailable):
        found.search(QUERIES[0], 5, budget=30)
