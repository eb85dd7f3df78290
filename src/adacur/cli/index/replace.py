"""`adacur index replace`: other texts for items."""

from __future__ import annotations

from adacur.cli import options as opt
from adacur.cli.index.editing import edit_index


def replace(
    index: opt.IndexPath,
    items: opt.NewItems,
    scorer: opt.ScorerOfIndex = None,
    trust: opt.Trust = False,
    workers: opt.Workers = None,
    ray: opt.RayAddress = None,
    as_json: opt.Json = False,
) -> None:
    """Give items of an index other texts, for one scorer call per item and anchor query.

    An interrupted replacement continues with the same command.

    Example: adacur index replace my.adacur changed.jsonl
    """
    on = opt.on_workers(workers, ray)
    edit_index(index, lambda edit: edit.replace(items), scorer=scorer, trust=trust, on=on, as_json=as_json)
