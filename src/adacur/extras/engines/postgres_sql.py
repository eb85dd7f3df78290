"""What is asked of a Postgres table with vectors, as SQL: names are quoted, values are placeholders and a list."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from adacur.errors import InputError
from adacur.extras.engines.sql_tables import Layout, Place, check_whole_numbers, where_sql
from adacur.extras.engines.vector_store import Key, Nearest, Where
from adacur.requirements import require

# pgvector's indexes take at most this many numbers.
INDEXABLE = {"vector": 2000, "halfvec": 4000}
_WHOLE = ("smallint", "integer", "bigint")
_KEYS = (*_WHOLE, "text", "character varying", "uuid")

Asked = tuple[str, list[Any]]

# The columns of a table, their types and sizes.
COLUMNS = (
    "SELECT a.attname, format_type(a.atttypid, NULL), a.atttypmod FROM pg_attribute a "
    "WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
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


@dataclass(frozen=True, slots=True)
class TableSQL:
    """Questions about one table: `place` is its quoted name."""

    place: str
    layout: Layout
    language: str

    def __post_init__(self) -> None:
        if self.layout.key_type not in _KEYS:
            raise InputError(
                f"Ids are whole numbers, texts or UUIDs; column {self.layout.key!r} of {self.layout.store} is "
                f"{self.layout.key_type}."
            )

    def count(self, where: Where) -> Asked:
        conditions, values = self._where(where)
        return f"SELECT count(*) FROM {self.place} WHERE {conditions}", values

    def nearest(self, vector: str, questions: Sequence[tuple[int, Nearest]], where: Where, *, exact: bool) -> Asked:
        """The best of each question, under its number: one arm each, so that each knows its own lists of keys."""
        column, kind = quoted(vector), self.layout.types[vector]
        conditions, shared = self._where(where)
        arms: list[str] = []
        values: list[Any] = []
        for at, question in questions:
            row = f"[{','.join(map(repr, question.weights.tolist()))}]"
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
        key = quoted(self.layout.key)
        return f"SELECT {self._key} FROM {self.place} GROUP BY 1 HAVING count(*) > 1 OR count({key}) = 0 LIMIT 1", []

    def vectors(self, vector: str, keys: Sequence[Any]) -> Asked:
        column = quoted(vector)
        read = f"SELECT {self._key}, vector_send({column}::vector) FROM {self.place}"
        return f"{read} WHERE {column} IS NOT NULL AND {self._one_of('=', 'ANY')}", [self._given(keys)]

    def items(self, keys: Sequence[Any]) -> Asked:
        key = self.layout.key
        columns = ", ".join(self._key if name == key else quoted(name) for name in self.layout.item_columns)
        return f"SELECT {columns} FROM {self.place} WHERE {self._one_of('=', 'ANY')}", [self._given(keys)]

    def words(self, text: str, n: int, where: Where) -> Asked:
        """Any of the words will do, and more of them rank higher.

        ts_rank_cd, which is made for words near each other, would count one word that occurs twice as two.
        """
        conditions, values = self._where(where)
        configuration = f"{_literal(self.language)}::regconfig"
        held = [name for name, kind in self.layout.types.items() if kind == "tsvector"]
        texts = [_text_in(self.layout.place(name)) for name in self.layout.text]
        # As an index on this expression has it; there can be none on several columns.
        joined = texts[0] if len(texts) == 1 else f"concat_ws(' ', {', '.join(texts)})"
        document = quoted(held[0]) if held else f"to_tsvector({configuration}, {joined})"
        return (
            f"SELECT {self._key} AS key, ts_rank({document}, adacur_words, 1) AS value FROM {self.place}, "
            f"CAST(replace(plainto_tsquery({configuration}, %s)::text, ' & ', ' | ') AS tsquery) AS adacur_words "
            f"WHERE {document} @@ adacur_words AND {conditions} ORDER BY value DESC, key LIMIT %s",
            [text, *values, n],
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

    def _where(self, where: Where) -> Asked:
        text, values = where_sql(
            self.layout, where, any_of=_any_of, is_null=lambda place: f"{quoted(place.column)} IS NULL"
        )
        # A condition in the user's words has no placeholders.
        return (text.replace("%", "%%") if isinstance(where, str) else text), values

    def _among(self, question: Nearest) -> Asked:
        added, values = "", []
        if question.without:
            added, values = f" AND {self._one_of('<>', 'ALL')}", [self._given(question.without)]
        if question.within is not None:
            added, values = f"{added} AND {self._one_of('=', 'ANY')}", [*values, self._given(question.within)]
        return added, values

    def _one_of(self, sign: str, how: str) -> str:
        return f"{quoted(self.layout.key)} {sign} {how} (%s::{self.layout.key_type}[])"

    def _given(self, keys: Collection[Key]) -> list[Key]:
        check_whole_numbers(self.layout, keys)
        return list(keys)

    @property
    def _key(self) -> str:
        column = quoted(self.layout.key)
        return column if self.layout.key_type in _WHOLE else f"{column}::text"


def _any_of(place: Place, allowed: Sequence[Any]) -> Asked:
    column, kind = quoted(place.column), place.kind
    if kind in ("json", "jsonb"):
        return _json_has(_json_in(place), ".".join((place.column, *place.inside)), allowed)
    # "character" alone would mean one letter; an array has each of its values.
    kind = "bpchar" if kind == "character" else kind
    given = [str(value) for value in allowed if value is not None]
    if kind.endswith("[]"):
        return f"{column} && %s::text[]::{kind}", [given]
    return f"{column} = ANY (%s::text[]::{kind}[])", [given]


def _json_has(value: str, name: str, allowed: Sequence[Any]) -> Asked:
    """That JSON is one of these values, or a list that has one of them; and the values of the two placeholders."""
    # A list contains a plain value; but it also contains a part of itself, and a dictionary a part of itself.
    plain = [_json(name, one) for one in allowed if not isinstance(one, list | tuple | dict)]
    whole = [_json(name, one) for one in allowed if isinstance(one, list | tuple | dict)]
    return f"({value} @> ANY (%s::text[]::jsonb[]) OR {value} = ANY (%s::text[]::jsonb[]))", [plain, whole]


def _json(name: str, value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"The filter on {name!r} must be values that JSON has: {error}.") from None


def _json_in(place: Place) -> str:
    return f"({quoted(place.column)}::jsonb{''.join(f' -> {_literal(name)}' for name in place.inside)})"


def _text_in(place: Place) -> str:
    """The text in a column, or inside its JSON."""
    if not place.inside:
        return quoted(place.column)
    outer = Place(place.column, place.inside[:-1], place.kind)
    return f"({_json_in(outer)} ->> {_literal(place.inside[-1])})"


def _literal(text: str) -> str:
    return _as_text(require("psycopg.sql", extra="postgres").Literal(text))


def _as_text(part: Any) -> str:
    return str(part.as_string(None)).replace("%", "%%")
