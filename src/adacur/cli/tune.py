"""`adacur tune`: settings for a k and a budget, chosen by replayed anchor queries or by judgements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from adacur.cli.messages import note, notes, print_json, print_table, say
from adacur.cli.options import IndexPath, Json, ScorerOfIndex, Seed, Trust, whole_numbers
from adacur.core.errors import EmptyInput, InputError
from adacur.core.records import Query

if TYPE_CHECKING:
    from adacur.search import AnchorIndex
    from adacur.tuning import JudgedTuning, Tuning

__all__ = ["tune"]


def tune(
    index: IndexPath,
    k: Annotated[
        list[str] | None,
        typer.Option("-k", "--k", metavar="INTEGER", help="The number of items; several with commas; default: 10."),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(metavar="INTEGER", help="Scorer calls per question; several with commas; default: 100."),
    ] = None,
    queries: Annotated[int, typer.Option(min=1, help="Replay at most N anchor queries.")] = 100,
    qrels: Annotated[
        Path | None,
        typer.Option(help="Judgements (qrels), by which to choose fuse, pool and stop_when instead."),
    ] = None,
    judged: Annotated[
        Path | None,
        typer.Option(
            help="With --qrels: the judged queries, a budget of scorer calls each; default: the anchor queries, free."
        ),
    ] = None,
    scorer: ScorerOfIndex = None,
    trust: Trust = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Choose search settings for your k and budget, and predict the recall. Calls no scorer, except for --judged.

    Each anchor query is searched for again, as if it were new. With --qrels, judged quality decides how much of the
    first stage to blend into the order. --json prints a line per k and budget.

    Example: adacur tune my.adacur -k 10 --budget 100
    """
    import adacur

    pairs = _pairs(whole_numbers("-k", k or ["10"]), whole_numbers("--budget", budget or ["100"]))
    if judged is not None and qrels is None:
        raise InputError("--judged names the queries of judgements; give these with --qrels FILE.")
    with adacur.load(index, check=judged is not None, scorer=scorer, trust=trust) as opened:
        if beyond := sorted({calls for _, calls in pairs if calls > len(opened)}):
            large = ", ".join(f"{calls:,}" for calls in beyond)
            note(f"The index has {len(opened):,} items: a budget of {large} is taken as {len(opened):,}.")
        pairs = list(dict.fromkeys((n, min(calls, len(opened))) for n, calls in pairs))
        if qrels is None:
            _by_replay(opened, pairs, queries=queries, seed=seed, as_json=as_json)
        else:
            _by_judgements(opened, pairs, qrels, judged, seed=seed, as_json=as_json)


def _pairs(ks: Sequence[int], budgets: Sequence[int]) -> list[tuple[int, int]]:
    pairs = [(k, budget) for budget in budgets for k in ks if k <= budget]
    if not pairs:
        raise InputError(
            f"Only scored items are returned, so a budget must be at least k; got -k {', '.join(map(str, ks))} and "
            f"--budget {', '.join(map(str, budgets))}."
        )
    return pairs


def _by_replay(index: AnchorIndex, pairs: Sequence[tuple[int, int]], *, queries: int, seed: int, as_json: bool) -> None:
    from adacur.index import home_of
    from adacur.search.tuned import TUNED, read_tunings
    from adacur.tuning import tune as tune_one

    made: list[Tuning] = []
    for k, budget in pairs:
        with _bar(f"k = {k}, {budget} calls") as progress:
            tuning = tune_one(index, k=k, budget=budget, queries=queries, seed=seed, progress=progress)
        made.append(tuning)
        if as_json:
            print_json(asdict(tuning) | {"verdict": tuning.verdict})
        else:
            _show(tuning)
    assert index.path is not None
    chosen, home = [one for one in made if not one.is_exact], home_of(index.path)
    if not chosen:
        note("There was nothing to choose, so nothing is stored.")
    elif chosen[-1] in read_tunings(home, anchor_queries=index.anchor_queries):
        note(f"Stored in {home}/{TUNED}; used by searches {'; '.join(map(_reach, chosen))}.")
    else:
        note(f"{index.path} cannot be written to, so nothing is stored.")


def _reach(tuning: Tuning) -> str:
    """Which searches a tuning is used by."""
    from adacur.search.tuned import reach_of

    (fewest, most), (least, largest) = reach_of(tuning.k), reach_of(tuning.budget)
    return f"with k {fewest}–{most} and budget {least}–{largest}"


