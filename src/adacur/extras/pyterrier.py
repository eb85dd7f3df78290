"""PyTerrier: an index as a transformer and an artifact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import InputError, UnknownName
from adacur.records import Query, as_queries
from adacur.requirements import require
from adacur.results import Hits
from adacur.search import AnchorIndex, load, search_options
from adacur.search.finding import find_options
from adacur.store import IndexFolder
from adacur.store.versions import version_files

if TYPE_CHECKING:
    import pandas as pd

pt: Any = require("pyterrier", extra="pyterrier")


class Adacur(pt.Artifact, pt.Transformer):  # type: ignore[misc]
    """An index in a PyTerrier pipeline: queries retrieve, and results of a first stage seed the first round.

    `rank` and `iteration`, the round that scored a document, count from 0 as PyTerrier does. With a fused first stage,
    `score` is what the documents are ordered by, and `exact` the scorer's score.

    - `index`: an `AnchorIndex`, or the folder or URL of one, which `scorer`, `encoder` and `allow_code` open as in
      `adacur.load`: a scorer that is a function or a service must be given, or trusted;
    - `k` and `options`: those of `AnchorIndex.search`; with `above`, those of `AnchorIndex.find`.
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
        allow_code: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(index, AnchorIndex):
            if scorer is not None or encoder is not None or allow_code:
                raise InputError("This index is open already, with its scorer and encoder; give them to adacur.load.")
            self.index = index
        else:
            self.index = load(index, scorer=scorer, encoder=encoder, allow_code=allow_code)
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
            options["first"] = first
        texts = [Query(str(id_), text) for id_, text in zip(queries["qid"], queries["query"], strict=True)]
        answers: list[Hits] = []
        if texts and options.get("above") is not None:
            answers = self.index.find(texts, **find_options(**options))
        elif texts:
            answers = self.index.search(texts, self.k, **search_options(self.index, **options))
        return _frame(queries, answers, fused=any(hits.fused is not None for hits in answers))

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"Adacur({self.index!r}, k={self.k}{options})"

    def _package_files(self) -> Iterator[tuple[str, str]]:
        """What `to_hf` and the like pack: the current version, and no locks."""
        folder = IndexFolder.open(self.path)
        try:
            for name in version_files(folder.path, folder.home):
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
