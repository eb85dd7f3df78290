"""Filters and keys as conditions in the SQL of LanceDB, which has no placeholders."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from adacur.errors import InputError
from adacur.extras.engines.sql_tables import Layout, condition, wanted
from adacur.extras.engines.vector_store import Key, Where, shown


def where_sql(layout: Layout, where: Where) -> str | None:
    """A filter as a condition."""
    if where is None:
        return None
    if isinstance(where, str):
        return condition(where)
    conditions = []
    for name, allowed in wanted(where):
        place, inside, kind = layout.filterable(name)
        value = ".".join(map(_quoted, (place, *inside)))
        given = ", ".join(_literal(one) for one in allowed if one is not None)
        is_list = kind.startswith(("list<", "large_list<"))
        any_of = f"array_has_any({value}, [{given}])" if is_list else f"{value} IN ({given})"
        among = [any_of] if given else []
        nothing = [f"{value} IS NULL"] if None in allowed else []
        conditions.append(f"({' OR '.join(among + nothing) or 'false'})")
    return " AND ".join(conditions) or None


def one_of(layout: Layout, keys: Collection[Key]) -> str:
    """That the key is one of these."""
    if "int" in layout.types[layout.key] and (text := next((key for key in keys if isinstance(key, str)), None)):
        raise InputError(f"The keys of {layout.store} are whole numbers; got {shown(text)}.")
    return f"{_quoted(layout.key)} IN ({', '.join(map(_literal, keys))})"


def _quoted(name: str) -> str:
    if "`" in name:
        raise InputError(f"LanceDB cannot search by a column with ` in its name: {name!r}.")
    return f"`{name}`"


def _literal(value: object) -> str:
    """A value as LanceDB's SQL writes it."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float) and np.isfinite(value):
        return repr(value)
    raise InputError(
        f"A filter compares with texts, numbers and truth values; got {shown(value)}. Write others as an SQL condition."
    )
