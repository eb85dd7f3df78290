"""`adacur index add`: new items."""

from __future__ import annotations

from adacur.cli import options as opt
from adacur.cli.index.editing import edit_index


def add(
    index: opt.IndexPath,
    items: opt.NewItems,
    scorer: opt.ScorerOfIndex = None,
    trust: opt.Trust = False,
    workers: opt.Workers = None,
    ray: opt.RayAddress = None,
    as_json: opt.Json = False,
) -> None:
    """Add items to an index, for one scorer call per item and anchor query. Interrupted, the same command continues.

    Processes that have the index open keep the version that they opened.

    Example: adacur index add my.adacur new.jsonl
    """
    on = opt.on_workers(workers, ray)
    edit_index(index, lambda edit: edit.add(items), scorer=scorer, trust=trust, on=on, as_json=as_json)
