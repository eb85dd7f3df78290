"""`adacur tune`: what is shown while it replays, and what it found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields

from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from adacur.cli.messages import note, print_json, print_table, say, tell
from adacur.core.errors import InputError
from adacur.index import home_of
from adacur.search.settings import default_settings
from adacur.search.tuned import TUNED, Tuning, reach_of, read_tunings
from adacur.tuning import tune

__all__ = ["ks_within", "tell_beyond", "tune_command", "tuned_line"]


def tune_command(
    index: str, *, ks: Sequence[int], budgets: Sequence[int], queries: int, seed: int, as_json: bool, trust: bool
) -> None:
    """Tune an index for every k and budget that go together, and say what was found."""
    import adacur

    wanted = [(k, budget) for budget, fitting in ks_within(budgets, ks) for k in fitting]
    opened = adacur.load(index, check=False, trust=trust)
    assert opened.path is not None
    home = home_of(opened.path)
    tell_beyond(budgets, n_items=len(opened))
    made: list[Tuning] = []
    for k, budget in wanted:
        with _told(f"k = {k}, {budget} calls") as progress:
            tuning = tune(opened, k=k, budget=budget, queries=queries, seed=seed, progress=progress)
        if tuning in made:
            continue  # Of two budgets above the number of items.
        made.append(tuning)
        if as_json:
            print_json(asdict(tuning) | {"verdict": tuning.verdict})
        else:
            _show(tuning)
    chosen = [one for one in made if not one.is_exact]
    if not chosen:
        tell("There was nothing to choose, so nothing is stored.")
    elif chosen[-1] in read_tunings(home, anchor_queries=opened.anchor_queries):
        tell(f"Stored in {home}/{TUNED}; used by searches {'; '.join(map(_served, chosen))}.")
    else:
        tell(f"{index} cannot be written to, so nothing is stored.")


def tell_beyond(budgets: Sequence[int], *, n_items: int) -> None:
    """Say which budgets are more than there is to score."""
    if beyond := [budget for budget in budgets if budget > n_items]:
        named = ", ".join(f"{budget:,}" for budget in beyond)
        tell(f"The index has {n_items:,} items: a budget of {named} is taken as {n_items:,}.")


def _served(tuning: Tuning) -> str:
    """Which searches a tuning serves."""
    (fewest, most), (least, largest) = reach_of(tuning.k), reach_of(tuning.budget)
    return f"with k {fewest}–{most} and budget {least}–{largest}"


def ks_within(budgets: Sequence[int], ks: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Each budget with the k that it can fill, where there is one."""
    fitting = [(budget, [k for k in ks if k <= budget]) for budget in budgets]
    if not any(own for _, own in fitting):
        raise InputError(
            f"Only scored items are returned, so a budget must be at least k; got --k {', '.join(map(str, ks))} and "
            f"--budget {', '.join(map(str, budgets))}."
        )
    return [(budget, own) for budget, own in fitting if own]


def tuned_line(tunings: Sequence[Tuning]) -> str:
    """What an index is tuned for, in one line."""
    return "; ".join(f"k = {one.k}, {one.budget} calls ({one.first or 'random'})" for one in tunings) or "–"


def _show(tuning: Tuning) -> None:
    if tuning.predictions:
        table = Table(show_edge=False, pad_edge=False)
        table.add_column("method")
        table.add_column(f"top-{tuning.k} recall", justify="right")
        table.add_column("95 % interval", justify="right")
        table.add_column("calls", justify="right")
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
    usual = default_settings(tuning.k)
    changed = [
        f"{field.name} {getattr(tuning.settings, field.name)} (default: {getattr(usual, field.name)})"
        for field in fields(usual)
        if getattr(tuning.settings, field.name) != getattr(usual, field.name)
    ]
    return ", ".join(changed) or "the defaults; no setting tried was better by more than its standard error."


@contextmanager
def _told(what: str) -> Iterator[_Bar]:
    columns = (TextColumn("replaying {task.description}"), *Progress.get_default_columns()[1:3], TimeElapsedColumn())
    with Progress(*columns, console=note, transient=True) as shown:
        yield _Bar(shown, what)


class _Bar:
    """Moves a bar along as replays are done."""

    def __init__(self, shown: Progress, what: str) -> None:
        self._shown = shown
        self._task = shown.add_task(what, total=None)

    def __call__(self, done: int, at_most: int) -> None:
        self._shown.update(self._task, completed=done, total=at_most)
