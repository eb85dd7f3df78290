"""`adacur index add`: new items."""

from __future__ import annotations

from adacur.cli.index.editing import edit_index
from adacur.cli.options import IndexPath, Json, NewItems, RayAddress, ScorerOfIndex, Trust, Workers

__all__ = ["add"]


def add(
    index: IndexPath,
    items: NewItems,
    scorer: ScorerOfIndex = None,
    trust: Trust = False,
    workers: Workers = None,
    ray: RayAddress = None,
    as_json: Json = False,
) -> None:
    """Add items to an index, for one scorer call per item and anchor query. Interrupted, the same command continues.

    Processes that have the index open keep the version that they opened.

    Example: adacur index add my.adacur new.jsonl
    """
    edit_index(
        index,
        lambda edit: edit.add(items),
        scorer=scorer,
        trust=trust,
        workers=workers,
        ray=ray,
        as_json=as_json,
    )
