"""TF-IDF over words or letters, by scikit-learn."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.budget import check_k
from adacur.data.stored import read_array, read_json
from adacur.errors import DamagedIndex, EmptyInput, InputError, UnknownName
from adacur.first_stages.placing import best_by_id
from adacur.first_stages.saved import check_ids, read_ids, read_settings, unreadable_is_damage, write_settings
from adacur.protocols import FirstStage, Ranking
from adacur.records import Item, Query, as_queries

__all__ = ["TfIdf"]

Analyzer = Literal["word", "char", "char_wb"]
_ANALYZERS = ("word", "char", "char_wb")
# With the kinds of numbers in them.
_ARRAYS = {"idf": "f", "offsets": "i", "positions": "i", "weights": "f"}


class TfIdf(FirstStage):
    """The paper's TF-IDF: dot products of sparse vectors of length 1, weighted by the items' own statistics.

    Items that share no term with the query are not returned. Scores depend neither on the batch nor on the order of
    the items.
    """

    name = "tfidf"

    def __init__(
        self,
        ids: Sequence[str],
        *,
        terms: Sequence[str],
        idf: FloatArray,
        offsets: IntArray,
        positions: IntArray,
        weights: FloatArray,
        analysis: dict[str, Any],
    ) -> None:
        text = _scikit_learn_text()
        self._ids = ids
        self._terms = terms
        self._idf = idf
        # Term-major: term t occurs in the items positions[offsets[t] : offsets[t + 1]].
        self._offsets = offsets
        self._positions = positions
        self._weights = weights
        self._analysis = analysis
        options = _options(analysis) | {"sublinear_tf": analysis["sublinear"]}
        self._vectorizer = text.TfidfVectorizer(vocabulary=terms, **options)
        self._vectorizer.idf_ = np.asarray(idf)

    @classmethod
    def build(
        cls,
        items: Iterable[Item],
        *,
        analyzer: Analyzer = "word",
        ngrams: tuple[int, int] = (1, 1),
        stopwords: Literal["english"] | Sequence[str] | None = None,
        sublinear: bool = False,
        **unused: Any,
    ) -> TfIdf:
        """Index the items, read once; as it stands, with the settings of the paper's authors.

        A term is a run of `ngrams` (least, most) words of two letters or more, or of letters: across words ("char") or
        inside them ("char_wb"). `sublinear` counts a term that occurs n times as 1 + log n.
        """
        text = _scikit_learn_text()
        analysis = _checked(analyzer, ngrams, stopwords) | {"sublinear": sublinear}
        ids: list[str] = []

        def texts() -> Iterator[str]:
            for item in items:
                ids.append(item.id)
                yield item.text

        counter = text.CountVectorizer(**_options(analysis))
        try:
            counts = counter.fit_transform(texts())
        except ValueError as error:
            check_ids(ids)
            raise EmptyInput(
                f"TF-IDF needs a term in at least one item; none has one ({error}). "
                "Try stopwords=None, smaller ngrams, or another first stage."
            ) from error
        checked = check_ids(ids)
        # The vectorizer renumbers terms in place; in the order of the terms, sums do not depend on that of the items.
        counts.has_sorted_indices = False
        counts.sort_indices()
        weighting = text.TfidfTransformer(sublinear_tf=sublinear).fit(counts)
        postings = weighting.transform(counts, copy=False).tocsc()
        return cls(
            checked,
            terms=sorted(counter.vocabulary_),
            idf=weighting.idf_,
            offsets=postings.indptr.astype(np.int64),
            positions=postings.indices,
            weights=postings.data.astype(np.float32),
            analysis=analysis,
        )

    @property
    def ids(self) -> Sequence[str]:
        """The ids of its items, by position."""
        return self._ids

    def settings(self) -> dict[str, Any]:
        """How texts are cut into terms, and terms counted."""
        return dict(self._analysis)

    def updated(self, items: Iterable[Item], **unused: Any) -> TfIdf:
        """Other items, with the same settings; terms are weighed by all items, so all are read anew."""
        least, most = self._analysis["ngrams"]
        return TfIdf.build(items, **self._analysis | {"ngrams": (least, most)})

    def search(self, queries: Sequence[Query | str], k: int) -> list[Ranking]:
        """At most k items per query that share a term with it."""
        check_k(k)
        queries = as_queries(queries)
        if not queries:
            return []
        vectors = self._vectorizer.transform([query.text for query in queries])
        return [
            self._search(vectors.indices[start:stop], vectors.data[start:stop], k)
            for start, stop in zip(vectors.indptr, vectors.indptr[1:], strict=False)
        ]

    def _search(self, terms: IntArray, weights: FloatArray, k: int) -> Ranking:
        if not len(terms):
            return Ranking(np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.float32))
        scores = np.zeros(len(self._ids))
        for term, weight in zip(terms.tolist(), weights.tolist(), strict=True):
            posting = slice(self._offsets[term], self._offsets[term + 1])
            try:
                scores[self._positions[posting]] += weight * self._weights[posting].astype(np.float64)
            except IndexError as error:
                raise DamagedIndex(
                    f"The TF-IDF files name an item that is not there ({error}). Build it again."
                ) from error
        best = best_by_id(scores, self._ids, min(k, int(np.count_nonzero(scores > 0))))
        return Ranking(best, scores[best].astype(np.float32))

    def save(self, folder: str | Path) -> None:
        """Write the terms, the postings, the ids and the settings."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "terms.json").write_text(json.dumps(list(self._terms), ensure_ascii=False), encoding="utf-8")
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, f"_{name}"))
        write_settings(folder, kind=self.name, ids=self._ids, settings=self._analysis | {"n_items": len(self._ids)})

    @classmethod
    def load(cls, folder: str | Path, **unused: Any) -> TfIdf:
        """Open a saved TF-IDF; its postings stay on disk, memory-mapped."""
        folder = Path(folder)
        settings = read_settings(folder)
        with unreadable_is_damage(folder, "TF-IDF"):
            ids = read_ids(folder)
            terms = read_json(folder / "terms.json")
            if len(set(terms)) != len(terms) or not all(isinstance(term, str) for term in terms):
                raise ValueError("terms.json must hold a list of texts, each once")
            arrays = {
                name: read_array(folder / f"{name}.npy", kind=kind, mapped=True) for name, kind in _ARRAYS.items()
            }
            n_postings = int(arrays["offsets"][-1])
            if arrays["offsets"][0] != 0 or (np.diff(arrays["offsets"]) < 0).any():
                raise ValueError("offsets.npy does not ascend from 0")
            least, most = settings["ngrams"]
            analysis = _checked(settings["analyzer"], (least, most), settings["stopwords"])
            analysis["sublinear"] = bool(settings["sublinear"])
        sizes = {name: len(array) for name, array in arrays.items()} | {"ids": len(ids), "terms": len(terms)}
        if (
            not sizes["terms"] == sizes["idf"] == sizes["offsets"] - 1
            or not n_postings == sizes["positions"] == sizes["weights"]
            or settings.get("n_items") != len(ids)
        ):
            raise DamagedIndex(f"The TF-IDF files in {folder} disagree: {sizes}. Build it again.")
        return cls(ids, terms=terms, **arrays, analysis=analysis)


