"""What a filter that leaves no item says."""

from __future__ import annotations

from typing import Any

import pytest

from adacur.errors import EmptyInput
from adacur.records import Item, ItemList
from adacur.search.filters import allowed_by

ITEMS = ItemList(
    Item(f"i{n}", "text", {"year": 1960 + n, "lang": ["en", "de"], "box": {"x": n}, "score": None}) for n in range(9)
)


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
        allowed_by(wanted, ITEMS)
