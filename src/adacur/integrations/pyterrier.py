"""PyTerrier: an index as a transformer and an artifact, and scorer caches as anchor scores."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

import numpy as np

from adacur.approximation import GaussianModel
from adacur.core.arrays import FloatArray
from adacur.core.errors import EmptyInput, FileFormatError, InputError, UnknownName
from adacur.core.extras import require
from adacur.core.protocols import FirstStage
from adacur.core.records import Item, Query, as_queries
from adacur.core.results import Hits
from adacur.first_stages.opening import encoder as opened_encoder
from adacur.index import AnchorTable, IndexFolder, check_scorer, save_table, write_manifest
from adacur.index.copying import version_files
from adacur.index.object_store import refuse_url
from adacur.scorers import scorer as opened_scorer
from adacur.search import AnchorIndex, First, SearchOptions, load
from adacur.search.first_stages import add_first_stages, check_first_stages
from adacur.search.refresh import complete_searches

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Adacur", "import_scorer_cache"]

pt: Any = require("pyterrier", extra="pyterrier")

Incomplete = Literal["refuse", "skip", "predict"]


class Adacur(pt.Artifact, pt.Transformer):  # type: ignore[misc]
    """An index in a PyTerrier pipeline: queries retrieve, and results of a first stage seed the first round.

    `index` is an `AnchorIndex`, or the folder or URL of one, which `scorer`, `encoder` and `trust` open as in
    `adacur.load`: a scorer that is a function or a service must be given, or trusted.
    `options` are those of `AnchorIndex.search`. `rank` and `iteration`, the round that scored a document, count from 0
    as PyTerrier does. With `fuse`, `score` is what the documents are ordered by, and `exact` the scorer's own.
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
        **options: Unpack[SearchOptions],
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
        queries, options = inp.reset_index(drop=True), self.options
        if accepts.mode == "results":
            first = _GivenResults(queries, self.index)
            # Of what was found before, only the queries stay: other documents will be found.
            kept = [column for column in queries.columns if column in pt.model.query_columns(queries)]
            queries = queries[kept].drop_duplicates("qid").reset_index(drop=True)
            given = options.get("first")
            options = {**options, "first": replace(given, stage=first) if isinstance(given, First) else first}
        asked = [Query(str(id_), text) for id_, text in zip(queries["qid"], queries["query"], strict=True)]
        found = self.index.search(asked, self.k, **options) if asked else []
        return _frame(queries, found, fused=any(hits.fused is not None for hits in found))

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
        # Whatever the order of the rows, PyTerrier's rank tells the order; a bare list of documents is in its own.
        if "rank" in results.columns:
            results = results.sort_values("rank", kind="stable")
        elif "score" in results.columns:
            results = results.sort_values("score", ascending=False, kind="stable")
        scored = "score" in results.columns
        self._found: dict[str, tuple[tuple[str, ...], FloatArray]] = {
            str(id_): (
                tuple(map(str, rows["docno"])),
                rows["score"].to_numpy(dtype=np.float64) if scored else -np.arange(len(rows), dtype=np.float64),
            )
            for id_, rows in results.groupby("qid", sort=False)
        }
        _check_known({id_ for ids, _ in self._found.values() for id_ in ids}, index)

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        """The documents that each query came with."""
        return [
            Hits(query=query, ids=self._found[query.id][0][:k], scores=self._found[query.id][1][:k])
            for query in as_queries(queries)
        ]


def _check_known(given: set[str], index: AnchorIndex) -> None:
    if unknown := sorted(given.difference(index.items.ids)):
        raise UnknownName(
            f"The documents that start a search are items of the index; {len(unknown)} of the {len(given)} given are "
            f"not, the first {unknown[0]!r}. Give a first stage of the same collection, with the same docnos."
        )


def _frame(queries: pd.DataFrame, found: Sequence[Hits], *, fused: bool) -> pd.DataFrame:
    """The columns of each query, repeated for each of its documents, and what was found."""
    import pandas as pd

    def column(values: Iterable[Any], dtype: str) -> pd.Series:
        return pd.Series(np.concatenate([np.empty(0, dtype=dtype), *(np.asarray(own, dtype=dtype) for own in values)]))

    rows = np.repeat(np.arange(len(queries)), [len(hits) for hits in found] if found else 0)
    exact = column((hits.scores for hits in found), "float64")
    columns = {
        "docno": column((hits.ids for hits in found), "object"),
        # Evaluation and every later transformer order by this column.
        "score": column((hits.fused for hits in found), "float64") if fused else exact,
        "rank": column((range(len(hits)) for hits in found), "int64"),
        "iteration": column((hits.rounds for hits in found), "int64") - 1,
    }
    kept = queries.drop(columns=[name for name in columns if name in queries.columns])
    return kept.iloc[rows].reset_index(drop=True).assign(**columns, **({"exact": exact} if fused else {}))


