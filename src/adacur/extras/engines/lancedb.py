"""Items in a table of LanceDB, in a folder or an object store: searched by inner product, and by words."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import InputError
from adacur.extras.engines.lance_sql import one_of, where_sql
from adacur.extras.engines.retries import TRIES, NoAnswer, answered
from adacur.extras.engines.sql_tables import Layout, repeated
from adacur.extras.engines.store_urls import check_seconds, parameters, split
from adacur.extras.engines.vector_store import Found, Key, Nearest, VectorStore, Where, check_name, found, weights_of
from adacur.records import Item
from adacur.requirements import require

T = TypeVar("T")

_PAGE = 1000
_AT_ONCE = 8
# Weights are scaled up to these powers of two, far below the largest number of 32 or 16 bits.
_LARGE, _LARGE_HALF = 60, 14
# What LanceDB says of a request that can never be answered.
_REFUSED = ("Invalid input", "Invalid user input", "Schema error", "does not exist", "was not found")


class LanceStore(VectorStore):
    """A table of LanceDB.

    - folder: of the database; or a URL that LanceDB takes, such as s3://bucket/folder;
    - table: its name;
    - text, id_field, metadata: columns. Several text columns are joined with a space; ids are whole numbers or texts,
      and are the keys; metadata are by default all columns that are neither id, text nor vector. An id that occurs
      twice is refused in the answer that shows it;
    - vector: the vector to search by, as ?vector= in a URL;
    - storage_options: of the object store, as LanceDB takes them; else they come from the environment;
    - timeout: seconds that a question may take.

    A filter is a dictionary, which names the id, text and metadata columns alone, or a condition as text in the SQL of
    LanceDB, which may name every column. An exact question reads every vector that its filter allows; `exact=False`
    lets LanceDB use a vector index for inner products.
    """

    def __init__(
        self,
        folder: str | Path,
        table: str,
        *,
        text: str | Sequence[str] = "text",
        id_field: str = "id",
        metadata: Sequence[str] | None = None,
        vector: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> None:
        require("lancedb", extra="lancedb")
        self._uri, self._table, self.vector = check_name("folder", str(folder)), check_name("table", table), vector
        if "://" in self._uri:
            split(self._uri)
        self._columns: dict[str, Any] = {"text": text, "id_field": id_field, "metadata": metadata}
        self._storage_options = dict(storage_options or {})
        check_seconds(timeout=timeout)
        self._timeout = timedelta(seconds=timeout)
        self._database: Any = None
        self._opened: tuple[Any, Layout] | None = None

    @classmethod
    def from_url(cls, url: str, **options: Any) -> LanceStore:
        """The store at lancedb:///folder/of/database/table?text=body, or lancedb+s3://bucket/folder/table."""
        parts = split(url)
        options = parameters(url, {}, several=("metadata",)) | options
        folder, _, table = parts.path.rpartition("/")
        scheme = parts.scheme.partition("+")[2]
        if not table or not (folder or parts.netloc):
            raise InputError("The address of a LanceDB table ends in /FOLDER/TABLE.")
        # lancedb://folder/table is a folder of the working directory.
        place = f"{scheme}://{parts.netloc}{folder}" if scheme else unquote(f"{parts.netloc}{folder}" or "/")
        return cls(place, unquote(table), **options)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_database": None, "_opened": None}

    @property
    def name(self) -> str:
        if "://" not in self._uri:
            return f"lancedb://{quote(Path(self._uri).resolve().as_posix())}/{quote(self._table)}"
        parts = urlsplit(self._uri)
        return f"lancedb+{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/{quote(self._table)}"

    def dimensions(self) -> dict[str, int]:
        return self._there[1].dimensions

    def count(self, where: Where = None) -> int:
        table, layout = self._there
        filtered = where_sql(layout, where)
        return int(self._ask(lambda: table.count_rows(filtered)))

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        table, layout = self._there
        size, filtered = layout.dimension(vector), where_sql(layout, where)
        weights = [weights_of(question, size, vector=vector, store=self.name) for question in questions]
        answers: dict[int, list[tuple[Key, float]]] = defaultdict(list)
        together = [at for at, question in enumerate(questions) if question.n > 0 and question.within is None]
        apart = [[at] for at, question in enumerate(questions) if question.n > 0 and question.within]
        groups = ([together] if together else []) + apart

        def asked(group: list[int]) -> tuple[Any, list[float]]:
            rows = told(group, scales := [_scale(weights[at], layout.types[vector]) for at in group])
            if np.isfinite(rows["_distance"].to_numpy()).all():
                return rows, scales
            # Rows of very large numbers.
            return told(group, ones := [1.0 for _ in group]), ones

        def told(group: list[int], scales: list[float]) -> Any:
            # A query takes one filter for all its vectors. So it is asked for as many more as must be left out, and
            # they are left out here: what remains holds the best, in one pass over the table.
            within = questions[group[0]].within
            conditions = [filtered] if filtered else []
            conditions += [] if within is None else [one_of(layout, within)]
            limit = max(questions[at].n + len(questions[at].without) for at in group)
            several = [weights[at] * np.float32(scale) for at, scale in zip(group, scales, strict=True)]
            search = table.search(several if len(group) > 1 else several[0], vector_column_name=vector)
            search = search.distance_type("dot").select([layout.key, "_distance"]).limit(limit)
            # An index looks where the best are, and the items that a question names may lie elsewhere.
            search = search.bypass_vector_index() if exact or within is not None else search
            return self._rows(search.where(" AND ".join(conditions)) if conditions else search)

        # LanceDB plans a query on one core, and a condition with a thousand keys takes long to plan.
        with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(groups)))) as threads:
            tables = list(threads.map(asked, groups))
        for group, (rows, scales) in zip(groups, tables, strict=True):
            numbers = rows["query_index"].to_pylist() if len(group) > 1 else [0] * len(rows)
            keys, distances = rows[layout.key].to_pylist(), rows["_distance"].to_pylist()
            for number, key, distance in zip(numbers, keys, distances, strict=True):
                answers[group[number]].append((key, (1.0 - distance) / scales[number]))
        best = []
        for at, question in enumerate(questions):
            self._distinct([key for key, _ in answers[at]])
            left_out = set(question.without)
            best.append(found(self.name, [pair for pair in answers[at] if pair[0] not in left_out], question.n))
        return best

    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        table, layout = self._there
        size = layout.dimension(vector)
        if not keys:
            return {}
        found_rows = self._rows(table.search().where(one_of(layout, keys)).select([layout.key, vector]))
        present = found_rows.filter(found_rows[vector].is_valid()).combine_chunks()
        values = _arrow().concat_arrays(present[vector].chunks).flatten() if len(present) else []
        array = np.asarray(values, dtype=np.float32).reshape(len(present), size)
        return dict(zip(self._distinct(present[layout.key].to_pylist()), array, strict=True))

    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        table, layout = self._there
        if not keys:
            return {}
        rows = self._rows(table.search().where(one_of(layout, keys)).select(list(layout.item_columns)))
        self._distinct(rows[layout.key].to_pylist())
        return dict(map(layout.item, _values(rows)))

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        table, layout = self._there
        filtered = where_sql(layout, where)
        indexes = self._ask(table.list_indices)
        indexed = [name for index in indexes if index.index_type == "FTS" for name in index.columns]
        columns = [name for name in layout.text if name in indexed]
        if not columns:
            raise InputError(
                f"{self.name} has no index of words on {' or '.join(map(repr, layout.text))}. Make one with LanceDB: "
                f"table.create_index({layout.text[0]!r}, config=lancedb.index.FTS())."
            )
        if n < 1 or not text.strip():
            return found(self.name, [], 0)
        query: Any = require("lancedb.query", extra="lancedb")
        asked = query.MatchQuery(text, columns[0]) if len(columns) == 1 else query.MultiMatchQuery(text, columns)
        search = table.search(asked, query_type="fts").select([layout.key, "_score"]).limit(n)
        rows = self._rows(search.where(filtered) if filtered else search)
        keys = self._distinct(rows[layout.key].to_pylist())
        return found(self.name, zip(keys, rows["_score"].to_pylist(), strict=True), n)

    def sample(self, n: int) -> tuple[Key, ...]:
        table, layout = self._there
        total = self.count()
        if min(n, total) < 1:
            return ()
        offsets = np.unique(np.linspace(0, total - 1, min(n, total)).astype(np.int64)).tolist()
        rows = self._rows(table.take_offsets(offsets).select([layout.key]))
        return tuple(self._distinct(rows[layout.key].to_pylist()))

    def scan(self) -> Iterator[Item]:
        table, layout = self._there
        batches = self._ask(lambda: table.search().select(list(layout.item_columns)).to_batches(_PAGE))
        while (batch := self._ask(lambda: next(batches, None), tries=1)) is not None:
            yield from (layout.item(row)[1] for row in _values(batch))

    def close(self) -> None:
        self._opened = self._database = None

    def _tables(self) -> list[str]:
        # To connect to a folder is to make it.
        if (folder := self._local_folder) is not None and not folder.is_dir():
            return []
        answer = self._ask(lambda: self._connected.list_tables())
        names: list[str] = list(answer.tables)
        while token := answer.page_token:
            answer = self._ask(functools.partial(self._connected.list_tables, page_token=token))
            names += answer.tables
        return names

    def _distinct(self, keys: list[Key]) -> list[Key]:
        """The keys of an answer; LanceDB lets a table that is appended to twice have each of them twice."""
        if len(set(keys)) < len(keys):
            raise repeated(self.name, Counter(keys).most_common(1)[0][0])
        return keys

    def _rows(self, query: Any) -> Any:
        return self._ask(lambda: query.to_arrow(timeout=self._timeout))

    def _ask(self, call: Callable[[], T], *, tries: int = TRIES) -> T:
        def checked() -> T:
            try:
                return call()
            except (ValueError, RuntimeError, OSError) as error:
                raise self._in_words(error) from None

        return answered(self.name, checked, extra="lancedb", tries=tries)

    def _in_words(self, error: Exception) -> Exception:
        # The rest is where in LanceDB's code it happened.
        said = str(error).split(", /")[0].strip().split("\n")[0][:500]
        for secret in self._storage_options.values():
            said = said.replace(secret, "***")
        words = f"{type(error).__name__}: {said}"
        if isinstance(error, ValueError) or any(sign in said for sign in _REFUSED):
            self._opened = None
            return InputError(f"{self.name} refuses this. {words}")
        return NoAnswer(words)

    @property
    def _local_folder(self) -> Path | None:
        if "://" not in self._uri:
            return Path(self._uri)
        parts = urlsplit(self._uri)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    @property
    def _connected(self) -> Any:
        if self._database is None:
            # So that what other processes write is seen.
            self._database = require("lancedb", extra="lancedb").connect(
                self._uri, storage_options=self._storage_options or None, read_consistency_interval=timedelta(0)
            )
        return self._database

    @property
    def _there(self) -> tuple[Any, Layout]:
        opened = self._opened
        if opened is None:
            if self._table not in self._tables():
                raise InputError(f"There is no table {self._table!r} in {self.name.rpartition('/')[0]}.")
            table = self._ask(lambda: self._connected.open_table(self._table))
            schema, kinds = table.schema, _arrow().types
            types = {field.name: str(field.type) for field in schema}
            vectors = {
                field.name: field.type.list_size
                for field in schema
                if kinds.is_fixed_size_list(field.type) and kinds.is_floating(field.type.value_type)
            }
            layout = Layout.of(self.name, types, vectors, nested=dict(_nested(schema, kinds)), **self._columns)
            if not (kinds.is_integer(key := schema.field(layout.key).type) or types[layout.key].endswith("string")):
                raise InputError(f"Ids are whole numbers or texts; column {layout.key!r} of {self.name} is {key}.")
            self._opened = opened = (table, layout)
        return opened


def _arrow() -> Any:
    return require("pyarrow", extra="lancedb")


def _nested(fields: Any, kinds: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """The fields in columns that are dictionaries, and their types."""
    for one in fields:
        if kinds.is_struct(one.type):
            yield from _nested(one.type, kinds, f"{before}{one.name}.")
        elif before:
            yield f"{before}{one.name}", str(one.type)


def _scale(weights: FloatArray, kind: str) -> float:
    """A power of two that makes weights large.

    LanceDB tells 1 - weights · row in 32 bits, in which a small product is lost.
    """
    exponent = int(np.frexp(np.abs(weights).max(initial=0.0))[1])
    largest = _LARGE_HALF if "halffloat" in kind else _LARGE
    return 2.0 ** min(127, max(0, largest - exponent)) if weights.any() else 1.0


def _values(rows: Any) -> Any:
    """Rows as dictionaries; times that Python cannot tell are texts."""
    try:
        return rows.to_pylist()
    except (OverflowError, ValueError):
        arrow = _arrow()
        texts = [one.cast(arrow.string()) if arrow.types.is_temporal(one.type) else one for one in rows.itercolumns()]
        return arrow.table(texts, names=rows.schema.names).to_pylist()
