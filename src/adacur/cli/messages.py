"""What the command line says: results on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from adacur.core.results import Hits

__all__ = [
    "answer",
    "as_json",
    "duration",
    "failed",
    "hits_table",
    "interrupted",
    "megabytes",
    "note",
    "print_json",
    "seconds_line",
    "warnings_as_notes",
]

answer = Console()
note = Console(stderr=True)


def failed(message: str) -> None:
    """One error message."""
    note.print(f"[bold red]Error:[/] {_escaped(message)}", highlight=False)


def interrupted() -> None:
    """What to know after Ctrl-C."""
    note.print("Interrupted. A build keeps its finished blocks: run the same command again to continue.")


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Show warnings as notes instead of Python's two lines of source."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_, **__: note.print(
            f"[yellow]Note:[/] {_escaped(str(message))}", highlight=False
        )
        yield


def print_json(value: Any) -> None:
    """A result for machines."""
    sys.stdout.write(json.dumps(as_json(value), ensure_ascii=False) + "\n")


def as_json(value: Any) -> Any:
    """Records, arrays and hits as plain JSON values."""
    if isinstance(value, Hits):
        return {
            "query": as_json(value.query),
            "hits": [
                {
                    "id": hit.id,
                    "score": hit.score,
                    "rank": hit.rank,
                    "round": hit.round,
                    "text": hit.item.text if hit.item else None,
                    "metadata": as_json(hit.item.metadata) if hit.item else {},
                }
                for hit in value
            ],
            "calls": value.trace.calls,
            "stopped": value.trace.stopped,
            "seconds": value.trace.seconds,
            "settings": dict(value.trace.settings),
        }
    if is_dataclass(value) and not isinstance(value, type):
        return as_json(asdict(value))
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value


def hits_table(hits: Hits, *, title: str, width: int | None = None) -> Table:
    """Hits for people: rank, exact score, the round that found each, and what it is."""
    table = Table(title=title, title_justify="left", width=width, show_edge=False, pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("score", justify="right")
    table.add_column("round", justify="right")
    table.add_column("item", no_wrap=True, overflow="ellipsis", ratio=1)
    for hit in hits:
        title_ = hit.item.metadata.get("title") if hit.item else None
        text = hit.item.text if hit.item else ""
        shown = f"[bold]{_escaped(str(title_))}[/]" if title_ else _escaped(f"{hit.id}  {text}".replace("\n", " "))
        table.add_row(str(hit.rank), f"{hit.score:.2f}", str(hit.round or "–"), shown)
    return table


def seconds_line(hits: Hits) -> str:
    """Calls and seconds per step in one line."""
    steps = "  ".join(f"{step} {seconds:.3f} s" for step, seconds in hits.trace.seconds.items())
    stopped = "" if hits.trace.stopped == "budget" else f"  (stopped: {hits.trace.stopped})"
    return f"{hits.trace.calls} scorer calls{stopped}  {steps}"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"


def megabytes(n_bytes: float) -> str:
    """Bytes as people say them."""
    return f"{n_bytes / 1e6:,.1f} MB" if n_bytes < 1e9 else f"{n_bytes / 1e9:,.1f} GB"


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")
