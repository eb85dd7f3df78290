"""`adacur tune`: settings for a k and a budget, chosen by replayed anchor queries or by judgements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from typer import Option

from adacur.cli import options as opt
from adacur.cli.messages import note, notes, print_json, print_table, say
from adacur.core.errors import InputError

if TYPE_CHECKING:
    from adacur.search import AnchorIndex
    from adacur.tuning import JudgedTuning, Tuning

__all__ = ["tune"]


def tune(
    index: opt.IndexPath,
    k: Annotated[str, Option("-k", "--k", help="The number of items; several with commas.")] = "10",
    budget: Annotated[str, Option(help="Scorer calls per question; several with commas.")] = "100",
    queries: Annotated[int, Option(min=1, help="Replay at most N anchor queries.")] = 100,
    qrels: Annotated[Path | None, Option(help="Judgements by which to choose fuse, pool and stop_when.")] = None,
    judged: Annotated[Path | None, Option(help="With --qrels: other judged queries than anchor queries.")] = None,
    scorer: opt.ScorerOfIndex = None,
    trust: opt.Trust = False,
    seed: opt.Seed = 0,
    as_json: opt.Json = False,
) -> None:
    """Choose search settings for your k and budget, and predict the recall. Calls no scorer, except for --judged.

    Each anchor query is searched for again, as if it were new. With --qrels, judged quality decides how much of the
    first stage to blend into the order. --json prints a line per k and budget.

    Example: adacur tune my.adacur -k 10 --budget 100
    """
    import adacur

    ks, budgets = opt.whole_numbers("-k", k), opt.whole_numbers("--budget", budget)
    pairs = [(n, calls) for calls in budgets for n in ks if n <= calls]
    if not pairs:
        raise InputError(f"A budget must be at least k; got -k {k} and --budget {budget}.")
    if judged is not None and qrels is None:
        raise InputError("--judged names the queries of judgements; give these with --qrels FILE.")
    with adacur.load(index, check=judged is not None, scorer=scorer, trust=trust) as opened:
        if max(budgets) > len(opened):
            note(f"The index has {len(opened):,} items: larger budgets are taken as {len(opened):,}.")
        pairs = list(dict.fromkeys((n, min(calls, len(opened))) for n, calls in pairs))
        if qrels is None:
            _by_replay(opened, pairs, queries=queries, seed=seed, as_json=as_json)
        else:
            _by_judgements(opened, pairs, qrels, judged, seed=seed, as_json=as_json)


def _by_replay(index: AnchorIndex, pairs: Sequence[tuple[int, int]], *, queries: int, seed: int, as_json: bool) -> None:
    from adacur.index import home_of
    from adacur.search.tuned import TUNED, reach_of, read_tunings
    from adacur.tuning import tune

    assert index.path is not None
    home = home_of(index.path)
    for k, budget in pairs:
        with notes.status(f"replaying anchor queries for k = {k}, {budget} calls …"):
            tuning = tune(index, k=k, budget=budget, queries=queries, seed=seed)
        if as_json:
            print_json(asdict(tuning) | {"verdict": tuning.verdict})
        else:
            _show(tuning)
        if tuning.is_exact:
            continue
        if tuning in read_tunings(home, anchor_queries=index.anchor_queries):
            reach = ["{}–{}".format(*reach_of(value)) for value in (k, budget)]
            note(f"Stored in {home}/{TUNED}; used by searches with k {reach[0]} and budget {reach[1]}.")
        else:
            note(f"{index.path} cannot be written to, so nothing is stored.")


def _show(tuning: Tuning) -> None:
    table = Table("method", f"top-{tuning.k} recall", "95 % interval", "calls", show_edge=False, pad_edge=False)
    for one in tuning.predictions:
        table.add_row(one.method, f"{one.recall:.3f}", f"{one.low:.3f} … {one.high:.3f}", str(tuning.budget))
    print_table(table)
    if not tuning.is_exact:
        say(
            f"Predicted from {tuning.n_queries} anchor queries, by leave-one-out: each is searched for with an index "
            f"without it. In 19 of 20 cases the mean over {tuning.n_queries} new queries lies in the interval."
        )
        say(f"Settings: {', '.join(f'{name} {value}' for name, value in asdict(tuning.settings).items())}")
    say(tuning.verdict)


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

    judgements = read_qrels(qrels)
    queries = [*(read_queries(judged) if judged else index.anchor_queries)]
    known = [query for query in queries if query.id in judgements]
    calls = sum(calls_to_tune_fuse(index, known, budget=budget) for _, budget in pairs)
    note(f"{len(known)} judged queries; those that are not anchor queries cost {calls:,} scorer calls in all.")
    for k, budget in pairs:
        tuning = tune_fuse(index, known, judgements, k=k, budget=budget, seed=seed)
        if as_json:
            print_json({"k": k, "budget": budget} | asdict(tuning) | {"verdict": tuning.verdict})
        else:
            _show_judged(tuning)


def _show_judged(tuning: JudgedTuning) -> None:
    names = ("fuse", "pool", "stop_when", tuning.measure, "difference", "standard error", "calls")
    table = Table(*names, show_edge=False, pad_edge=False)
    for one in tuning.tried:
        chosen = [f"{value:g}" if value else "–" for value in (one.fuse, one.pool, one.stop_when)]
        measured = (f"{one.quality:.3f}", f"{one.difference:+.3f}", f"{one.error:.3f}", f"{one.calls:.0f}")
        table.add_row(*chosen, *measured, style="bold" if one == tuning.chosen else None)
    print_table(table)
    say(tuning.verdict)
    best = tuning.chosen
    flags = {"--fuse ": best.fuse or None, "--pool ": best.pool, "--set stop_when=": best.stop_when}
    if given := [f"{flag}{value:g}" for flag, value in flags.items() if value is not None]:
        note(f"To use it: adacur search … {' '.join(given)}. Report quality on other queries than these.")
