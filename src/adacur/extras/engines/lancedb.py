"""Items in a table of LanceDB: searched by inner product, and by words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import AdacurError, EngineUnavailable, InputError
from adacur.extras.engines.checked_store import shown
from adacur.extras.engines.sql_tables import Layout, Place
from adacur.extras.engines.store_urls import address_in
from adacur.extras.engines.vector_store import Found, Key, Nearest, VectorStore, Where
from adacur.records import Item
from adacur.requirements import require

# LanceDB gives 1 - weights · row in 32 bits, in which a small product is lost: weights are scaled up to this power of
# two, which vectors of 16 bits hold too.
_LARGE = 14
_PATIENCE = timedelta(seconds=60)
# What LanceDB says of a request that can never be answered.
_REFUSED = ("Invalid input", "Invalid user input", "Schema error", "does not exist", "was not found")


class LanceStore(VectorStore):
    """A table of LanceDB.

    - table: what `lancedb.connect(…).open_table(…)` returns, or a function that opens it;
    - text, id_field, metadata: columns. Several text columns are joined with a space; ids are distinct whole numbers or
      texts, and are the keys; metadata are by default all columns that are neither id, text nor vector;
    - vector: the vector to search by, as ?vector= in a URL.

    A filter is a dictionary, which names the id, text and metadata columns alone, or a condition as text in the SQL of
    LanceDB, which may name every column. An exact question reads every vector that its filter allows; `exact=False`
    lets LanceDB use a vector index for inner products.
    """

    adds_words = True

    def __init__(
        self,
        table: Any,
        *,
        text: str | Sequence[str] = "text",
        id_field: str = "id",
        metadata: Sequence[str] | None = None,
        vector: str | None = None,
        name: str | None = None,
    ) -> None:
        require("lancedb", extra="lancedb")
        self._open: Callable[[], Any] = table if callable(table) else lambda: table
        self._name = name
        self.text_fields = (text,) if isinstance(text, str) else tuple(text)
        self.vector = vector
        self._columns: dict[str, Any] = {"text": self.text_fields, "id_field": id_field, "metadata": metadata}

    @classmethod
    def from_url(cls, url: str) -> LanceStore:
        """The store at lancedb:///folder/of/database/table."""
        parts, options = address_in(url)
        # lancedb://folder/table is a folder of the working directory.
        folder, _, table = f"{parts.netloc}{parts.path}".rpartition("/")
        if not table or not folder:
            raise InputError("The URL of a LanceDB table is lancedb:///FOLDER/TABLE.")
        return cls(
            lambda: _opened(Path(unquote(folder)), unquote(table)), name=f"lancedb://{folder}/{table}", **options
        )

    @property
    def name(self) -> str:
        return self._name or f"lancedb://…/{quote(self._table.name)}"

    def dimensions(self) -> Mapping[str, int]:
        return self._layout.vectors

    def count(self, where: Where = None) -> int:
        return int(self._table.count_rows(self._where(where)))

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        named = [one for one in questions if one.within is not None]
        others = [one for one in questions if one.within is None]
        answers = iter(self._nearest(vector, others, where, exact) if others else [])
        wanted = {key for one in named for key in one.within or ()}
        rows = self._vectors(vector, sorted(wanted, key=str), where) if wanted else {}
        return [next(answers) if one.within is None else _among(rows, one) for one in questions]

    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        return self._vectors(vector, keys, None)

    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        layout = self._layout
        rows = self._read(self._table.search().where(self._one_of(keys)).select(list(layout.item_columns)))
        return dict(zip(self._keys(rows), map(layout.item, rows.to_pylist()), strict=True))

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        layout = self._layout
        indexed = [name for index in self._table.list_indices() if index.index_type == "FTS" for name in index.columns]
        columns = [name for name in layout.text if name in indexed]
        if not columns:
            raise InputError(
                f"{self.name} has no index of words on {' or '.join(map(repr, layout.text))}. Make one with LanceDB: "
                f"table.create_index({layout.text[0]!r}, config=lancedb.index.FTS())."
            )
        query: Any = require("lancedb.query", extra="lancedb")
        asked = query.MatchQuery(text, columns[0]) if len(columns) == 1 else query.MultiMatchQuery(text, columns)
        search = self._table.search(asked, query_type="fts").select([layout.key, "_score"]).limit(n)
        rows = self._read(search if where is None else search.where(self._where(where)))
        return Found(self._keys(rows), rows["_score"].to_numpy())

    def sample(self, n: int) -> list[Key]:
        total = self.count()
        offsets = np.unique(np.linspace(0, total - 1, min(n, total)).astype(np.int64)).tolist()
        return self._keys(self._read(self._table.take_offsets(offsets).select([self._layout.key]))) if total else []

    def explain(self, error: Exception) -> AdacurError | None:
        if not isinstance(error, ValueError | RuntimeError | OSError) or isinstance(error, AdacurError):
            return None
        # The rest is where in LanceDB's code it happened.
        words = f"{type(error).__name__}: {str(error).split(', /')[0].strip().splitlines()[0]}"
        refused = isinstance(error, ValueError) or any(sign in words for sign in _REFUSED)
        return InputError(words) if refused else EngineUnavailable(words)

    def _nearest(self, vector: str, questions: Sequence[Nearest], where: Where, exact: bool) -> list[Found]:
        """Answers to questions about all items, in one pass over the table."""
        scales = [2.0 ** (_LARGE - int(np.frexp(np.abs(one.weights).max())[1])) for one in questions]
        weights = [one.weights * np.float32(scale) for one, scale in zip(questions, scales, strict=True)]
        # A query takes one filter for all its vectors. So it is asked for as many more as must be left out, and they
        # are left out afterwards: what remains holds the best.
        limit = max(question.n + len(question.without) for question in questions)
        search = self._table.search(weights if len(weights) > 1 else weights[0], vector_column_name=vector)
        search = search.distance_type("dot").select([self._layout.key, "_distance"]).limit(limit)
        search = search.bypass_vector_index() if exact else search
        rows = self._read(search if where is None else search.where(self._where(where)))
        number = rows["query_index"].to_numpy() if len(questions) > 1 else np.zeros(len(rows), np.intp)
        values = (1.0 - rows["_distance"].to_numpy().astype(np.float64)) / np.array(scales)[number]
        keys = rows[self._layout.key].to_pylist()
        answers = []
        for at, question in enumerate(questions):
            left_out = set(question.without)
            mine = [place for place in np.flatnonzero(number == at).tolist() if keys[place] not in left_out]
            answers.append(Found([keys[place] for place in mine], values[mine]))
        return answers

    def _vectors(self, vector: str, keys: Collection[Key], where: Where) -> dict[Key, FloatArray]:
        condition = self._one_of(keys) if where is None else f"{self._one_of(keys)} AND {self._where(where)}"
        rows = self._read(self._table.search().where(condition).select([self._layout.key, vector]))
        present = rows.filter(rows[vector].is_valid()).combine_chunks()
        arrow = require("pyarrow", extra="lancedb")
        values = arrow.concat_arrays(present[vector].chunks).flatten() if len(present) else []
        array = np.asarray(values, dtype=np.float32).reshape(len(present), self._layout.vectors[vector])
        return dict(zip(self._keys(present), array, strict=True))

    def _read(self, query: Any) -> Any:
        return query.to_arrow(timeout=_PATIENCE)

    def _keys(self, rows: Any) -> list[Key]:
        keys: list[Key] = rows[self._layout.key].to_pylist()
        return keys

    def _where(self, where: Where) -> str | None:
        return None if where is None else self._layout.condition(where, any_of=_any_of, path=_path)

    def _one_of(self, keys: Collection[Key]) -> str:
        return f"{_quoted(self._layout.key)} IN ({', '.join(map(_literal, keys))})"

    @cached_property
    def _table(self) -> Any:
        return self._open()

    @cached_property
    def _layout(self) -> Layout:
        schema, kinds = self._table.schema, require("pyarrow", extra="lancedb").types
        types = {one.name: str(one.type) for one in schema}
        vectors = {
            one.name: one.type.list_size
            for one in schema
            if kinds.is_fixed_size_list(one.type) and kinds.is_floating(one.type.value_type)
        }
        return Layout.of(self.name, types, vectors, nested=dict(_nested(schema, kinds)), **self._columns)


