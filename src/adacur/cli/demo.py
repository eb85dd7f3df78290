"""`adacur demo`: questions whose best articles are known, searched live with a real cross-encoder on this machine."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from typer import Option

from adacur.cli.messages import note, notes, rows_table, say
from adacur.data import describe, fetch
from adacur.scorers import Cached

if TYPE_CHECKING:
    from adacur import AnchorIndex

_ASSETS = ("wikivital", "ms-marco-MiniLM-L-12-v2", "bge-small-en-v1.5")
# How many items the exact answer of a shipped question has.
_K = 10
_FIRST, _RERANK, _OURS = "first stages alone", "re-ranking", "adacur"
_METHODS = {_FIRST: "first", _RERANK: "rerank", _OURS: None}
_BAR = 40
_DESCRIPTIONS = (
    "the Scottish doctor who noticed that mould kills bacteria",
    "the inventor of dynamite who left his fortune to prizes",
    "how to bake a sourdough bread at home",
)


def demo(budget: Annotated[int, Option(help="Scorer calls per question and method.", min=_K)] = 50) -> None:
    """Search 10,033 articles with a real cross-encoder.

    25 questions, whose exact best ten articles are known, are searched by re-ranking and by adacur at the same calls.

    Then three descriptions are matched with the articles.

    Example: adacur demo --budget 50
    """
    index = open_index()
    # The scorer's own order, since the exact answer is in that order; what both methods score is computed once.
    index = index.with_scorer(Cached)
    questions = json.loads(files("adacur.data").joinpath("demo_questions.json").read_text(encoding="utf-8"))
    say(
        f"\n{len(questions)} questions, and for each the exact best {_K} of {len(index):,} articles under "
        f"{index.scorer.card.name}, known from scoring them all on a GPU.\n"
        "Not hand-picked: they are the first of a list written before any was searched. "
        f"Now live on this CPU, {budget} scorer calls a question:\n"
    )
    race = Race({one["question"]: one["best"] for one in questions}, budget)
    _show_live(race, index)
    say(
        race.table(),
        f"\n{race.summary()}",
        f"Found: the scorer was asked about it. Paid beforehand: {len(index.anchor_queries)} anchor queries × "
        f"{len(index):,} articles, on a GPU. What a scorer's order is worth to people is another question: "
        "`adacur try my-folder` answers it for your data.",
    )
    _show_match(index)
    say("\nNext: `adacur try my-folder`, or a question of your own: `adacur search wikivital 'your question'`.")


def _show_live(race: Race, index: AnchorIndex) -> None:
    """Run the race, with a bar for each method that grows as questions are answered; lines where no terminal is."""
    columns = (TextColumn("{task.description:18}"), BarColumn(_BAR), TextColumn("{task.completed} of {task.total}"))
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
        bars = {name: progress.add_task(name, total=race.total) for name in _METHODS}
        for question in race.best:
            race.run(question, index)
            for name, bar in bars.items():
                progress.update(bar, completed=race.found[name])
            if not notes.is_terminal:
                found = ", ".join(f"{name} {n}" for name, n in race.found.items())
                note(f"{race.n_searched} of {len(race.best)} questions; found by {found}")


def _show_match(index: AnchorIndex) -> None:
    """Match a few descriptions with the articles, and show the bill."""
    import adacur

    say("\nThree rows of a match: which articles does the scorer accept (above 0) for each description?\n")
    with notes.status("matching …"):
        pairs = adacur.match([*_DESCRIPTIONS], index, above=0.0, calls_per_row=50, progress=False)
    matched = index.items.at(index.items.positions(pair.right for pair in pairs).tolist())
    rows = [
        (_DESCRIPTIONS[int(pair.left)], str(item.metadata["title"]), f"{pair.score:.2f}")
        for pair, item in zip(pairs, matched, strict=True)
    ]
    rows += [(_DESCRIPTIONS[int(row)], "no article", "") for row in pairs.unmatched]
    bill = f"\nThe bill: {pairs.bill}; scoring every pair would take {len(_DESCRIPTIONS) * len(index):,} calls."
    say(rows_table(("description", "article", "score"), rows, texts=2), bill)


def open_index() -> AnchorIndex:
    """The articles with their anchor scores, and the models; fetched where they are missing."""
    import adacur
    from adacur.store import DriftWarning

    for name in _ASSETS:
        note(f"{name}: {describe(name).origin} ({describe(name).licence})")
        with notes.status(f"fetching {name} …"):
            fetch(name)
    note("Opening the index.")
    with warnings.catch_warnings():
        # The scores of the GPU and those of this CPU differ a little, as expected.
        warnings.simplefilter("ignore", DriftWarning)
        index = adacur.load("wikivital")
        _ = index.scorer
        return index


@dataclass
class Race:
    """What each method has found of the best items of some questions.

    `best` has the ids of each question's exact best items. An item is found if the scorer was asked about it: int8
    scores of this machine put near-ties in another order than those of the GPU that found the best. Of the first stages
    alone, which ask about none, it is found among as many as it has best items. `depths` are the places of the best
    items in the order of the first stages, counted from 1; an item that these do not list has none.
    """

    best: Mapping[str, Sequence[str]]
    budget: int

    def __post_init__(self) -> None:
        self.found = dict.fromkeys(_METHODS, 0)
        self.calls = dict.fromkeys(_METHODS, 0)
        self.depths: list[int] = []
        self.n_searched = 0
        self.total = sum(map(len, self.best.values()))

    def run(self, question: str, index: AnchorIndex) -> None:
        """Search for this question by each method."""
        best = self.best[question]
        for name, method in _METHODS.items():
            budget = 0 if method == "first" else self.budget
            hits = index.search(question, len(best), budget=budget, method=method, fuse=0)
            scored = {item.id for round_ in hits.trace.rounds for item in round_.scored_items(index.items)}
            self.found[name] += len((scored or {*hits.ids}) & {*best})
            self.calls[name] += hits.trace.calls
        listed = index.search(question, len(index), method="first", fuse=0).ids
        places = {id_: place for place, id_ in enumerate(listed, start=1)}
        self.depths += [places[id_] for id_ in best if id_ in places]
        self.n_searched += 1

    def table(self) -> Table:
        """What each method found of all, and for how much."""
        rows = [
            (name, "█" * round(_BAR * found / self.total), f"{found} of {self.total}", f"{self.calls[name]:,}")
            for name, found in self.found.items()
        ]
        return rows_table(("", "", "found", "calls"), rows, texts=2)

    def calls_to_rerank(self, found: int) -> int | None:
        """How many calls re-ranking needs to find so many: the same depth for every question; None if it never does."""
        depths = sorted(self.depths)
        return depths[found - 1] * self.n_searched if 0 < found <= len(depths) else None

    def summary(self) -> str:
        """What was found, and what re-ranking would need to find as many."""
        ours, calls = self.found[_OURS], self.calls[_OURS]
        line = f"adacur found {ours} of {self.total} with {calls:,} calls; re-ranking found {self.found[_RERANK]}"
        needed = self.calls_to_rerank(ours)
        if needed is None:
            return f"{line}, and would not find as many at any depth."
        return f"{line}, and would need {needed:,} calls to find as many ({needed / max(1, calls):.1f} times)."
