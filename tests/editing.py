"""One change of an index by itself."""

from __future__ import annotations

from typing import Any

from adacur.search import AnchorIndex, Change


class Edited:
    """`Edited(index).remove(ids)` edits the index by that alone, and returns the change."""

    def __init__(self, index: AnchorIndex, **options: Any) -> None:
        self._index = index
        self._options = {"progress": False, **options}

    def __getattr__(self, name: str) -> Any:
        def change(*given: Any, **named: Any) -> Change:
            with self._index.edit(**self._options) as edit:
                getattr(edit, name)(*given, **named)
            return edit.change

        return change
