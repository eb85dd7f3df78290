"""PyTerrier: an index as a transformer and an artifact, and scorer caches as anchor scores."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import EmptyInput, FileFormatError, InputError, UnknownName
from adacur.core.extras import require
from adacur.core.protocols import FirstStage
from adacur.core.records import Item, Query, as_queries
from adacur.core.results import Hits
from adacur.first_stages.opening import encoder as open_encoder
from adacur.index import AnchorTable, IndexFolder, check_scorer, save_table, write_manifest
from adacur.index.copying import version_files
from adacur.index.object_store import refuse_url
from adacur.scorers import scorer as open_scorer
from adacur.search import AnchorIndex, First, load, search_options
from adacur.search.first_stages import add_first_stages, check_first_stages

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Adacur", "import_scorer_cache"]

pt: Any = require("pyterrier", extra="pyterrier")


class Adacur(pt.Artifact, pt.Transformer):  # type: ignore[misc]
    """An index in a PyTerrier pipeline: queries retrieve, and results of a first stage seed the first round.

    `rank` and `iteration`, the round that scored a document, count from 0 as PyTerrier does. With a fused first stage,
    `score` is what the documents are ordered by, and `exact` the scorer's score.

    - `index`: an `AnchorIndex`, or the folder or URL of one, which `scorer`, `encoder` and `trust` open as in
      `adacur.load`: a scorer that is a function or a service must be given, or trusted;
    - `k` and `options`: those of `AnchorIndex.search`.
    """

    ARTIFACT_TYPE = "adacur_index"
    ARTIFACT_FORMAT = "adacur"
    ARTIFACT_PACKAGE_HINT = "adacur"

    def __init__(
        self,
        index: AnchorIndex | str | Path,
        *,
        k: int = 10,
        scorer: Any = None,
        encoder: Any = None,
        trust: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(index, AnchorIndex):
            if scorer is not None or encoder is not None or trust:
                raise InputError("This index is open already, with its scorer and encoder; give them to adacur.load.")
            self.index = index
        else:
            self.index = load(index, scorer=scorer, encoder=encoder, trust=trust)
        super().__init__(pt.Artifact.NO_PATH if self.index.path is None else self.index.path)
        self.k = k
        self.options = options

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """The best k documents of each query."""
        with pt.validate.any(inp, context=self) as accepts:
            accepts.result_frame(extra_columns=["query"], mode="results")
            accepts.query_frame(extra_columns=["query"], mode="queries")
        queries, options = inp.reset_index(drop=True), dict(self.options)
        if accepts.mode == "results":
            first = _GivenResults(queries, self.index)
            # Columns of the documents go: other documents will take their places.
            columns = [column for column in queries.columns if column in pt.model.query_columns(queries)]
            queries = queries[columns].drop_duplicates("qid").reset_index(drop=True)
            options["first"] = (
                replace(given, stage=first) if isinstance(given := options.get("first"), First) else first
            )
        texts = [Query(str(id_), text) for id_, text in zip(queries["qid"], queries["query"], strict=True)]
        answers = self.index.search(texts, self.k, **search_options(self.index, **options)) if texts else []
        return _frame(queries, answers, fused=any(hits.fused is not None for hits in answers))

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"Adacur({self.index!r}, k={self.k}{options})"

    def _package_files(self) -> Iterator[tuple[str, str]]:
        """What `to_hf` and the like pack: the current version, and no locks."""
        refuse_url(self.path, "Packing")
        folder = IndexFolder.open(self.path)
        try:
            for name in version_files(folder):
                yield name, str(folder.path / name)
        finally:
            folder.release()


class _GivenResults:
    """The results of a transformer before this one, as a first stage."""

    name = "given"

    def __init__(self, results: pd.DataFrame, index: AnchorIndex) -> None:
        # Rows may be in any order where they have a rank; a bare list of documents is in order.
        if "rank" in results.columns:
            results = results.sort_values("rank", kind="stable")
        elif "score" in results.columns:
            results = results.sort_values("score", ascending=False, kind="stable")
        scored = "score" in results.columns
        self._results: dict[str, tuple[tuple[str, ...], FloatArray]] = {
            str(id_): (
                tuple(map(str, rows["docno"])),
                rows["score"].to_numpy(dtype=np.float64) if scored else -np.arange(len(rows), dtype=np.float64),
            )
            for id_, rows in results.groupby("qid", sort=False)
        }
        _check_known({id_ for ids, _ in self._results.values() for id_ in ids}, index)

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        """The documents that each query came with."""
        return [
            Hits(query=query, ids=self._results[query.id][0][:k], scores=self._results[query.id][1][:k])
            for query in as_queries(queries)
        ]


def _check_known(given: set[str], index: AnchorIndex) -> None:
    if unknown := sorted(given.difference(index.items.ids)):
        raise UnknownName(
            f"The documents that start a search must be items of the index; {len(unknown)} of the {len(given)} given "
            f"are not, the first {unknown[0]!r}. Give a first stage of the same collection, with the same docnos."
        )


def _frame(queries: pd.DataFrame, answers: Sequence[Hits], *, fused: bool) -> pd.DataFrame:
    """The columns of each query, repeated for each of its documents, and the documents."""
    import pandas as pd

    def column(values: Iterable[Any], dtype: str) -> pd.Series:
        return pd.Series(np.concatenate([np.empty(0, dtype=dtype), *(np.asarray(one, dtype=dtype) for one in values)]))

    rows = np.repeat(np.arange(len(queries)), [len(hits) for hits in answers] if answers else 0)
    exact = column((hits.scores for hits in answers), "float64")
    columns = {
        "docno": column((hits.ids for hits in answers), "object"),
        # Evaluation and every later transformer order by this column.
        "score": column((hits.fused for hits in answers), "float64") if fused else exact,
        "rank": column((range(len(hits)) for hits in answers), "int64"),
        "iteration": column((hits.rounds for hits in answers), "int64") - 1,
    }
    others = queries.drop(columns=[name for name in columns if name in queries.columns])
    return others.iloc[rows].reset_index(drop=True).assign(**columns, **({"exact": exact} if fused else {}))


def import_scorer_cache(
    cache: Any,
    items: Iterable[Item],
    queries: Iterable[Query | str],
    *,
    path: str | Path,
    scorer: Any = None,
    first: Sequence[str | FirstStage] = ("bm25",),
    encoder: Any = None,
    skip_incomplete: bool = False,
) -> AnchorIndex:
    """Make an index of a `pyterrier_caching.Hdf5ScorerCache` (or its folder), without scoring anything again.

    A cache knows queries by a hash of their text and documents by their docno, so both are given: `queries` with the
    very texts that were scored, and `items`, all of which the cache must have.

    - `path`, `first`, `encoder`: as in `adacur.build`;
    - `scorer`: if given, 32 calls make sure that the cached scores are its scores;
    - `skip_incomplete`: leave out queries without a score for every item, instead of refusing them.
    """
    dual = open_encoder(encoder)
    check_first_stages(first, encoder=dual)
    items, anchors = list(items), as_queries(queries)
    scores = _cached_scores(Path(getattr(cache, "path", cache)), items, anchors)
    complete = _complete(scores, anchors, skip_incomplete=skip_incomplete)
    opened = None if scorer is None else open_scorer(scorer)
    table = AnchorTable.from_arrays(
        items=items, anchor_queries=[anchors[row] for row in complete], scores=scores[complete]
    )
    folder = save_table(table, path)
    try:
        if opened is not None:
            # Before the manifest names it: a scorer of that name would not be checked.
            check_scorer(folder, opened)
            write_manifest(folder.path, replace(folder.manifest, scorer=opened.card))
        add_first_stages(first, items=folder.items, path=folder.path, encoder=dual)
        return load(path, scorer=opened, encoder=dual, check=False)
    except BaseException:
        folder.release()
        shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _cached_scores(cache: Path, items: Sequence[Item], anchors: Sequence[Query]) -> FloatArray:
    """Scores of shape (queries, items), NaN where there is none."""
    for file in ("data.h5", "docnos.npids"):
        if not (cache / file).is_file():
            raise FileFormatError(f"{cache} is not the folder of an Hdf5ScorerCache: it has no {file}.")
    h5py, npids = require("h5py", extra="pyterrier"), require("npids", extra="pyterrier")
    docnos = npids.Lookup(cache / "docnos.npids")
    if not items:
        raise EmptyInput("There are no items. Give those that the cache has scores of.")
    columns = np.asarray(docnos.inv[np.array([item.id for item in items])])
    if (unknown := np.flatnonzero(columns < 0)).size:
        raise UnknownName(
            f"Item ids must be docnos of the cache; {len(unknown)} of {len(items)} are not, the first "
            f"{items[int(unknown[0])].id!r}. Give only items that the cache was built for."
        )
    scores = np.empty((len(anchors), len(items)), dtype=np.float32)
    with h5py.File(cache / "data.h5", "r") as rows:
        names = [hashlib.sha256(query.text.encode()).hexdigest() for query in anchors]
        if absent := [query for query, name in zip(anchors, names, strict=True) if name not in rows]:
            raise UnknownName(
                f"{cache} has no scores for {len(absent)} of {len(anchors)} queries, the first {absent[0].text!r}. "
                f"It holds {len(rows)} queries, by a hash of their text: give each as it was in the column 'query'."
            )
        for row, name in enumerate(names):
            scores[row] = rows[name][:][columns]
    return scores


def _complete(scores: FloatArray, anchors: Sequence[Query], *, skip_incomplete: bool) -> list[int]:
    """The rows without a gap; refuses the others unless they are to be skipped."""
    missing = np.isnan(scores).sum(axis=1)
    gaps = np.flatnonzero(missing)
    n_items = scores.shape[1]
    if len(gaps) == len(anchors):
        raise EmptyInput(
            f"An index needs a query with the scores of all {n_items} items, and none of the {len(anchors)} given has "
            "them. Score the whole collection for some: cache.score_all(dataset)."
        )
    if len(gaps) and not skip_incomplete:
        raise InputError(
            f"{len(gaps)} of {len(anchors)} queries have no score for some items; {anchors[int(gaps[0])].text!r} lacks "
            f"{missing[gaps[0]]} of {n_items}. Score the rest (cache.score_all(dataset)), or leave such queries out "
            "(skip_incomplete=True)."
        )
    return np.flatnonzero(missing == 0).tolist()
