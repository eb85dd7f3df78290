"""`adacur demo`: real articles, a real cross-encoder, this machine."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from rich.columns import Columns
from rich.text import Text

import adacur
from adacur.cli.messages import answer, duration, hits_table, note, seconds_line
from adacur.core.results import Hits
from adacur.data import describe, fetch, pseudo_queries, wikivital

__all__ = ["show", "this_command"]

# Chosen to show every outcome: both find the same, the search finds more, re-ranking does.
QUESTIONS = (
    "who discovered penicillin?",
    "who wrote the first novel?",
    "how do birds find their way?",
    "rivers that do not reach the sea",
)
_ASSETS = ("wikivital", "ms-marco-MiniLM-L-12-v2", "bge-small-en-v1.5")
_SMALL_ITEMS = 150
_SMALL_ANCHORS = 12
# One that an article among those few answers.
_SMALL_QUESTION = "who wrote the first computer program?"


def show(questions: Sequence[str], *, budget: int, k: int, first: str, build_too: bool) -> None:
    """Answer questions with ADACUR and with plain re-ranking at the same budget; then build an index."""
    for name in _ASSETS:
        asset = describe(name)
        note.print(f"[bold]{name}[/]: {asset.origin} ({asset.licence})", highlight=False)
        with note.status(f"fetching {name} …"):
            fetch(name)
    with note.status("opening the index that ships with adacur …"), warnings.catch_warnings():
        # The difference between the two backends is expected here, and told below.
        warnings.simplefilter("ignore", adacur.index.DriftWarning)
        index = adacur.load("wikivital")
        scorer = index.scorer
    answer.print(
        f"\n[bold]{len(index):,} articles × {len(index.anchor_queries)} anchor queries[/], made from the articles "
        f"themselves and scored on a GPU. Searching with {scorer.card.name} ({scorer.card.dtype}) on this CPU.\n"
        f"Each question may cost {budget} scorer calls, {budget / len(index):.1%} of the articles.\n"
        + (f"This CPU model against the GPU's scores: {index.drift.in_words()}.\n" if index.drift else ""),
        highlight=False,
    )
    tallies = [_answer(index, question, budget=budget, k=k, first=first) for question in questions or QUESTIONS]
    asked = "one question" if len(tallies) == 1 else f"{len(tallies)} questions"
    answer.print(
        f"Of the {k} best that either found, over {asked}: adacur {sum(ours for ours, _ in tallies)}, "
        f"re-ranking {sum(theirs for _, theirs in tallies)} of {k * len(tallies)}. A few questions prove nothing; "
        "the README has the measured recall.\n",
        highlight=False,
    )
    if build_too:
        _build(scorer)
    answer.print(
        f"Next: your own data, `{this_command()} build items.jsonl my.adacur`, or your own question, "
        f"`{this_command()} demo --query '…'`.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def this_command() -> str:
    """What to type for this `adacur`: where it is not the one on the PATH, the path by which it was started."""
    started = Path(sys.argv[0])
    if started.stem != "adacur":
        return f"{shlex.quote(sys.executable)} -m adacur"
    found = shutil.which("adacur")
    is_on_path = found is not None and started.exists() and os.path.samefile(found, started)
    return "adacur" if is_on_path else shlex.quote(sys.argv[0])


def _answer(index: adacur.AnchorIndex, question: str, *, budget: int, k: int, first: str) -> tuple[int, int]:
    """Show both answers; how many of the best that either found each one has."""
    searched = index.search(question, k, budget=budget, first=first)
    reranked = index.search(question, k, budget=budget, method="rerank", first=first)
    answer.rule(Text(question, style="bold"), align="left", style="dim")
    half = max(38, (answer.width - 4) // 2)
    tables = [
        hits_table(searched, title=f"adacur, starting from {first}", width=half),
        hits_table(reranked, title=f"re-rank {first}'s best {budget}", width=half),
    ]
    answer.print(Columns(tables, padding=(0, 2)) if answer.width >= 80 else tables[0])
    if answer.width < 80:
        answer.print(tables[1])
    answer.print(f"adacur   {seconds_line(searched)}", highlight=False, style="dim")
    answer.print(f"re-rank  {seconds_line(reranked)}", highlight=False, style="dim")
    answer.print(_difference(searched, reranked) + "\n", highlight=False, markup=False)
    known = {hit.id: hit.score for hits in (searched, reranked) for hit in hits}
    best = sorted(known, key=lambda id_: (-known[id_], id_))[:k]
    return len(set(best) & set(searched.ids)), len(set(best) & set(reranked.ids))


def _difference(searched: Hits, reranked: Hits) -> str:
    """Who found more of the scorer's favourites, as far as these calls can tell."""
    better = [hit.item.metadata["title"] for hit in searched if hit.id not in reranked.ids and hit.item]
    worse = [hit.item.metadata["title"] for hit in reranked if hit.id not in searched.ids and hit.item]
    if not better and not worse:
        return "Both found the same."
    parts = [f"only adacur found {', '.join(better)}"] if better else []
    parts += [f"only re-ranking found {', '.join(worse)}"] if worse else []
    return f"Differences: {'; '.join(parts)}."


def _build(scorer: object) -> None:
    answer.rule("[bold]building a small index on this machine", align="left", style="dim")
    items = wikivital()[:_SMALL_ITEMS]
    anchors = pseudo_queries(items, _SMALL_ANCHORS)
    with tempfile.TemporaryDirectory(prefix="adacur-demo-") as folder:
        started = time.perf_counter()
        index = adacur.build(items, anchors, scorer=scorer, path=Path(folder) / "small.adacur")
        seconds = time.perf_counter() - started
        pairs = len(items) * len(anchors)
        answer.print(
            f"{len(items)} articles × {len(anchors)} anchor queries = {pairs:,} pairs in {duration(seconds)} "
            f"({pairs / seconds:,.0f} pairs/s). The same for all 10,033 articles × 250 queries would take "
            f"{duration(10_033 * 250 * seconds / pairs)} here.",
            highlight=False,
        )
        hits = index.search(_SMALL_QUESTION, 3, budget=30)
        answer.print(hits_table(hits, title=f"{_SMALL_QUESTION} (budget 30)", width=60))
        answer.print(seconds_line(hits) + "\n", highlight=False, style="dim")