def _opened(folder: Path, table: str) -> Any:
    # To connect to a folder is to make it.
    if not folder.is_dir():
        raise InputError(f"There is no table {shown(table)} in {folder}: the folder does not exist.")
    # So that what other processes write is seen.
    database = require("lancedb", extra="lancedb").connect(folder, read_consistency_interval=timedelta(0))
    return database.open_table(table)


def _among(rows: Mapping[Key, FloatArray], question: Nearest) -> Found:
    """The answer to a question about named items, by the vectors of those that are there."""
    left_out = set(question.without)
    keys = [key for key in question.within or () if key in rows and key not in left_out]
    matrix = np.reshape([rows[key] for key in keys], (len(keys), len(question.weights)))
    return Found(keys, matrix.astype(np.float64) @ question.weights)


def _any_of(place: Place, values: Sequence[Any]) -> str:
    given = ", ".join(_literal(value) for value in values if value is not None)
    if not given:
        return "false"
    is_list = place.kind.startswith(("list<", "large_list<"))
    return f"array_has_any({_path(place)}, [{given}])" if is_list else f"{_path(place)} IN ({given})"


def _path(place: Place) -> str:
    return ".".join(map(_quoted, (place.column, *place.inside)))


def _quoted(name: str) -> str:
    if "`" in name:
        raise InputError(f"LanceDB cannot search by a column with ` in its name: {name!r}.")
    return f"`{name}`"


def _literal(value: str | int | float | bool) -> str:
    """A value as LanceDB's SQL writes it, which has no placeholders."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value).lower()


def _nested(fields: Any, kinds: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """The fields in columns that are dictionaries, and their types."""
    for one in fields:
        if kinds.is_struct(one.type):
            yield from _nested(one.type, kinds, f"{before}{one.name}.")
        elif before:
            yield f"{before}{one.name}", str(one.type)
