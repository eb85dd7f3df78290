"""`adacur index replace`: other texts for items."""

from __future__ import annotations

from adacur.cli.index.editing import edit_index
from adacur.cli.options import IndexPath, Json, NewItems, RayAddress, ScorerOfIndex, Trust, Workers

__all__ = ["replace"]


def replace(
    index: IndexPath,
    items: NewItems,
    scorer: ScorerOfIndex = None,
    trust: Trust = False,
    workers: Workers = None,
    ray: RayAddress = None,
    as_json: Json = False,
) -> None:
    """Give items of an index other texts, for one scorer call per item and anchor query.

    An interrupted replacement continues with the same command.

    Example: adacur index replace my.adacur changed.jsonl
    """
    edit_index(
        index,
        lambda edit: edit.replace(items),
        scorer=scorer,
        trust=trust,
        workers=workers,
        ray=ray,
        as_json=as_json,
    )