def import_scorer_cache(
    cache: Any,
    items: Iterable[Item],
    queries: Iterable[Query | str],
    *,
    path: str | Path,
    scorer: Any = None,
    first: Sequence[str | FirstStage] = ("bm25",),
    encoder: Any = None,
    incomplete: Incomplete = "refuse",
) -> AnchorIndex:
    """Make an index of a `pyterrier_caching.Hdf5ScorerCache` (or its folder), without scoring anything again.

    A cache knows queries by a hash of their text alone and documents by their docno alone, so that both are given:
    `queries` with the very texts that were scored, and `items`, all of which the cache has. Queries that are complete
    become anchor queries. The others are refused; or left out ("skip"); or kept, with what is missing predicted from
    the complete ones ("predict"). Given a `scorer`, 32 calls make sure that the cached scores are its own.
    """
    if incomplete not in get_args(Incomplete):
        raise InputError(f"incomplete is one of {', '.join(get_args(Incomplete))}; got {incomplete!r}.")
    dual = opened_encoder(encoder)
    check_first_stages(first, encoder=dual)
    items, anchors = list(items), as_queries(queries)
    scores = _cached_scores(Path(getattr(cache, "path", cache)), items, anchors)
    missing = np.isnan(scores).sum(axis=1)
    _check_missing(missing, anchors, n_items=len(items), incomplete=incomplete)
    whole = np.flatnonzero(missing == 0)
    opened = None if scorer is None else opened_scorer(scorer)
    table = AnchorTable.from_arrays(
        items=items, anchor_queries=[anchors[row] for row in whole.tolist()], scores=scores[whole]
    )
    folder = save_table(table, path)
    try:
        if opened is not None:
            # Before the index names it: then it would be taken at its word.
            check_scorer(folder, opened)
            write_manifest(folder.path, replace(folder.manifest, scorer=opened.card))
        add_first_stages(first, items=folder.items, path=folder.path, encoder=dual)
        index = load(path, scorer=opened, encoder=dual, check=False)
        if incomplete == "predict" and (some := np.flatnonzero((missing > 0) & (missing < len(items)))).size:
            _add_predicted(index, table, [anchors[row] for row in some.tolist()], scores[some])
    except BaseException:
        folder.release()
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return index


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
            f"Item ids are docnos of the cache; {len(unknown)} of {len(items)} are not, the first "
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


def _check_missing(missing: Any, anchors: Sequence[Query], *, n_items: int, incomplete: Incomplete) -> None:
    some = np.flatnonzero(missing)
    if len(some) == len(anchors):
        raise EmptyInput(
            f"An index needs a query with the scores of all {n_items} items, and none of the {len(anchors)} given has "
            "them. Score the whole collection for some: cache.score_all(dataset)."
        )
    if len(some) and incomplete == "refuse":
        raise InputError(
            f"{len(some)} of {len(anchors)} queries have no score for some items; {anchors[int(some[0])].text!r} lacks "
            f"{missing[some[0]]} of {n_items}. Score the rest (cache.score_all(dataset)), leave such queries out "
            "(incomplete='skip'), or have their missing scores predicted (incomplete='predict')."
        )


def _add_predicted(index: AnchorIndex, table: AnchorTable, queries: Sequence[Query], scores: FloatArray) -> None:
    """Add anchor queries that were scored against some items only."""
    dense = index.first_stage("dense") if "dense" in index.first_stages else None
    vectors = dense.vectors() if dense else None
    gaussian = GaussianModel()
    if vectors is not None:
        gaussian = GaussianModel(embeddings=vectors.all_rows(), embed_queries=vectors.embed_queries)
    where = [np.flatnonzero(~np.isnan(row)) for row in scores]
    known = [row[own].astype(np.float64) for row, own in zip(scores, where, strict=True)]
    values, exact = complete_searches(gaussian, table, queries, where, known)
    with index.edit() as edit:
        edit.add_anchor_scores(queries, values, exact=exact)
