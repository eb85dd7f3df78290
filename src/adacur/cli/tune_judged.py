"""`adacur tune --qrels`: how much of the first stage to blend into the order, by the user's own judgements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from adacur.cli.messages import print_json, print_table, say, tell
from adacur.cli.tune import ks_within, tell_beyond
from adacur.core.errors import EmptyInput, InputError
from adacur.core.records import Query
from adacur.data import read_qrels, read_queries
from adacur.search import AnchorIndex
from adacur.tuning import JudgedTuning, calls_to_tune_fuse, tune_fuse
from adacur.tuning.held_out import check_anchors

__all__ = ["tune_judged_command"]


def tune_judged_command(
    index: str,
    *,
    qrels: Path,
    judged: Path | None,
    ks: Sequence[int],
    budgets: Sequence[int],
    seed: int,
    as_json: bool,
    scorer: str | None,
    trust: bool,
) -> None:
    """Choose fuse and pool for every k and budget, say what it costs first, and show what was found."""
    import adacur

    wanted = ks_within(budgets, ks)
    judgements = read_qrels(qrels)
    opened = adacur.load(index, check=judged is not None, scorer=scorer, trust=trust)
    check_anchors(opened, "Choosing by judgements")
    asked = list(read_queries(judged)) if judged else list(opened.anchor_queries)
    known = [query for query in asked if query.id in judgements]
    if not asked:
        raise EmptyInput(f"{judged} has no queries.")
    if not known:
        whose = f"among the {len(asked)} queries in {judged}" if judged else "an anchor query"
        raise InputError(
            f"None of the {len(judgements)} judged queries in {qrels} is {whose}: their ids are such as "
            f"{next(iter(judgements))!r}, and those of {'the file' if judged else 'anchor queries'} such as "
            f"{asked[0].id!r}. " + ("Check the ids." if judged else "Give their texts with --judged FILE.")
        )
    asked = known
    tell_beyond(budgets, n_items=len(opened))
    _tell_absent(opened, asked, judgements)
    for budget, fitting in wanted:
        budget = min(budget, len(opened))
        calls = calls_to_tune_fuse(opened, asked, budget=budget)
        tell(
            f"{len(asked)} judged queries; {calls // budget} of them are not anchor queries and cost {budget} calls "
            f"each{f' for each of {len(fitting)} k' if len(fitting) > 1 else ''}: {calls * len(fitting):,} in all."
            if calls
            else f"{len(asked)} judged queries, all of them anchor queries: no scorer call is made."
        )
        for k in fitting:
            tuning = tune_fuse(opened, asked, judgements, k=k, budget=budget, seed=seed)
            if as_json:
                print_json({"k": k, "budget": budget} | asdict(tuning) | {"verdict": tuning.verdict})
            else:
                _show(tuning)


def _tell_absent(index: AnchorIndex, asked: Sequence[Query], judgements: Mapping[str, Mapping[str, int]]) -> None:
    """Say which judgements no search of this index can meet."""
    relevant = {query.id: [id_ for id_, grade in judgements[query.id].items() if grade > 0] for query in asked}
    there = set(index.items.ids)
    missing = [id_ for ids in relevant.values() for id_ in ids if id_ not in there]
    if missing:
        without = sum(bool(ids) and not any(id_ in there for id_ in ids) for ids in relevant.values())
        tell(
            f"Relevant items that are not in the index (e.g. {missing[0]!r}), so that no search can find them: "
            f"{len(missing):,} of {sum(map(len, relevant.values())):,} judgements. Queries without any other relevant "
            f"item: {without:,} of {len(asked):,}."
        )


def _show(tuning: JudgedTuning) -> None:
    table = Table(show_edge=False, pad_edge=False)
    for name in ("fuse", "pool", "stop", tuning.measure, "difference", "standard error", "calls"):
        table.add_column(name, justify="right")
    for one in tuning.tried:
        table.add_row(
            f"{one.fuse:g}",
            "–" if one.pool is None else str(one.pool),
            "–" if one.stop_when is None else f"{one.stop_when:g}",
            f"{one.quality:.3f}",
            f"{one.difference:+.3f}",
            f"{one.error:.3f}",
            f"{one.calls:.0f}",
            style="bold" if one == tuning.chosen else None,
        )
    print_table(table)
    say(tuning.verdict)
    wanted = {"fuse": tuning.chosen.fuse or None, "pool": tuning.chosen.pool, "stop-when": tuning.chosen.stop_when}
    given = " ".join(f"--{name} {value:g}" for name, value in wanted.items() if value is not None)
    if given:
        tell(f"To use it: adacur search … {given}. Report quality on other queries than these.")
