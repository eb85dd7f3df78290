"""A first spec for those who have none: sizes chosen so that scoring takes minutes, not hours."""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adacur.core.errors import InputError
from adacur.experiments.sources import check_runs, live_split, read_records, sampled, scoring_cost
from adacur.experiments.spec import AnchorsSpec, CollectionSpec, Spec, spec_text
from adacur.scorers import scorer as open_scorer

__all__ = ["is_edited", "starting_spec"]

_FEWEST_QUERIES, _MOST_QUERIES = 5, 30
_FEWEST_ANCHORS, _MOST_ANCHORS = 10, 100
_SHARE_OF_TESTS = 0.4
_TIMED_QUERIES = 10
_FEWEST_ITEMS, _QUERIES_OF_A_SAMPLE = 200, 40
_MARK = "# Written by adacur evaluate ({}). Change it at will: a changed spec is never overwritten.\n\n"


def starting_spec(
    folder: str | Path,
    *,
    scorer: str,
    output: str | Path,
    scorer_options: Mapping[str, Any] | None = None,
    minutes: float = 5.0,
    n_anchors: int | None = None,
    n_queries: int | None = None,
    n_items: int | None = None,
    search: Mapping[str, Any] | None = None,
    budgets: Sequence[int] = (25, 50, 100),
    seed: int = 0,
) -> Path:
    """Write the spec of a BEIR folder to `output`/spec.toml, and say where; `search` are keys of its [search] table.

    Numbers of anchor and test queries that are not given follow from the time that scoring may take: the scorer is
    timed for a few seconds. Where not even the fewest queries fit into that time, a sample of the items is taken;
    `n_items` asks for one, or, with all items or more, for none. A spec that is there already keeps its numbers, so
    that an interrupted evaluation goes on with the same queries; one that was changed by hand is refused. Where queries
    are too few, pseudo-queries are the anchors.
    """
    folder, output = Path(folder), Path(output)
    if not minutes > 0:
        raise InputError(f"minutes is the time that scoring may take; got {minutes}.")
    records = read_records(CollectionSpec(name="", folder=str(folder)))
    file = output / "spec.toml"
    if is_edited(file):
        raise InputError(
            f"{file} was changed by hand and is not overwritten. Put what you want into it and run "
            f"`adacur evaluate {file}`, or choose another output."
        )
    before = _before(file, folder)
    if n_anchors is None and n_queries is None and n_items is None and before:
        n_anchors, n_queries, n_items = before
    source = os.path.relpath(scorer, output) if Path(scorer).exists() else scorer
    tables: dict[str, Any] = {
        "collection": {"name": folder.resolve().name, "folder": os.path.relpath(folder, output)},
        "scorer": {"source": source} | ({"options": dict(scorer_options)} if scorer_options else {}),
        "anchors": {"seed": seed},
        "search": _within(len(records.items), budgets) | dict(search or {}) | {"seeds": [seed]},
        "output": {"folder": "."},
    }
    # What would be refused later is refused before anything is timed or written.
    spec = Spec.from_tables(tables, relative_to=output)
    check_runs(spec, spec.collections[0], records)
    judged = sum(bool((records.qrels or {}).get(query.id)) for query in records.queries) or len(records.queries)
    if n_anchors is None or n_queries is None:
        opened = open_scorer(scorer, **(scorer_options or {}))
        pace = scoring_cost(records.items, records.queries, scorer=opened, n_queries=_TIMED_QUERIES).pairs_per_second
        pairs = pace * 60 * minutes
        fewest = (n_queries or _FEWEST_QUERIES) + (n_anchors or _FEWEST_ANCHORS)
        if n_items is None and pairs < fewest * len(records.items):
            wanted = max(_FEWEST_ITEMS, int(pairs / _QUERIES_OF_A_SAMPLE))
            # Most of the items would take as long as all of them.
            n_items = wanted if 2 * wanted <= len(records.items) else None
        affordable = int(pairs / min(n_items or len(records.items), len(records.items)))
        if n_queries is None:
            n_queries = _between(round(_SHARE_OF_TESTS * affordable), _FEWEST_QUERIES, _MOST_QUERIES)
        if n_anchors is None:
            n_anchors = _between(affordable - n_queries, _FEWEST_ANCHORS, _MOST_ANCHORS)
    n_queries = min(n_queries, judged)
    spec = replace(spec, anchors=AnchorsSpec(numbers=(n_anchors,), seed=seed), n_queries=n_queries)
    if n_items is not None and n_items < len(records.items):
        # Under a name of its own: its runs are not to be compared with those of the whole collection.
        tables["collection"] |= {"name": f"{folder.resolve().name}-{n_items}-items", "sample": n_items}
        records = sampled(records, spec, n_items)
        tables["search"] = _within(len(records.items), budgets) | dict(search or {}) | {"seeds": [seed]}
    split = live_split(records, spec)
    tables["search"]["n_queries"] = n_queries
    tables["anchors"] = {"numbers": [len(split.anchors) or n_anchors], "pseudo": split.pseudo, "seed": seed}
    if not split.anchors:
        del tables["anchors"]["pseudo"]
    output.mkdir(parents=True, exist_ok=True)
    text = spec_text(tables)
    file.write_text(_MARK.format(_digest(text)) + text, encoding="utf-8")
    return file


def _within(n_items: int, budgets: Sequence[int]) -> dict[str, Any]:
    return {"budgets": sorted({min(budget, n_items) for budget in budgets}), "k": sorted({1, min(10, n_items)})}


def is_edited(spec: Path) -> bool:
    """Whether a spec is there and is not, to the letter, one that `starting_spec` wrote."""
    if not spec.exists():
        return False
    text = spec.read_text(encoding="utf-8").partition("\n\n")[2]
    return spec.read_text(encoding="utf-8") != _MARK.format(_digest(text)) + text


def _before(spec: Path, folder: Path) -> tuple[int, int, int | None] | None:
    """The numbers of anchor and test queries, and of items if it is a sample, of a spec that was written before.

    Refused if it is of other items.
    """
    if not spec.exists():
        return None
    tables = tomllib.loads(spec.read_text(encoding="utf-8"))
    known = (spec.parent / tables["collection"]["folder"]).resolve()
    if known != folder.resolve():
        raise InputError(f"{spec.parent} holds the evaluation of {known}. Choose another output for {folder}.")
    numbers = max(tables["anchors"]["numbers"]), int(tables["search"]["n_queries"])
    return *numbers, tables["collection"].get("sample")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _between(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))
