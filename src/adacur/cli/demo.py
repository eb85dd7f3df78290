"""`adacur demo`: questions whose best articles are known, searched live with a real cross-encoder on this machine."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from typer import Option

from adacur.cli import arguments as opt
from adacur.cli.messages import hits_table, note, notes, print_table, rows_table, say, seconds_line
from adacur.data import describe, fetch
from adacur.scorers import Cached

if TYPE_CHECKING:
    from adacur import AnchorIndex

_ASSETS = ("wikivital", "ms-marco-MiniLM-L-12-v2", "bge-small-en-v1.5")
# How many items the exact answer of a shipped question has.
_K = 10
_FIRST, _RERANK, _OURS = "first stages alone", "re-ranking", "adacur"
_METHODS = {_FIRST: "first", _RERANK: "rerank", _OURS: None}


def demo(
    query: Annotated[list[str] | None, Option(help="A question of your own; may be repeated.")] = None,
    budget: Annotated[int, Option(help="Scorer calls per question and method.", min=_K)] = 50,
    k: opt.K = 5,
) -> None:
    """Search 10,033 articles with a real cross-encoder.

    25 questions, whose exact best ten articles are known, are searched by re-ranking and by adacur at the same calls.
    With --query, your own questions are shown instead, with both answers.

    Example: adacur demo --query 'who painted the Mona Lisa?' --budget 50
    """
    index = _open()
    # The scorer's own order, since the exact answer is in that order; what both methods score is computed once.
    index = index.with_scorer(Cached)
    for question in query or ():
        for method in (_OURS, _RERANK):
            hits = index.search(question, k, budget=budget, method=_METHODS[method], fuse=0)
            print_table(hits_table(hits, title=f"{question} · {method}, from {hits.trace.settings['first']}"))
            say(f"{method}  {seconds_line(hits)}\n")
    if query:
        return
    questions = json.loads(files("adacur.data").joinpath("demo_questions.json").read_text(encoding="utf-8"))
    say(
        f"\n{len(questions)} questions, and for each the exact best {_K} of {len(index):,} articles under "
        f"{index.scorer.card.name}, known from scoring them all on a GPU.\n"
        "Not hand-picked: they are the first of a list written before any was searched. "
        f"Now live on this CPU, {budget} scorer calls a question:\n"
    )
    race = Race({one["question"]: one["best"] for one in questions}, budget)
    with notes.status("") as status:
        for at, question in enumerate(race.best, start=1):
            status.update(f"{at} of {len(questions)}: {question}")
            race.run(question, index)
    print_table(race.table())
    say(f"\n{race.summary()}")
    say(
        f"Paid beforehand: {len(index.anchor_queries)} anchor queries × {len(index):,} articles, on a GPU. "
        "No answer is judged here: `adacur try` measures what a scorer's order is worth on your data.\n\n"
        "Next: `adacur try my-folder`, or a question of your own: `adacur demo --query '…'`."
    )


def _open() -> AnchorIndex:
    import adacur
    from adacur.store import DriftWarning

    for name in _ASSETS:
        note(f"{name}: {describe(name).origin} ({describe(name).licence})")
        with notes.status(f"fetching {name} …"):
            fetch(name)
    with notes.status("opening the index …"), warnings.catch_warnings():
        # The scores of the GPU and those of this CPU differ a little, as expected.
        warnings.simplefilter("ignore", DriftWarning)
        index = adacur.load("wikivital")
        _ = index.scorer
        return index


@dataclass
class Race:
    """What each method has found of the best items of some questions, by question.

    `best` has the ids of each question's exact best items. `depths` are, of those searched so far, the places of the
    best items in the order of the first stages, counted from 1; an item that these do not list has none.
    """

    best: Mapping[str, Sequence[str]]
    budget: int

    def __post_init__(self) -> None:
        self.found = dict.fromkeys(_METHODS, 0)
        self.calls = dict.fromkeys(_METHODS, 0)
        self.depths: list[int] = []
        self.n_searched = 0

    def run(self, question: str, index: AnchorIndex) -> None:
        """Search for this question by each method."""
        best = self.best[question]
        for name, method in _METHODS.items():
            budget = 0 if method == "first" else self.budget
            hits = index.search(question, len(best), budget=budget, method=method, fuse=0)
            self.found[name] += len({*hits.ids} & {*best})
            self.calls[name] += hits.trace.calls
        listed = index.search(question, len(index), method="first", fuse=0).ids
        places = {id_: place for place, id_ in enumerate(listed, start=1)}
        self.depths += [places[id_] for id_ in best if id_ in places]
        self.n_searched += 1

    def table(self) -> Table:
        """What each method found of all, and for how much."""
        total = sum(map(len, self.best.values()))
        rows = [(name, f"{found} of {total}", f"{self.calls[name]:,}") for name, found in self.found.items()]
        return rows_table(("method", "found", "calls"), rows)

    def calls_to_rerank(self, found: int) -> int | None:
        """How many calls re-ranking needs to find so many: the same depth for every question; None if it never does."""
        depths = sorted(self.depths)
        return depths[found - 1] * self.n_searched if 0 < found <= len(depths) else None

    def summary(self) -> str:
        """What was found, and what re-ranking would need to find as many."""
        ours, calls = self.found[_OURS], self.calls[_OURS]
        total = sum(map(len, self.best.values()))
        line = f"adacur found {ours} of {total} with {calls:,} calls; re-ranking found {self.found[_RERANK]}"
        needed = self.calls_to_rerank(ours)
        if needed is None:
            return f"{line}, and would not find as many at any depth."
        return f"{line}, and would need {needed:,} calls to find as many ({needed / max(1, calls):.1f} times)."
