"""BM25 over words, by bm25s."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adacur.budget import check_k
from adacur.data.stored import read_json
from adacur.errors import DamagedIndex, EmptyInput, UnknownName
from adacur.first_stages.placing import best_by_id
from adacur.first_stages.saved import check_ids, read_ids, read_settings, unreadable_is_damage, write_settings
from adacur.protocols import FirstStage, Ranking
from adacur.records import Item, Query, as_queries

_NOT_THERE = "The BM25 files name an item that is not there. Build it again."
_NO_NUMBER = "The BM25 files hold a score that is NaN or infinite. Build it again."


class BM25(FirstStage):
    """Lucene's BM25 (k1 1.5, b 0.75). Items that share no word with the query are not returned."""

    name = "bm25"
    knows_words = True

    def __init__(
        self, ids: Sequence[str], model: Any, *, stemmer: str | None, stopwords: str | list[str] | None
    ) -> None:
        self._ids = ids
        self._model = model
        self._stemmer = stemmer
        self._stopwords = stopwords

    @property
    def ids(self) -> Sequence[str]:
        """The ids of its items, by position."""
        return self._ids

    @classmethod
    def build(
        cls,
        items: Iterable[Item],
        *,
        stemmer: str | None = "english",
        stopwords: str | Sequence[str] | None = "english",
        **unused: Any,
    ) -> BM25:
        """Index the items, read once.

        - `stemmer`: a Snowball language, or None;
        - `stopwords`: a language, the words themselves, or None.
        """
        bm25s = _bm25s()

        stopwords = stopwords if isinstance(stopwords, str | None) else list(stopwords)
        ids: list[str] = []

        def texts() -> Iterator[str]:
            for item in items:
                ids.append(item.id)
                yield item.text

        tokens = _tokenise(texts(), stemmer=stemmer, stopwords=stopwords, return_ids=True)
        checked = check_ids(ids)
        if not tokens.vocab:
            raise EmptyInput(
                "BM25 needs words of two letters or more that are not stopwords; no item has one. "
                "Try stopwords=None, or another first stage."
            )
        # bm25s numbers words in the order of a set, which differs between processes; sorted, equal input
        # writes equal files.
        vocabulary = {word: number for number, word in enumerate(sorted(tokens.vocab))}
        renumbered = {old: vocabulary[word] for word, old in tokens.vocab.items()}
        model = bm25s.BM25()
        model.index(
            ([[renumbered[token] for token in words] for words in tokens.ids], vocabulary),
            create_empty_token=False,
            show_progress=False,
        )
        return cls(checked, model, stemmer=stemmer, stopwords=stopwords)

    def updated(self, items: Iterable[Item], **unused: Any) -> BM25:
        """Other items, with the same settings; words are weighed by all items, so all are read anew."""
        return BM25.build(items, stemmer=self._stemmer, stopwords=self._stopwords)

    def settings(self) -> dict[str, Any]:
        """The stemmer and the stopwords."""
        return {"stemmer": self._stemmer, "stopwords": self._stopwords}

    def search(self, queries: Sequence[Query | str], k: int) -> list[Ranking]:
        """At most k items per query that share a word with it."""
        check_k(k)
        answers = []
        for known in self._known_words(queries):
            try:
                scores = np.asarray(self._model.get_scores(known) if known else np.zeros(0, dtype=np.float32))
            except IndexError as error:
                raise DamagedIndex(_NOT_THERE) from error
            if not np.isfinite(scores).all():
                raise DamagedIndex(_NO_NUMBER)
            best = best_by_id(scores, self._ids, min(k, int(np.count_nonzero(scores > 0))))
            answers.append(Ranking(best, scores[best]))
        return answers

    def terms(self, queries: Sequence[Query | str], k: int) -> list[list[Ranking]]:
        """Per query, what each of its known words adds to the scores of the k items that it adds most to."""
        known, numbers = self._known_words(queries), self._model.vocab_dict
        return [[self._postings(numbers[word], k) for word in dict.fromkeys(words)] for words in known]

    def _known_words(self, queries: Sequence[Query | str]) -> list[list[str]]:
        texts = [query.text for query in as_queries(queries)]
        tokens = _tokenise(texts, stemmer=self._stemmer, stopwords=self._stopwords, return_ids=False)
        return [[word for word in words if word in self._model.vocab_dict] for words in tokens]

    def _postings(self, word: int, k: int) -> Ranking:
        start, stop = self._model.scores["indptr"][word : word + 2].tolist()
        positions, values = (np.asarray(self._model.scores[name][start:stop]) for name in ("indices", "data"))
        if len(positions) and not 0 <= positions.min() <= positions.max() < len(self._ids):
            raise DamagedIndex(_NOT_THERE)
        if not np.isfinite(values).all():
            raise DamagedIndex(_NO_NUMBER)
        if len(values) > k:
            kept = np.argpartition(-values, k)
            # Beyond the last that counts nothing is added, and just before it next to nothing.
            positions, values = positions[kept[:k]], values[kept[:k]] - values[kept[k]]
        return Ranking(positions.astype(np.intp), values.astype(np.float64))

    def save(self, folder: str | Path) -> None:
        """Write bm25s's own files, the ids and the settings."""
        folder = Path(folder)
        self._model.save(folder / "bm25s", show_progress=False)
        write_settings(folder, kind=self.name, ids=self._ids, settings=self.settings())

    @classmethod
    def load(cls, folder: str | Path, **unused: Any) -> BM25:
        """Open a saved BM25; its postings stay on disk, memory-mapped."""
        bm25s = _bm25s()

        folder = Path(folder)
        settings = read_settings(folder)
        with unreadable_is_damage(folder, "BM25"):
            _check_parameters(folder / "bm25s")
            model = bm25s.BM25.load(folder / "bm25s", mmap=True, show_progress=False)
            _check_postings(model)
            ids = read_ids(folder)
            stemmer, stopwords = settings["stemmer"], settings["stopwords"]
            words = stopwords if isinstance(stopwords, list) else [stopwords]
            if not all(isinstance(word, str | None) for word in (stemmer, *words)):
                raise ValueError(f"stemmer is {stemmer!r} and stopwords are {stopwords!r}")
        n_items = model.scores["num_docs"]
        if len(ids) != n_items:
            raise DamagedIndex(f"The BM25 files in {folder} disagree: {len(ids)} ids, {n_items} items. Build it again.")
        return cls(ids, model, stemmer=stemmer, stopwords=stopwords)


