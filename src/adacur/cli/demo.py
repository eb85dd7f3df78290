"""`adacur demo`: real articles and a real cross-encoder, on this machine."""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.columns import Columns
from rich.text import Text
from typer import Option

from adacur.cli import arguments as opt
from adacur.cli.messages import hits_table, note, notes, order_line, output, say, seconds_line
from adacur.data import describe, fetch, pseudo_queries, wikivital
from adacur.protocols import Scorer
from adacur.results import Hits
from adacur.units import duration

if TYPE_CHECKING:
    from adacur import AnchorIndex

# Chosen to show every outcome: both find the same, the search finds more, re-ranking finds more.
_QUESTIONS = (
    "who discovered penicillin?",
    "who wrote the first novel?",
    "how do birds find their way?",
    "rivers that do not reach the sea",
)
_ASSETS = ("wikivital", "ms-marco-MiniLM-L-12-v2", "bge-small-en-v1.5")
_SMALL_ITEMS, _SMALL_ANCHORS = 150, 12
# An article among those few answers it.
_SMALL_QUESTION = "who wrote the first computer program?"


def demo(
    query: Annotated[list[str] | None, Option(help="A question; may be repeated.")] = None,
    budget: Annotated[int, Option(help="Scorer calls per question and method.")] = 50,
    k: opt.K = 5,
    build: Annotated[bool, Option(help="Also build a small index.")] = True,
) -> None:
    """Search 10,033 Wikipedia articles with a real cross-encoder on this machine, and build a small index.

    Example: adacur demo --query 'who painted the Mona Lisa?' --budget 50
    """
    index = _open()
    say(
        f"\n{len(index):,} articles × {len(index.anchor_queries)} anchor queries, made from the articles themselves "
        f"and scored on a GPU. Searching with {index.scorer.card.name} on this CPU.\n"
        f"Each question may cost {budget} scorer calls, {budget / len(index):.1%} of the articles.\n"
    )
    for question in query or _QUESTIONS:
        searched = index.search(question, k, budget=budget)
        reranked = index.search(question, k, budget=budget, method="rerank")
        _show(question, searched, reranked, budget=budget)
    say("A few questions prove nothing; the README has the measured recall.\n")
    if build:
        _build(index.scorer)
    say("Next: your data, `adacur build items.jsonl my.adacur`, or your question, `adacur demo --query '…'`.")


def _open() -> AnchorIndex:
    import adacur
    from adacur.store import DriftWarning

    for name in _ASSETS:
        note(f"{name}: {describe(name).origin} ({describe(name).licence})")
        with notes.status(f"fetching {name} …"):
            fetch(name)
    with notes.status("opening the index that ships with adacur …"), warnings.catch_warnings():
        # The scores of the GPU and those of this CPU differ a little, as expected.
        warnings.simplefilter("ignore", DriftWarning)
        index = adacur.load("wikivital")
        _ = index.scorer
        return index


def _show(question: str, searched: Hits, reranked: Hits, *, budget: int) -> None:
    output.rule(Text(question, style="bold"), align="left", style="dim")
    half = max(38, (output.width - 4) // 2)
    # A tuning may start each of them elsewhere.
    ours, theirs = (hits.trace.settings["first"] for hits in (searched, reranked))
    tables = [
        hits_table(searched, title=f"adacur, starting from {ours}", width=half),
        hits_table(reranked, title=f"re-rank {theirs}'s best {budget}", width=half),
    ]
    output.print(Columns(tables, padding=(0, 2)))
    if order := order_line(searched):
        say(f"{order.partition(';')[0]}.")
    say(f"adacur   {seconds_line(searched)}\nre-rank  {seconds_line(reranked)}\n")


def _build(scorer: Scorer) -> None:
    import adacur

    output.rule("[bold]building a small index on this machine", align="left", style="dim")
    items = wikivital()[:_SMALL_ITEMS]
    anchors = pseudo_queries(items, _SMALL_ANCHORS)
    with tempfile.TemporaryDirectory(prefix="adacur-demo-") as folder:
        started = time.perf_counter()
        index = adacur.build(items, anchors, scorer=scorer, path=Path(folder) / "small.adacur")
        seconds, pairs = time.perf_counter() - started, len(items) * len(anchors)
        say(
            f"{len(items)} articles × {len(anchors)} anchor queries = {pairs:,} pairs in {duration(seconds)} "
            f"({pairs / seconds:,.0f} pairs/s). The same for all 10,033 articles × 250 queries would take "
            f"{duration(10_033 * 250 * seconds / pairs)} here."
        )
        hits = index.search(_SMALL_QUESTION, 3, budget=30)
        output.print(hits_table(hits, title=f"{_SMALL_QUESTION} (budget 30)", width=60))
        say(seconds_line(hits) + "\n")
