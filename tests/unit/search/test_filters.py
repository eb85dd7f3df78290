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

YEARS = ItemList(
    Item(f"i{n}", "text", {"year": 1960 + n, "lang": ["en", "de"], "box": {"x": n}, "score": None}) for n in range(9)
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


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"year": "1966"}, "year='1966'; 'year' holds whole numbers, such as 1960, 1961, 1962"),
        ({"lang": "fr", "year": 1966}, "lang='fr'; 'lang' holds texts, such as 'en', 'de'"),
        ({"year": ["1966", 1950]}, r"year=\['1966', 1950\]"),
        ({"box": 1}, "box.x"),
        ({"document": "d1"}, "'document' holds texts, such as 'i0'"),
        ({"score": 1}, "'score' holds no value"),
        ({"yeer": 1966}, "Did you mean 'year'"),
    ],
)
def test_a_filter_without_items_says_what_the_field_holds(wanted: dict[str, Any], says: str) -> None:
    with pytest.raises(EmptyInput, match=says):
        allowed_by(wanted, YEARS)