def _bm25s() -> Any:
    """The library, imported without JAX, which it would begin with: JAX takes most of a GPU's memory when it begins."""
    hidden = [name for name in ("jax", "jax.lax") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        import bm25s
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
    return bm25s


def _check_parameters(folder: Path) -> None:
    """Refuse settings that `build` does not choose: some would have bm25s compile code, or trust numbers unchecked."""
    given = read_json(folder / "params.index.json")
    chosen = {"method": "lucene", "idf_method": "lucene", "dtype": "float32", "int_dtype": "int32", "backend": "numpy"}
    numbers = ("k1", "b", "delta", "num_docs")
    if other := sorted(set(given) - {*chosen, *numbers, "version"}):
        raise ValueError(f"there is no parameter {other[0]!r}")
    for name, value in chosen.items():
        if given.get(name, value) != value:
            raise ValueError(f"the parameter {name} is {given[name]!r}, not {value!r}")
    for name in numbers:
        if isinstance(given.get(name, 1), bool) or not isinstance(given.get(name, 1), int | float):
            raise ValueError(f"the parameter {name} is {given[name]!r}, not a number")


def _check_postings(model: Any) -> None:
    data, indices, starts = (model.scores[name] for name in ("data", "indices", "indptr"))
    if data.dtype.kind != "f" or indices.dtype.kind != "i" or starts.dtype.kind != "i":
        raise ValueError(f"the postings are {data.dtype}, {indices.dtype} and {starts.dtype}")
    if starts[0] != 0 or (np.diff(starts) < 0).any() or not starts[-1] == len(data) == len(indices):
        raise ValueError(f"{len(data)} scores and {len(indices)} items do not fit the words")
    numbers = model.vocab_dict.values()
    if not all(type(number) is int and 0 <= number < len(starts) - 1 for number in numbers):
        raise ValueError(f"a word has a number that is not among the {len(starts) - 1} of the postings")


def _tokenise(texts: Iterable[str], *, stemmer: str | None, stopwords: str | list[str] | None, return_ids: bool) -> Any:
    import bm25s
    import Stemmer

    if stemmer is not None and stemmer not in Stemmer.algorithms(aliases=True):
        raise UnknownName(f"No stemmer is called {stemmer!r}; known: {', '.join(Stemmer.algorithms())}, or None.")
    try:
        bm25s.tokenize([], stopwords=stopwords, show_progress=False)
    except ValueError as error:
        raise UnknownName(
            f"No list of stopwords is called {stopwords!r}. Pass the words themselves, or None."
        ) from error
    return bm25s.tokenize(
        texts,
        stopwords=stopwords,
        # A new stemmer per call: PyStemmer's objects must not be shared between threads.
        stemmer=None if stemmer is None else Stemmer.Stemmer(stemmer),
        return_ids=return_ids,
        show_progress=False,
    )
