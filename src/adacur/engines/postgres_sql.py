"""What is asked of a Postgres table with vectors, as SQL: names are quoted, values are placeholders and a list."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError
from adacur.core.extras import require
from adacur.engines.postgres_connections import jsonb_text, vector_text
from adacur.engines.tables import OWN_COLUMNS, Layout, condition, wanted
from adacur.engines.vector_store import Nearest, Where

# pgvector's indexes take at most this many numbers.
INDEXABLE = {"vector": 2000, "halfvec": 4000}
_WHOLE = ("smallint", "integer", "bigint")
_KEYS = (*_WHOLE, "text", "character varying", "uuid")
# A tsvector holds at most a megabyte.
_SEARCHED_CHARACTERS = 200_000
# Vectors up to this many numbers fit into a page of 8 kB with the rest of a row.
_IN_A_PAGE = 1500

Asked = tuple[str, list[Any]]

# The columns of a table, their types and sizes, and its comment.
COLUMNS = (
    "SELECT a.attname, format_type(a.atttypid, NULL), a.atttypmod, obj_description(a.attrelid, 'pg_class') "
    "FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
)
# Whether the rows of a table have ids in this column that are there and distinct, by its own rules.
DISTINCT = (
    "SELECT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
    "WHERE i.indrelid = to_regclass(%s) AND a.attname = %s AND a.attnotnull AND i.indisunique AND i.indisvalid "
    "AND i.indnkeyatts = 1 AND i.indpred IS NULL)"
)
BLOCKS = (
    "SELECT pg_relation_size(oid) / current_setting('block_size')::int, relkind IN ('r', 'm', 'p') "
    "FROM pg_class WHERE oid = to_regclass(%s)"
)


def quoted(*names: str) -> str:
    """The name of a column or table within a statement that has placeholders."""
    return _as_text(require("psycopg.sql", extra="postgres").Identifier(*names))


def creation(place: str, dimensions: Mapping[str, int], language: str) -> list[str]:
    """The statements that make a table."""
    literal = require("psycopg.sql", extra="postgres").Literal
    columns = "".join(f", {quoted(name)} vector({int(size)})" for name, size in dimensions.items())
    # Else Postgres keeps rows above 2 kB elsewhere, and reading every vector takes twice as long.
    in_page = [f"ALTER COLUMN {quoted(name)} SET STORAGE PLAIN" for name in dimensions]
    stored = [f"ALTER TABLE {place} {', '.join(in_page)}"] if 0 < sum(dimensions.values()) <= _IN_A_PAGE else []
    configuration, about = _as_text(literal(language)), json.dumps({"adacur": 1, "language": language})
    return [
        "CREATE EXTENSION IF NOT EXISTS vector",
        f"CREATE TABLE {place} (key bigint PRIMARY KEY, id text NOT NULL, text text NOT NULL, "
        f"metadata jsonb NOT NULL{columns}, words tsvector GENERATED ALWAYS AS "
        f"(to_tsvector({configuration}::regconfig, left(text, {_SEARCHED_CHARACTERS}))) STORED)",
        *stored,
        f"CREATE INDEX ON {place} USING gin (words)",
        f"COMMENT ON TABLE {place} IS {_as_text(literal(about))}",
    ]


def language_made_with(comment: str | None) -> str | None:
    """The language of a table that `creation` made, from its comment; None for any other table."""
    try:
        about = json.loads(comment or "")
        return str(about["language"]) if "adacur" in about else None
    except (ValueError, TypeError, KeyError):
        return None


@dataclass(frozen=True, slots=True)
class TableSQL:
    """Questions about one table: `place` is its quoted name."""

    place: str
    layout: Layout
    language: str

    def __post_init__(self) -> None:
        if self._key_type not in _KEYS:
            raise InputError(
                f"Ids are whole numbers, texts or UUIDs; column {self.layout.key!r} of {self.layout.store} is "
                f"{self._key_type}."
            )

    def count(self, where: Where) -> Asked:
        conditions, values = self._where(where)
        return f"SELECT count(*) FROM {self.place} WHERE {conditions}", values

    def nearest(
        self, vector: str, questions: Sequence[tuple[int, Nearest, FloatArray]], where: Where, *, exact: bool
    ) -> Asked:
        """The best of each question, under its number: one arm each, so that each knows its own lists of keys."""
        column, kind = quoted(vector), self.layout.types[vector]
        conditions, shared = self._where(where)
        arms: list[str] = []
        values: list[Any] = []
        for at, question, weights in questions:
            row = vector_text(weights)
            among, keys = self._among(question)
            # The negative of a distance matches no index, so that an exact question reads every vector. The few that a
            # question names are read by their keys.
            by_index = not exact and question.within is None
            order = f"{column} <#> %s::{kind}" if by_index else "value DESC, key"
            arms.append(
                f"(SELECT {at}, {self._key} AS key, -({column} <#> %s::{kind}) AS value FROM {self.place} "
                f"WHERE {column} IS NOT NULL AND {conditions}{among} ORDER BY {order} LIMIT %s)"
            )
            values += [row, *shared, *keys, *([row] if by_index else []), question.n]
        return " UNION ALL ".join(arms), values

    def unusable_id(self) -> Asked:
        """An id that occurs twice, or is missing, where no unique index rules that out."""
        return (
            f"SELECT {self._key} FROM {self.place} GROUP BY 1 HAVING count(*) > 1 OR count({self._key}) = 0 LIMIT 1",
            [],
        )

    def vectors(self, vector: str, keys: Sequence[Any]) -> Asked:
        column = quoted(vector)
        read = f"SELECT {self._key}, vector_send({column}::vector) FROM {self.place}"
        return f"{read} WHERE {column} IS NOT NULL AND {self._one_of('=', 'ANY')}", [list(keys)]

    def items(self, keys: Sequence[Any]) -> Asked:
        return f"{self._read_items} WHERE {self._one_of('=', 'ANY')}", [list(keys)]

    def page(self, after: Sequence[Any], n: int) -> Asked:
        """The n items that follow this key, or the first."""
        key = quoted(self.layout.key)
        start = f"WHERE {key} > %s::{self._key_type}" if after else ""
        return f"{self._read_items} {start} ORDER BY {key} LIMIT %s", [*after, n]

    def words(self, text: str, n: int, where: Where) -> Asked:
        """Any of the words will do, and more of them rank higher.

        ts_rank_cd, which is made for words near each other, would count one word that occurs twice as two.
        """
        conditions, values = self._where(where)
        literal = require("psycopg.sql", extra="postgres").Literal
        configuration = f"{_as_text(literal(self.language))}::regconfig"
        held = [name for name, kind in self.layout.types.items() if kind == "tsvector"]
        columns = ", ".join(quoted(name) for name in self.layout.text)
        # As an index on this expression has it; there can be none on several columns.
        joined = columns if len(self.layout.text) == 1 else f"concat_ws(' ', {columns})"
        document = quoted(held[0]) if held else f"to_tsvector({configuration}, {joined})"
        return (
            f"SELECT {self._key} AS key, ts_rank({document}, adacur_words, 1) AS value FROM {self.place}, "
            f"CAST(replace(plainto_tsquery({configuration}, %s)::text, ' & ', ' | ') AS tsquery) AS adacur_words "
            f"WHERE {document} @@ adacur_words AND {conditions} ORDER BY value DESC, key LIMIT %s",
            [text, *values, max(0, n)],
        )

    def sampled(self, n: int, percent: float | None) -> Asked:
        """Keys of n items, evenly among those in some blocks of the table: always the same blocks."""
        blocks = "" if percent is None else f"TABLESAMPLE SYSTEM ({percent:.6f}) REPEATABLE (0)"
        return (
            f"SELECT key FROM (SELECT {self._key} AS key, row_number() OVER (ORDER BY {self._key}) AS at, "
            f"count(*) OVER () AS total FROM {self.place} {blocks}) AS sampled "
            "WHERE total <= %s OR at * %s / total > (at - 1) * %s / total ORDER BY key",
            [n, n, n],
        )

    def upsert(self, source: str) -> tuple[str, str]:
        """The statements that make a temporary table of that name, and that write its rows into this one."""
        columns = [*OWN_COLUMNS, *self.layout.vectors]
        named = ", ".join(map(quoted, columns))
        renewed = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in columns[1:])
        return (
            f"CREATE TEMPORARY TABLE {source} ON COMMIT DROP AS SELECT {named} FROM {self.place} LIMIT 0",
            f"INSERT INTO {self.place} ({named}) SELECT {named} FROM pg_temp.{source} "
            f"ON CONFLICT (key) DO UPDATE SET {renewed}",
        )

    @property
    def _read_items(self) -> str:
        key = self.layout.key
        chosen = (self._key if name == key else quoted(name) for name in self.layout.item_columns)
        return f"SELECT {', '.join(chosen)} FROM {self.place}"

    def _where(self, where: Where) -> Asked:
        if where is None:
            return "TRUE", []
        if isinstance(where, str):
            return condition(where).replace("%", "%%"), []
        conditions: list[str] = ["TRUE"]
        values: list[Any] = []
        for name, allowed in wanted(where):
            if self.layout.made:
                has, given = _jsonb_has("metadata -> %s::text", name, allowed)
                conditions.append(has)
                values += [name, given[0], name, given[1]]
                continue
            column, kind = quoted(name), self.layout.filterable(name)
            nothing = f" OR {column} IS NULL" if None in allowed else ""
            if kind == "jsonb":
                has, given = _jsonb_has(column, name, allowed)
                conditions.append(f"({has}{nothing})")
                values += given
                continue
            # "character" alone would mean one letter; an array has each of its values.
            kind = "bpchar" if kind == "character" else kind
            has = f"{column} && %s::text[]::{kind}" if kind.endswith("[]") else f"{column} = ANY (%s::text[]::{kind}[])"
            conditions.append(f"({has}{nothing})")
            values.append([str(value) for value in allowed if value is not None])
        return " AND ".join(conditions), values

    def _among(self, question: Nearest) -> Asked:
        added, values = "", []
        if question.without:
            added, values = f" AND {self._one_of('<>', 'ALL')}", [list(question.without)]
        if question.within is not None:
            added, values = f"{added} AND {self._one_of('=', 'ANY')}", [*values, list(question.within)]
        return added, values

    def _one_of(self, sign: str, how: str) -> str:
        return f"{quoted(self.layout.key)} {sign} {how} (%s::{self._key_type}[])"

    @property
    def _key_type(self) -> str:
        return self.layout.types[self.layout.key]

    @property
    def _key(self) -> str:
        column = quoted(self.layout.key)
        return column if self._key_type in _WHOLE else f"{column}::text"


def _as_text(part: Any) -> str:
    return str(part.as_string(None)).replace("%", "%%")


def _jsonb_has(value: str, name: str, allowed: Sequence[Any]) -> tuple[str, list[list[str]]]:
    """That JSON is one of these values, or a list that has one of them; and the values of the two placeholders."""
    # A list contains a plain value; but it also contains a part of itself, and a dictionary a part of itself.
    plain = [_json(name, one) for one in allowed if not isinstance(one, list | tuple | dict)]
    whole = [_json(name, one) for one in allowed if isinstance(one, list | tuple | dict)]
    return f"({value} @> ANY (%s::text[]::jsonb[]) OR {value} = ANY (%s::text[]::jsonb[]))", [plain, whole]


def _json(name: str, value: object) -> str:
    try:
        return jsonb_text(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"The filter on {name!r} must be values that JSON has: {error}.") from None
