"""Which items pass a filter in memory."""

from __future__ import annotations

from typing import Any

import pytest

from adacur.errors import EmptyInput
from adacur.records import Item, ItemList
from adacur.search.filters import allowed_by

ITEMS = ItemList(
    [
        Item("a", "x", {"lang": "de", "year": 2023, "metadata": {"lang": "en", "tags": ["p", "q"], "at": {"n": 1}}}),
        Item("b", "x", {"lang": "en", "year": 2024, "metadata": {"lang": "de"}}),
        Item("c", "x", {"metadata.lang": "fr", "metadata": {"lang": "de"}}),
    ]
)


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ({"metadata.lang": "de"}, "b"),
        ({"metadata.lang": ["de", "fr"]}, "bc"),
        ({"metadata.lang": "en", "lang": "de"}, "a"),
        ({"metadata.tags": "q"}, "a"),
        ({"metadata.at.n": 1}, "a"),
        ({"year": (2023, 2024)}, "ab"),
        ({"year": {2024}}, "b"),
        ({"document": ["a", "c"]}, "ac"),
    ],
    ids=str,
)
def test_names_with_dots_lead_into_dictionaries_and_several_values_mean_any(where: dict[str, Any], ids: str) -> None:
    allowed = allowed_by(where, ITEMS)
    assert "".join(id_ for id_, passes in zip(ITEMS.ids, allowed, strict=True) if passes) == ids


@pytest.mark.parametrize(
    "where", [{"metadata.long": "de"}, {"metadata.lang.x": 1}, {"metadata": "de"}, {"lang.": 1}], ids=str
)
def test_a_name_that_no_item_has_is_told_with_those_there_are(where: dict[str, Any]) -> None:
    with pytest.raises(EmptyInput) as caught:
        allowed_by(where, ITEMS)
    assert "metadata.lang" in str(caught.value)