def _scikit_learn_text() -> Any:
    from sklearn.feature_extraction import text

    return text


def _options(analysis: dict[str, Any]) -> dict[str, Any]:
    """The analysis of texts in scikit-learn's words."""
    return {
        "analyzer": analysis["analyzer"],
        "ngram_range": tuple(analysis["ngrams"]),
        "stop_words": analysis["stopwords"],
    }


def _checked(analyzer: str, ngrams: tuple[int, int], stopwords: str | Sequence[str] | None) -> dict[str, Any]:
    if analyzer not in _ANALYZERS:
        raise InputError(f"analyzer is one of {', '.join(_ANALYZERS)}; got {analyzer!r}.")
    least, most = ngrams
    if not 1 <= least <= most:
        raise InputError(f"ngrams are the least and the most words or letters of a term, e.g. (1, 2); got {ngrams}.")
    if isinstance(stopwords, str) and stopwords != "english":
        raise UnknownName(f"No list of stopwords is called {stopwords!r}; 'english' is. Pass the words, or None.")
    if stopwords is not None and analyzer != "word":
        raise InputError(f"Terms of letters know no stopwords; got analyzer={analyzer!r}. Leave stopwords out.")
    return {
        "analyzer": analyzer,
        "ngrams": [least, most],
        "stopwords": stopwords if isinstance(stopwords, str | None) else list(stopwords),
    }
