"""`adacur demo`: real articles and a real cross-encoder, on this machine."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.columns import Columns
from rich.text import Text

from adacur.cli.messages import hits_table, notes, output, print_json, seconds_line
from adacur.cli.options import Json
from adacur.core.protocols import Scorer
from adacur.core.results import Hits
from adacur.core.units import duration
from adacur.data import describe, fetch, pseudo_queries, wikivital

if TYPE_CHECKING:
    from adacur import AnchorIndex

__all__ = ["demo", "this_command"]

# Chosen to show every outcome: both find the same, the search finds more, re-ranking finds more.
QUESTIONS = (
    "who discovered penicillin?",
    "who wrote the first novel?",
    "how do birds find their way?",
    "rivers that do not reach the sea",
)
_ASSETS = ("wikivital", "ms-marco-MiniLM-L-12-v2", "bge-small-en-v1.5")
_FIRST = "dense"
_SMALL_ITEMS = 150
_SMALL_ANCHORS = 12
# An article among those few answers it.
_SMALL_QUESTION = "who wrote the first computer program?"


def demo(
    query: Annotated[list[str] | None, typer.Option("--query", help="A question; may be repeated.")] = None,
    budget: Annotated[int, typer.Option(help="Scorer calls per question and method.")] = 50,
    k: Annotated[int, typer.Option("-k", "--k", help="The number of items to show.")] = 5,
    build: Annotated[bool, typer.Option("--build/--no-build", help="Also build a small index.")] = True,
    as_json: Json = False,
) -> None:
    """Search 10,033 Wikipedia articles with a real cross-encoder on this machine, and build a small index.

    --json answers the questions, a line each, and builds nothing.

    Example: adacur demo --query 'who painted the Mona Lisa?' --budget 50
    """
    questions = query or QUESTIONS
    if not as_json:
        for name in _ASSETS:
            asset = describe(name)
            notes.print(f"[bold]{name}[/]: {asset.origin} ({asset.licence})", highlight=False)
            with notes.status(f"fetching {name} …"):
                fetch(name)
    index = _open()
    if as_json:
        for question in questions:
            searched, reranked = _both(index, question, budget=budget, k=k)
            print_json({"query": question, "adacur": searched, "rerank": reranked})
        return
    scorer = index.scorer
    output.print(
        f"\n[bold]{len(index):,} articles × {len(index.anchor_queries)} anchor queries[/], made from the articles "
        f"themselves and scored on a GPU. Searching with {scorer.card.name} ({scorer.card.dtype}) on this CPU.\n"
        f"Each question may cost {budget} scorer calls, {budget / len(index):.1%} of the articles.\n"
        + (f"This CPU model against the GPU's scores: {index.drift.in_words()}.\n" if index.drift else ""),
        highlight=False,
    )
    tallies = [_answer(index, question, budget=budget, k=k) for question in questions]
    over = "one question" if len(tallies) == 1 else f"{len(tallies)} questions"
    output.print(
        f"Of the {k} best that either found, over {over}: adacur {sum(ours for ours, _ in tallies)}, "
        f"re-ranking {sum(theirs for _, theirs in tallies)} of {k * len(tallies)}. A few questions prove nothing; "
        "the README has the measured recall.\n",
        highlight=False,
    )
    if build:
        _build(scorer)
    output.print(
        f"Next: your data, `{this_command()} build items.jsonl my.adacur`, or your question, "
        f"`{this_command()} demo --query '…'`.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _open() -> AnchorIndex:
    import adacur
    from adacur.index import DriftWarning

    with notes.status("opening the index that ships with adacur …"), warnings.catch_warnings():
        # The difference between the two backends is expected here, and printed later.
        warnings.simplefilter("ignore", DriftWarning)
        index = adacur.load("wikivital")
        _ = index.scorer
        return index


def _both(index: AnchorIndex, question: str, *, budget: int, k: int) -> tuple[Hits, Hits]:
    searched = index.search(question, k, budget=budget, first=_FIRST)
    return searched, index.search(question, k, budget=budget, first=_FIRST, method="rerank")


def this_command() -> str:
    """What to type for this `adacur`: its name if it is the one on the PATH, or its path."""
    started = Path(sys.argv[0])
    if started.stem != "adacur":
        return f"{shlex.quote(sys.executable)} -m adacur"
    on_path = shutil.which("adacur")
    is_on_path = on_path is not None and started.exists() and os.path.samefile(on_path, started)
    return "adacur" if is_on_path else shlex.quote(sys.argv[0])


def _answer(index: AnchorIndex, question: str, *, budget: int, k: int) -> tuple[int, int]:
    """Show both answers; return how many of the best that either found each one has."""
    searched, reranked = _both(index, question, budget=budget, k=k)
    output.rule(Text(question, style="bold"), align="left", style="dim")
    half = max(38, (output.width - 4) // 2)
    tables = [
        hits_table(searched, title=f"adacur, starting from {_FIRST}", width=half),
        hits_table(reranked, title=f"re-rank {_FIRST}'s best {budget}", width=half),
    ]
    output.print(Columns(tables, padding=(0, 2)) if output.width >= 80 else tables[0])
    if output.width < 80:
        output.print(tables[1])
    output.print(f"adacur   {seconds_line(searched)}", highlight=False, style="dim")
    output.print(f"re-rank  {seconds_line(reranked)}", highlight=False, style="dim")
    output.print(_difference(searched, reranked) + "\n", highlight=False, markup=False)
    known = {hit.id: hit.score for hits in (searched, reranked) for hit in hits}
    best = sorted(known, key=lambda id_: (-known[id_], id_))[:k]
    return len(set(best) & set(searched.ids)), len(set(best) & set(reranked.ids))


def _difference(searched: Hits, reranked: Hits) -> str:
    """Which items only one of the two found."""
    better = [hit.item.metadata["title"] for hit in searched if hit.id not in reranked.ids and hit.item]
    worse = [hit.item.metadata["title"] for hit in reranked if hit.id not in searched.ids and hit.item]
    if not better and not worse:
        return "Both found the same."
    parts = [f"only adacur found {', '.join(better)}"] if better else []
    parts += [f"only re-ranking found {', '.join(worse)}"] if worse else []
    return f"Differences: {'; '.join(parts)}."


def _build(scorer: Scorer) -> None:
    import adacur

    output.rule("[bold]building a small index on this machine", align="left", style="dim")
    items = wikivital()[:_SMALL_ITEMS]
    anchors = pseudo_queries(items, _SMALL_ANCHORS)
    with tempfile.TemporaryDirectory(prefix="adacur-demo-") as folder:
        started = time.perf_counter()
        index = adacur.build(items, anchors, scorer=scorer, path=Path(folder) / "small.adacur")
        seconds = time.perf_counter() - started
        pairs = len(items) * len(anchors)
        output.print(
            f"{len(items)} articles × {len(anchors)} anchor queries = {pairs:,} pairs in {duration(seconds)} "
            f"({pairs / seconds:,.0f} pairs/s). The same for all 10,033 articles × 250 queries would take "
            f"{duration(10_033 * 250 * seconds / pairs)} here.",
            highlight=False,
        )
        hits = index.search(_SMALL_QUESTION, 3, budget=30)
        output.print(hits_table(hits, title=f"{_SMALL_QUESTION} (budget 30)", width=60))
        output.print(seconds_line(hits) + "\n", highlight=False, style="dim")
