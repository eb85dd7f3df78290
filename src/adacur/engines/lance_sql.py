"""Filters and keys as conditions in the SQL of LanceDB, which has no placeholders, and metadata that it can filter.

Beside metadata as JSON, a table has a column `facts`: for each name and value a text, and of a list one for each of its
values. Two items share the text where they share the value, whatever characters the name has and whatever type the
value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError
from adacur.core.extras import require
from adacur.core.records import Item
from adacur.engines.tables import Layout, condition, metadata_json, wanted
from adacur.engines.vector_store import Key, Where, check_kept, shown

_LONGEST_FACT = 200


def where_sql(layout: Layout, where: Where) -> str | None:
    """A filter as a condition."""
    if where is None:
        return None
    if isinstance(where, str):
        return condition(where)
    conditions = []
    for name, allowed in wanted(where):
        if layout.made:
            facts = ", ".join(_literal(_fact(name, value)) for value in allowed)
            conditions.append(f"array_has_any(facts, [{facts}])" if allowed else "false")
        else:
            is_list = layout.filterable(name).startswith(("list<", "large_list<"))
            given = ", ".join(_literal(value) for value in allowed if value is not None)
            any_of = f"array_has_any({_quoted(name)}, [{given}])" if is_list else f"{_quoted(name)} IN ({given})"
            among = [any_of] if given else []
            nothing = [f"{_quoted(name)} IS NULL"] if None in allowed else []
            conditions.append(f"({' OR '.join(among + nothing) or 'false'})")
    return " AND ".join(conditions) or None


def item_columns(keys: Sequence[int], items: Sequence[Item], vectors: Mapping[str, FloatArray]) -> Any:
    """Items as rows of a table that `create` made."""
    arrow = require("pyarrow", extra="lancedb")
    metadata = arrow.array([_checked_json(item) for item in items], type=arrow.string())
    facts = [[fact for pair in item.metadata.items() for fact in _facts(*pair)] for item in items]
    columns = {
        "key": arrow.array(keys, type=arrow.int64()),
        "id": arrow.array([item.id for item in items], type=arrow.string()),
        "text": arrow.array([item.text for item in items], type=arrow.string()),
        "metadata": arrow.ExtensionArray.from_storage(arrow.json_(), metadata),
        "facts": arrow.array(facts, type=arrow.list_(arrow.string())),
    }
    for name, array in vectors.items():
        columns[name] = arrow.FixedSizeListArray.from_arrays(arrow.array(array.ravel()), array.shape[1])
    return arrow.table(columns)


def _checked_json(item: Item) -> str:
    """An item's metadata as JSON text that LanceDB gives back as it is."""

    def whole(digits: str) -> int:
        if not -(2**63) <= int(digits) < 2**64:
            raise InputError(f"LanceDB keeps whole numbers of 64 bits; the metadata of item {item.id!r} has {digits}.")
        return 0

    check_kept(item)
    text = metadata_json(item)
    json.loads(text, parse_int=whole)
    return text


def _facts(name: str, value: object) -> list[str]:
    """What an item with this value under this name can be found by."""
    parts = value if isinstance(value, list | tuple) else ()
    return list(dict.fromkeys(_fact(name, one) for one in (value, *parts)))


def _fact(name: str, value: object) -> str:
    """That an item has this value under this name, as text that can be compared; 1 and 1.0 are the same."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        text = json.dumps([name, value], sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"The value of {name!r} must be one that JSON has: {error}.") from None
    return text if len(text) <= _LONGEST_FACT else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def one_of(layout: Layout, keys: Collection[Key]) -> str:
    """That the key is one of these."""
    if "int" in layout.types[layout.key] and (text := next((key for key in keys if isinstance(key, str)), None)):
        raise InputError(f"The keys of {layout.store} are whole numbers; got {shown(text)}.")
    return f"{_quoted(layout.key)} IN ({', '.join(map(_literal, keys))})"


def column(name: str) -> str:
    """The name of a column, if it can be quoted."""
    if "`" in name:
        raise InputError(f"LanceDB cannot search by a column with ` in its name: {name!r}.")
    return name


def _quoted(name: str) -> str:
    return f"`{column(name)}`"


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
