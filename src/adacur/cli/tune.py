"""`adacur tune`: settings for a k and a budget, chosen by replayed anchor queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from typer import Option

from adacur.cli import arguments as opt
from adacur.cli.messages import note, notes, rows_table, show
from adacur.errors import InputError

if TYPE_CHECKING:
    from adacur.replay import Tuning
    from adacur.search import AnchorIndex
    from adacur.search.stopping import EffortRule


def tune(
    index: opt.IndexPath,
    k: opt.K = 10,
    budget: opt.Budget = 100,
    queries: Annotated[
        str | None, Option(metavar="N|FILE", help="At most N anchor queries; or, with --qrels, a file of judged ones.")
    ] = None,
    qrels: Annotated[Path | None, Option(help="Judgements, BEIR or TREC; they choose by nDCG.")] = None,
    above: Annotated[float | None, Option(help="Instead: what `find` costs above this line, for some recalls.")] = None,
    scorer: opt.ScorerOfIndex = None,
    seed: opt.Seed = 0,
    as_json: opt.Json = False,
) -> None:
    """Choose how an index is searched, and predict the recall.

    Where searches start and their settings, for your k and budget. Each anchor query is searched for again, as if it
    were new: no scorer is called. Run it once per k and budget that you use. With --qrels, judgements choose the first
    stage, the smallest budget that is as good, and fuse. Without an index, `try` says whether it is worth it; on
    judged data, `evaluate` compares: see docs/try.md, Three ways to measure.

    Example: adacur tune my.adacur -k 10 --budget 100
    """
    import adacur
    from adacur.replay.tune_index import verdict

    if above is not None:
        _show_costs(index, above, as_json=as_json)
        return
    replayed: int | str | None = int(queries) if queries is not None and queries.isdecimal() else queries
    if qrels is None and isinstance(replayed, str):
        raise InputError(f"--queries must be a number without --qrels; got {replayed!r}.")
    # The scorer is called, and has to be the right one, only for judged queries that are not in the index.
    with adacur.load(index, scorer=scorer, check=isinstance(replayed, str)) as opened:
        if budget > len(opened):
            note(f"The index has {len(opened):,} items: the budget is taken as {len(opened):,}.")
        budget = min(budget, len(opened))
        if qrels is not None:
            _tell_cost(opened, qrels, replayed, k=k, budget=budget, seed=seed)
        with notes.status("replaying anchor queries …"):
            tuning = adacur.tune(opened, k=k, budget=budget, queries=replayed, qrels=qrels, seed=seed)
        show(asdict(tuning) | {"verdict": verdict(tuning)}, *_shown(tuning, verdict(tuning)), as_json=as_json)
        if tuning.judged or not tuning.is_exact:
            note(_where(opened, tuning))


def _show_costs(path: str, above: float, *, as_json: bool) -> None:
    """What recalls of all items above a line cost; nothing is stored, since `find` replays by itself."""
    import adacur
    from adacur.replay import find_costs

    with adacur.load(path, check=False) as opened:
        costs = find_costs(opened, above=above)
    facts = [{"recall": r, "calls": one.calls, "n": one.n, "reasons": one.reasons} for r, one in costs.items()]
    rows = [(f"{recall:g}", f"{one.calls:,.0f}" if one.n else "–", f"{one.n:,}") for recall, one in costs.items()]
    reasons = dict.fromkeys(reason for one in costs.values() for reason in one.reasons)
    table = rows_table(("recall", "mean calls", "anchor queries"), rows)
    show({"above": above, "costs": facts}, table, *reasons, as_json=as_json)


def _tell_cost(index: AnchorIndex, qrels: Path, queries: int | str | None, *, k: int, budget: int, seed: int) -> None:
    from adacur.replay import judged_queries

    judged = judged_queries(index, qrels, queries, seed=seed)
    if judged.unknown_items or judged.left_out:
        note(
            f"{judged.unknown_items} judgements name items that the index does not have, and {judged.left_out} judged "
            "queries have nothing relevant in it, or everything: they are left out."
        )
    calls = judged.most_calls(index, k=k, budget=budget)
    new = sum(query.text not in judged.known for query in judged.queries)
    spent = f"at most {calls:,} scorer calls" if calls else "no scorer call"
    note(f"{len(judged.queries)} judged queries, {new} of them no anchor queries: {spent}.")


def _where(index: AnchorIndex, tuning: Tuning) -> str:
    from adacur.budget import USUAL_CALLS
    from adacur.search.tuned import TUNED, reach_of, read_tunings
    from adacur.store import home_of

    home = home_of(Path(str(index.path)))
    if tuning not in read_tunings(home, anchor_queries=index.anchor_queries):
        return f"{index.path} cannot be written to, so nothing is stored."
    largest = tuning.judged.largest if tuning.judged else tuning.budget
    (least_k, most_k), least, most = reach_of(tuning.k), reach_of(tuning.budget)[0], reach_of(largest)[1]
    usual = f"; those that name no budget spend {min(tuning.budget, USUAL_CALLS)} calls" if tuning.judged else ""
    return f"Stored in {home}/{TUNED}; used by searches with k {least_k}–{most_k} and budget {least}–{most}{usual}."


def _shown(tuning: Tuning, verdict: str) -> Iterator[str | Table]:
    judged, first = tuning.judged, tuning.first or "random"
    if judged:
        rows = (
            ("as chosen", first, judged.chosen, tuning.budget),
            ("not tuned", tuning.tried[0].first if tuning.tried else first, judged.plain, judged.largest),
            ("rerank", first, judged.rerank, tuning.budget),
            ("first stage alone", judged.alone_first or first, judged.alone, 0),
        )
        means = [(name, stage, *_interval(mean.value, mean.low, mean.high), str(n)) for name, stage, mean, n in rows]
        yield rows_table(("judged", "first stage", judged.measure, "95 % interval", "calls"), means)
    recalls = []
    for one in tuning.predictions:
        stage = (one.method == "rerank" and tuning.rerank_first) or first
        recalls.append((one.method, stage, *_interval(one.recall, one.low, one.high), str(tuning.budget)))
    yield rows_table(("method", "first stage", f"top-{tuning.k} recall", "95 % interval", "calls"), recalls)
    if not tuning.is_exact:
        yield (
            f"Predicted from {tuning.n_queries} anchor queries, by leave-one-out: each is searched for with an index "
            f"without it. In 19 of 20 cases the mean over {tuning.n_queries} new queries lies in the interval."
        )
        if len(tuning.tried) > 1:
            tried = (f"{one.first} {one.gaussian:.3f} ({one.rerank:.3f})" for one in tuning.tried)
            yield f"Recall by first stage with the default settings (re-ranking): {', '.join(tried)}"
        if tuning.effort is not None:
            yield _effort_table(tuning, tuning.effort)
        settings = asdict(tuning.settings).items()
        said = (f"{name} {'as usual' if value is None else value}" for name, value in settings)
        yield f"Settings: {', '.join(said)}"
    yield verdict


def _interval(value: float, low: float, high: float) -> tuple[str, str]:
    return f"{value:.3f}", f"{low:.3f} … {high:.3f}"


def _effort_table(tuning: Tuning, effort: EffortRule) -> Table:
    """The curve of calls and recall, and where `effort="auto"` lies on it."""
    auto, curve = effort.point("auto"), effort.curve
    some = {*curve[:: max(1, len(curve) // 6)], auto, curve[-1]}
    rows = [
        ("auto" if one == auto else f"{one.recall - 0.0005:.3f}", f"{one.calls:.0f}", f"{one.recall:.3f}")
        for one in sorted(some, key=lambda one: one.calls)
    ]
    rows.append(("none", str(tuning.budget), f"{effort.whole:.3f}"))
    return rows_table(("effort", "mean calls", f"top-{tuning.k} recall"), rows)
