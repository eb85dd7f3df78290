"""A first spec for those who have none: sizes chosen so that scoring takes minutes, not hours."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adacur.core.errors import InputError
from adacur.experiments.sources import read_records, scoring_cost
from adacur.experiments.spec import CollectionSpec, Spec, spec_text
from adacur.search import scorer as open_scorer

__all__ = ["starting_spec"]

_FEWEST_QUERIES, _MOST_QUERIES = 5, 30
_FEWEST_ANCHORS, _MOST_ANCHORS = 10, 100
_SHARE_OF_TESTS = 0.4
_TIMED_QUERIES = 10


def starting_spec(
    folder: str | Path,
    *,
    scorer: str,
    output: str | Path,
    scorer_options: Mapping[str, Any] | None = None,
    minutes: float = 5.0,
    n_anchors: int | None = None,
    n_queries: int | None = None,
    search: Mapping[str, Any] | None = None,
    budgets: Sequence[int] = (25, 50, 100),
    seed: int = 0,
) -> Path:
    """Write the spec of a BEIR folder to `output`/spec.toml, and say where; `search` are keys of its [search] table.

    Numbers of anchor and test queries that are not given follow from the time that scoring may take: the scorer is
    timed for some two seconds. A spec that is there already keeps its numbers, so that an interrupted evaluation goes
    on with the same queries. Where queries are too few, pseudo-queries are the anchors.
    """
    folder, output = Path(folder), Path(output)
    if not minutes > 0:
        raise InputError(f"minutes is the time that scoring may take; got {minutes}.")
    records = read_records(CollectionSpec(name="", folder=str(folder)))
    n_items = len(records.items)
    before = _before(output / "spec.toml", folder)
    if n_anchors is None and n_queries is None and before:
        n_anchors, n_queries = before
    judged = sum(bool((records.qrels or {}).get(query.id)) for query in records.queries) or len(records.queries)
    if n_anchors is None or n_queries is None:
        opened = open_scorer(scorer, **(scorer_options or {}))
        pace = scoring_cost(records.items, records.queries, scorer=opened, n_queries=_TIMED_QUERIES).pairs_per_second
        affordable = int(pace * 60 * minutes / n_items)
        if n_queries is None:
            n_queries = _between(round(_SHARE_OF_TESTS * affordable), _FEWEST_QUERIES, _MOST_QUERIES)
        if n_anchors is None:
            n_anchors = _between(affordable - n_queries, _FEWEST_ANCHORS, _MOST_ANCHORS)
    n_queries = min(n_queries, judged)
    pseudo = len(records.queries) - n_queries < n_anchors
    source = os.path.relpath(scorer, output) if Path(scorer).exists() else scorer
    tables: dict[str, Any] = {
        "collection": {"name": folder.resolve().name, "folder": os.path.relpath(folder, output)},
        "scorer": {"source": source, "options": dict(scorer_options or {})},
        "anchors": {"numbers": [n_anchors], "pseudo": pseudo, "seed": seed},
        "search": {"budgets": sorted({min(budget, n_items) for budget in budgets}), "k": [1, 10]}
        | dict(search or {})
        | {"n_queries": n_queries, "seeds": [seed]},
        "output": {"folder": "."},
    }
    if not scorer_options:
        del tables["scorer"]["options"]
    # What would be refused later is refused before anything is written.
    Spec.from_tables(tables, relative_to=output)
    output.mkdir(parents=True, exist_ok=True)
    (output / "spec.toml").write_text(spec_text(tables), encoding="utf-8")
    return output / "spec.toml"


def _before(spec: Path, folder: Path) -> tuple[int, int] | None:
    """The numbers of anchor and test queries of a spec that was written before; refused if it is of other items."""
    if not spec.exists():
        return None
    try:
        tables = tomllib.loads(spec.read_text(encoding="utf-8"))
        known = (spec.parent / tables["collection"]["folder"]).resolve()
        numbers = max(tables["anchors"]["numbers"]), int(tables["search"]["n_queries"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{spec} is not a spec that this command wrote ({error!r}). Choose another output.") from error
    if known != folder.resolve():
        raise InputError(f"{spec.parent} holds the evaluation of {known}. Choose another output for {folder}.")
    return numbers


def _between(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))
