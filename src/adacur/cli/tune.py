"""`adacur tune`: settings for a k and a budget, chosen by replayed anchor queries."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Option

from adacur.cli import options as opt
from adacur.cli.messages import note, notes, print_json, print_rows, say

if TYPE_CHECKING:
    from adacur.search import AnchorIndex
    from adacur.tuning import Tuning


def tune(
    index: opt.IndexPath,
    k: opt.K = 10,
    budget: opt.Budget = 100,
    queries: Annotated[int, Option(min=1, help="Replay at most N anchor queries.")] = 100,
    seed: opt.Seed = 0,
    as_json: opt.Json = False,
) -> None:
    """Choose search settings for your k and budget, and predict the recall. Calls no scorer.

    Each anchor query is searched for again, as if it were new. Run it once per k and budget that you use.

    Example: adacur tune my.adacur -k 10 --budget 100
    """
    import adacur
    from adacur.tuning import verdict

    with adacur.load(index, check=False) as opened:
        if budget > len(opened):
            note(f"The index has {len(opened):,} items: the budget is taken as {len(opened):,}.")
        with notes.status("replaying anchor queries …"):
            tuning = adacur.tune(opened, k=k, budget=min(budget, len(opened)), queries=queries, seed=seed)
        if as_json:
            print_json(asdict(tuning) | {"verdict": verdict(tuning)})
        else:
            _show(tuning)
        if not tuning.is_exact:
            note(_where(opened, tuning))


def _where(index: AnchorIndex, tuning: Tuning) -> str:
    from adacur.index import home_of
    from adacur.search.tuned import TUNED, reach_of, read_tunings

    assert index.path is not None
    home = home_of(index.path)
    if tuning not in read_tunings(home, anchor_queries=index.anchor_queries):
        return f"{index.path} cannot be written to, so nothing is stored."
    reach = ["{}–{}".format(*reach_of(value)) for value in (tuning.k, tuning.budget)]
    return f"Stored in {home}/{TUNED}; used by searches with k {reach[0]} and budget {reach[1]}."


def _show(tuning: Tuning) -> None:
    from adacur.tuning import verdict

    print_rows(
        ("method", f"top-{tuning.k} recall", "95 % interval", "calls"),
        [
            (one.method, f"{one.recall:.3f}", f"{one.low:.3f} … {one.high:.3f}", str(tuning.budget))
            for one in tuning.predictions
        ],
    )
    if not tuning.is_exact:
        say(
            f"Predicted from {tuning.n_queries} anchor queries, by leave-one-out: each is searched for with an index "
            f"without it. In 19 of 20 cases the mean over {tuning.n_queries} new queries lies in the interval."
        )
        say(f"Settings: {', '.join(f'{name} {value}' for name, value in asdict(tuning.settings).items())}")
    say(verdict(tuning))
