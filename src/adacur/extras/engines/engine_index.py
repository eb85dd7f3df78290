"""An index whose items live in a vector engine: a collection, searched where it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.data import DataWarning
from adacur.errors import EngineRefused, InputError, UnknownName
from adacur.extras.engines.checked_store import CheckedStore
from adacur.extras.engines.engine_items import EngineFirst, EngineItems, EngineStage, EngineWarning, Outline
from adacur.extras.engines.engine_search import InEngine
from adacur.extras.engines.store_urls import open_store
from adacur.extras.engines.vector_store import Key, VectorStore
from adacur.extras.server.search_log import SearchLog
from adacur.first_stages import AnyStage
from adacur.first_stages.encoders import Encoder, RememberedQueries
from adacur.first_stages.encoders import encoder as open_encoder
from adacur.first_stages.joined import SEPARATOR
from adacur.model import GaussianModel
from adacur.protocols import AnchorScores, Items, ScorerCard
from adacur.records import Item, Query
from adacur.scorers.by_name import scorer as open_scorer
from adacur.search.filters import Filter
from adacur.search.finish import Documents
from adacur.search.index import AnchorIndex
from adacur.search.methods import Method
from adacur.search.snapshot import Snapshot
from adacur.spelling import did_you_mean
from adacur.store import AnchorTable

# The mean and the variance of vectors are read from all rows of a collection of at most this size, whose searches then
# equal those in memory; in a larger one, this many sampled rows are enough to estimate them.
_ALL_ROWS, _SAMPLE = 8192, 2048
# Texts that show whether an encoder made the vectors of a collection, and the cosines below which it is refused, or
# warned of.
_TEXTS_TO_RECOGNISE, _LEAST_COSINE, _USUAL_COSINE = 8, 0.5, 0.9
_TEXTS_TO_CHECK = 32
_PAGE = 1000
METHODS_IN_ENGINES = ("gaussian", "rerank", "first")


class StoreItems(Items):
    """The items of a collection: they can be counted and iterated, and have no positions.

    With `limit`, a sample of so many. Iterating skips items without a word, with a `DataWarning`.
    """

    def __init__(self, store: VectorStore, *, limit: int | None = None) -> None:
        self._store, self._limit = store, limit
        self.text_fields = store.text_fields

    @cached_property
    def _length(self) -> int:
        n_items = self._store.count()
        return n_items if self._limit is None else min(n_items, self._limit)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        wordless = []
        keys = self._store.sample(len(self))
        for start in range(0, len(keys), _PAGE):
            for item in self._store.items(keys[start : start + _PAGE]).values():
                if item.text.strip():
                    yield item
                else:
                    wordless.append(item.id)
        if wordless:
            some = ", ".join(map(repr, wordless[:3])) + (", …" if len(wordless) > 3 else "")
            left_out = f"{len(wordless)} items without a word are left out ({some})"
            warnings.warn(f"{self._store.name}: {left_out}.", DataWarning, stacklevel=2)

    def _refused(self, *_: Any) -> NoReturn:
        raise InputError(f"The items are in {self._store.name}, where they have no positions. Iterate over them.")

    ids = keys = property(_refused)

    def at(self, positions: Iterable[int]) -> list[Item]:
        return self._refused()

    def positions(self, ids: Iterable[str]) -> IntArray:
        return self._refused()


def items_in(url: str, *, limit: int | None = None) -> StoreItems:
    """The items of the collection at a URL, or the first of them."""
    store = open_store(url)
    _check_texts(store)
    return StoreItems(store, limit=limit)


def _check_texts(store: VectorStore) -> None:
    """Refuse a collection most of whose items have no text: the field must have another name."""
    items = list(store.items(list(store.sample(_TEXTS_TO_CHECK))).values())
    wordless = sum(not item.text.strip() for item in items)
    if items and 2 * wordless > len(items):
        fields = ", ".join(repr(name) for name in dict.fromkeys(name for item in items for name in item.metadata))
        named = ", ".join(map(repr, store.text_fields or ("text",)))
        raise InputError(
            f"{wordless} of {len(items)} items of {store.name} have no text in {named}. They have: "
            f"{fields or 'nothing'}. Name the field of the text: text=…, or ?text= in the URL."
        )


class EngineSnapshot(Snapshot):
    """A snapshot whose first stages and vectors live in an engine; `opened` is closed with it."""

    def __init__(
        self,
        anchors: AnchorScores,
        *,
        engine: EngineItems,
        stages: Sequence[EngineStage],
        embed_queries: Callable[[Sequence[Query]], FloatArray] | None,
        opened: ExitStack,
    ) -> None:
        super().__init__(anchors, first={stage.name: stage for stage in stages})
        self.engine = engine
        self._embed_queries, self._opened = embed_queries, opened

    def close(self) -> None:
        self._opened.close()

    def save(self, path: Path, *, card: ScorerCard | None) -> None:
        raise InputError(f"The items of this index are in {self.engine.store.name}, and stay there.")

    def first_stage(self, name: str) -> NoReturn:
        raise InputError(f"The first stages of this index are in {self.engine.store.name}, and search there.")

    @property
    def first_stages(self) -> tuple[str, ...]:
        return (*self._first, *((self.all_joined,) if self.all_joined else ()))

    @property
    def default_first(self) -> str:
        return self.all_joined or next(iter(self._first))

    @property
    def methods(self) -> tuple[str, ...]:
        return ("rerank", "first") if self.engine.outline is None else METHODS_IN_ENGINES

    @property
    def in_memory(self) -> bool:
        return False

    def documents(self) -> tuple[Documents, ...]:
        return ()

    @property
    def default_method(self) -> str:
        return "rerank" if self.engine.outline is None else "gaussian"

    def place(self, method: Method, filter_: Filter | None) -> InEngine:
        """The collection; refuses what would need a value for every item, or vectors where there are none."""
        name = self.engine.store.name
        if method.name not in self.methods:
            lacks = "vectors to predict from" if method.name in METHODS_IN_ENGINES else "a prediction of every item"
            raise EngineRefused(
                f"Method {method.name!r} needs {lacks}, which {name} does not give. Search with "
                f"{' or '.join(f'method={one!r}' for one in self.methods)}."
            )
        if getattr(method, "keep_predictions", False):
            raise EngineRefused(f"keep_predictions needs a prediction of every item, which {name} does not give.")
        if callable(filter_):
            raise EngineRefused(
                f"{name} cannot run a function on its items. Filter by metadata, filter={{'lang': 'en'}}, or by what "
                "the engine itself takes."
            )
        return InEngine(self.engine.filtered(filter_))

    def stage(self, first: str | AnyStage | None) -> Any:
        if first is None:
            first = self.default_first
        names = sorted(first.split(SEPARATOR)) if isinstance(first, str) else [""]
        if len(set(names)) < len(names) or not set(names) <= set(self._first):
            near, there = did_you_mean(str(first), self.first_stages), ", ".join(self.first_stages)
            raise UnknownName(f"This index has no first stage {str(first)[:60]!r}.{near} It has: {there}.")
        return EngineFirst(SEPARATOR.join(names), tuple(self._first[name] for name in names))

    def ranked_by_all(self, first: Any) -> Any:
        return first

    def gaussian_model(self) -> GaussianModel:
        return GaussianModel(embed_queries=self._embed_queries)


def search_in(
    store: VectorStore | str,
    *,
    scorer: Any,
    encoder: Any = None,
    vector: str | None = None,
    exact: bool = True,
    check: bool = True,
    log: str | Path | SearchLog | None = None,
) -> AnchorIndex:
    """Search the items of a collection where they are: no index is built, and nothing is written there.

    Searches start from the engine's nearest vectors and from its search for words, as far as it has them, and predict
    from the vectors.

    - `store`: a `QdrantStore`, `LanceStore`, `PostgresStore`, or a URL: "qdrant://localhost:6333/articles";
    - `scorer`: anything that `adacur.scorer` opens;
    - `encoder`: the dual encoder that made the vectors; without it searches start from words alone;
    - `vector`: the name of the vector, where the collection has several of the encoder's size;
    - `exact`: False lets the engine use an index that may miss some items;
    - `check`: compare the encoder's vectors of a few items with those stored;
    - `log`: a `SearchLog` or its file, to which every search writes its query and what it paid for.
    """
    search_log = SearchLog(log) if isinstance(log, str | Path) else log
    with ExitStack() as opened:
        checked = opened.enter_context(closing(open_store(store))) if isinstance(store, str) else CheckedStore(store)
        judge, dual = open_scorer(scorer), open_encoder(encoder)
        chosen = _vector_of(checked, checked.vector if vector is None else vector, dual)
        n_items = checked.count()
        if not n_items:
            raise InputError(f"{checked.name} has no items.")
        _check_texts(checked)
        outline, embed_queries = None, None
        if chosen is not None:
            sample = checked.sample(n_items if n_items <= _ALL_ROWS else _SAMPLE)
            rows = checked.rows(chosen, sample)
            if not rows:
                raise InputError(f"None of {len(sample)} items of {checked.name} has the vector {chosen!r}.")
            outline = Outline.of(np.stack(list(rows.values())))
            if dual is not None:
                if check:
                    _recognise(dual, checked, sample[:: max(1, len(sample) // _TEXTS_TO_RECOGNISE)], rows)
                embed_queries = RememberedQueries(lambda: dual).embed
        engine = EngineItems(checked, n_items, chosen or "", outline, exact=exact)
        table = AnchorTable.of_items(StoreItems(checked))
        snapshot = EngineSnapshot(
            table,
            engine=engine,
            stages=_stages(engine, embed_queries),
            embed_queries=embed_queries,
            opened=opened.pop_all(),
        )
        return AnchorIndex(table, scorer=judge, card=judge.card, snapshot=snapshot, log=search_log)


def _stages(engine: EngineItems, embed_queries: Callable[[Sequence[Query]], FloatArray] | None) -> list[EngineStage]:
    """The first stages that an engine offers: "dense" where queries can be embedded, "words" where it searches them."""
    store, stages = engine.store, []
    if embed_queries is not None:
        stages.append(EngineStage("dense", store, engine.vector, embed_queries, exact=engine.exact))
    try:
        store.words("a", 1)
        stages.append(EngineStage("words", store))
    except InputError as error:
        if not stages:
            raise InputError(
                f"There is nothing to start a search of {store.name} from: no encoder was given, and {error} "
                "Give encoder=…, the dual encoder that made the vectors."
            ) from error
    return stages


def _vector_of(store: VectorStore, vector: str | None, encoder: Encoder | None) -> str | None:
    """The name of the vector to search by; None if the collection has none."""
    sizes = store.dimensions()
    seen = ", ".join(f"{name!r} with {size} numbers" for name, size in sizes.items()) or "none"
    if vector is not None and vector not in sizes:
        raise UnknownName(f"{store.name} has no vector {vector!r} that can be searched. It has: {seen}.")
    fitting = [
        name
        for name, size in sizes.items()
        if (vector is None or name == vector) and (encoder is None or size == encoder.dimension)
    ]
    if len(fitting) > 1:
        raise InputError(
            f"{store.name} has several vectors that would do: {seen}. Name one: vector=…, or ?vector= in its URL."
        )
    if not fitting and encoder is not None:
        raise InputError(
            f"The encoder's vectors have {encoder.dimension} numbers, and no vector of {store.name} has as many: "
            f"{seen}. Give the encoder that made them."
        )
    return fitting[0] if fitting else None


def _recognise(encoder: Encoder, store: VectorStore, keys: Sequence[Key], rows: Mapping[Key, FloatArray]) -> None:
    """Refuse an encoder whose vectors of a few items are not those stored."""
    items = {key: item for key, item in store.items(list(keys)).items() if key in rows and item.text.strip()}
    if not items:
        return
    made = np.asarray(encoder.encode_items([item.text for item in items.values()]), dtype=np.float64)
    there = np.stack([rows[key] for key in items]).astype(np.float64)
    lengths = np.linalg.norm(made, axis=1) * np.linalg.norm(there, axis=1)
    cosine = float(np.median((made * there).sum(axis=1) / np.where(lengths > 0, lengths, 1.0)))
    if cosine < _LEAST_COSINE:
        raise InputError(
            f"The encoder did not make the vectors of {store.name}: of {len(items)} items its own have a cosine of "
            f"{cosine:.2f} with those stored. Give the one that did, or the field of the text that it was given; "
            "check=False goes on all the same."
        )
    if cosine < _USUAL_COSINE:
        warnings.warn(
            f"Of {len(items)} items of {store.name}, the encoder's vectors have a cosine of {cosine:.2f} with those "
            "stored. Were they made of another text, or by another encoder?",
            EngineWarning,
            stacklevel=3,
        )