def _show(tuning: Tuning) -> None:
    if tuning.predictions:
        table = Table(show_edge=False, pad_edge=False)
        table.add_column("method")
        for name in (f"top-{tuning.k} recall", "95 % interval", "calls"):
            table.add_column(name, justify="right")
        for one in tuning.predictions:
            table.add_row(one.method, f"{one.recall:.3f}", f"{one.low:.3f} … {one.high:.3f}", str(tuning.budget))
        print_table(table)
        say(
            "By definition: every item is scored."
            if tuning.is_exact
            else f"Predicted from {tuning.n_queries} anchor queries, by leave-one-out: each is searched for with an "
            f"index without it. In 19 of 20 cases the mean over {tuning.n_queries} new queries like them lies in the "
            "interval."
        )
        if not tuning.is_exact:
            say(f"Settings: {_changes(tuning)}")
    say(tuning.verdict)


def _changes(tuning: Tuning) -> str:
    from adacur.search.tuned import default_settings

    usual = default_settings(tuning.k)
    changed = [
        f"{field.name} {getattr(tuning.settings, field.name)} (default: {getattr(usual, field.name)})"
        for field in fields(usual)
        if getattr(tuning.settings, field.name) != getattr(usual, field.name)
    ]
    return ", ".join(changed) or "the defaults; no setting tried was better by more than its standard error."


@contextmanager
def _bar(what: str) -> Iterator[_Bar]:
    columns = (TextColumn("replaying {task.description}"), *Progress.get_default_columns()[1:3], TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True) as shown:
        yield _Bar(shown, what)


class _Bar:
    """Moves a bar along as replays are done."""

    def __init__(self, shown: Progress, what: str) -> None:
        self._shown = shown
        self._task = shown.add_task(what, total=None)

    def __call__(self, done: int, at_most: int) -> None:
        self._shown.update(self._task, completed=done, total=at_most)


def _by_judgements(
    index: AnchorIndex,
    pairs: Sequence[tuple[int, int]],
    qrels: Path,
    judged: Path | None,
    *,
    seed: int,
    as_json: bool,
) -> None:
    from adacur.data import read_qrels, read_queries
    from adacur.tuning import calls_to_tune_fuse, tune_fuse
    from adacur.tuning.held_out import check_anchors

    judgements = read_qrels(qrels)
    check_anchors(index, "Choosing by judgements")
    queries = list(read_queries(judged)) if judged else list(index.anchor_queries)
    if not queries:
        raise EmptyInput(f"{judged} has no queries.")
    known = [query for query in queries if query.id in judgements]
    if not known:
        what = f"among the {len(queries)} queries in {judged}" if judged else "an anchor query"
        raise InputError(
            f"None of the {len(judgements)} judged queries in {qrels} is {what}: their ids are such as "
            f"{next(iter(judgements))!r}, and those of {'the file' if judged else 'anchor queries'} such as "
            f"{queries[0].id!r}. " + ("Check the ids." if judged else "Give their texts with --judged FILE.")
        )
    _note_absent(index, known, judgements)
    calls = sum(calls_to_tune_fuse(index, known, budget=budget) for _, budget in pairs)
    note(f"{len(known)} judged queries; those that are not anchor queries cost {calls:,} scorer calls in all.")
    for k, budget in pairs:
        tuning = tune_fuse(index, known, judgements, k=k, budget=budget, seed=seed)
        if as_json:
            print_json({"k": k, "budget": budget} | asdict(tuning) | {"verdict": tuning.verdict})
        else:
            _show_judged(tuning)


def _note_absent(index: AnchorIndex, queries: Sequence[Query], judgements: Mapping[str, Mapping[str, int]]) -> None:
    """Say which judgements no search of this index can meet."""
    relevant = {query.id: [id_ for id_, grade in judgements[query.id].items() if grade > 0] for query in queries}
    there = set(index.items.ids)
    missing = [id_ for ids in relevant.values() for id_ in ids if id_ not in there]
    if missing:
        without = sum(bool(ids) and not any(id_ in there for id_ in ids) for ids in relevant.values())
        note(
            f"Relevant items that are not in the index (e.g. {missing[0]!r}), so that no search can find them: "
            f"{len(missing):,} of {sum(map(len, relevant.values())):,} judgements. Queries without any other relevant "
            f"item: {without:,} of {len(queries):,}."
        )


def _show_judged(tuning: JudgedTuning) -> None:
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
    chosen = tuning.chosen
    flags = [f"--fuse {chosen.fuse:g}"] if chosen.fuse else []
    flags += [f"--pool {chosen.pool}"] if chosen.pool is not None else []
    flags += [f"--set stop_when={chosen.stop_when:g}"] if chosen.stop_when is not None else []
    if flags:
        note(f"To use it: adacur search … {' '.join(flags)}. Report quality on other queries than these.")
