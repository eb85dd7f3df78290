"""What the command line prints: results on stdout, notes and errors on stderr."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from adacur.as_json import as_json as to_json
from adacur.data import DataWarning
from adacur.errors import AdacurError
from adacur.results import Hits

KEPT = "What is finished is kept: run the same command again to continue."


class _PlainConsole(Console):
    """A console that shows control characters: an escape sequence in an item would reach the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Replace control characters in every text that is printed."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


# Half a surrogate pair, which JSON can spell, cannot be printed at all.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# Texts of items and queries pass through here: nothing in them is an emoji code or a number to colour.
output = _PlainConsole(highlight=False, emoji=False)
notes = _PlainConsole(highlight=False, emoji=False, stderr=True)

_WIDTH_OF_FILES = 160
_STOPPED = {
    "exhausted": " (no item is left to score)",
    "deadline": " (the deadline came first)",
    "settled": " (enough)",
    "tokens": " (token budget exhausted)",
    "cost": " (money budget exhausted)",
    "error": " (then came the error below)",
}


def say(*shown: str | Table) -> None:
    """Print lines and tables of a result."""
    for part in shown:
        # Lines are not wrapped: terminals do it better, and pipes want whole lines. Where no terminal gives a width,
        # rich would cut tables at 80.
        has_width = output.is_terminal or "COLUMNS" in os.environ or not isinstance(part, Table)
        whole = Text(part) if isinstance(part, str) else part
        output.print(whole, soft_wrap=isinstance(part, str), width=None if has_width else _WIDTH_OF_FILES)


def plain(text: str) -> str:
    """A text for a terminal, with its control characters replaced."""
    return _CONTROL.sub("\ufffd", text)


def rows_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, texts: int = 1
) -> Table:
    """Rows under these headings, or under none; the first `texts` columns are texts, the others numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    table.title, table.title_justify = title and Text(title), "left"
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at < texts else "right", no_wrap=not at, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def facts_table(facts: Mapping[str, Any]) -> Table:
    """Facts by name, a row each; those that say nothing are left out."""

    def cell(value: Any) -> str:
        if isinstance(value, list | tuple):
            return ", ".join(map(str, value))
        return f"{value:,}" if isinstance(value, int) else str(value)

    rows = ((name.replace("_", " "), cell(value)) for name, value in facts.items() if value)
    return rows_table(("", ""), rows, texts=2)


def show(result: Any, *shown: str | Table, as_json: bool = False, hints: Iterable[str] = ()) -> None:
    """Print a result. For machines all of it; for people these lines and tables, and notes on what to do next."""
    if as_json:
        is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        text = json.dumps(to_json(result), ensure_ascii=not is_utf8)
        # JSON spells out the control characters of ASCII; terminals obey others too.
        sys.stdout.write(_CONTROL.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text) + "\n")
        return
    say(*shown)
    for hint in filter(None, hints):
        note(hint)


def counted(n: int, one: str, several: str) -> str:
    """A number and what it counts: "1 anchor query", "2,000 anchor queries"."""
    return f"{n:,} {one if n == 1 else several}"


def note(message: str) -> None:
    """Print a line beside the result: what happens, what to do next."""
    notes.print(Text(message), soft_wrap=True)


def failed(message: str) -> None:
    """Print one error message."""
    notes.print(Text.assemble(("Error: ", "bold red"), message), soft_wrap=True)


def explained(error: Exception) -> str:
    """The message for an error: ours as they are, the system's with a remedy, any other as unexpected."""
    if isinstance(error, AdacurError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "Free some space and try again." if is_full else "Check the path and its permissions."
        return f"{where}{error.strerror}. {remedy}"
    if isinstance(error, OSError):
        # numpy and others report a full disk without an error number.
        return f"Reading or writing failed: {error}. Is there space on the disk? --debug shows where it happened."
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"Something unexpected happened, {what}. Run the command again with --debug to see where."


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Show warnings that are meant for users as notes, instead of two lines of source."""
    of_files: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = str(message)
        # A command may read a file several times.
        if text not in of_files:
            notes.print(Text.assemble(("Note: ", "yellow"), text), soft_wrap=True)
        if isinstance(message, DataWarning):
            of_files.add(text)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for shown in (UserWarning, RuntimeWarning, FutureWarning):
            warnings.simplefilter("default", shown)
        warnings.showwarning = show
        yield


@contextlib.contextmanager
def log_as_notes(name: str) -> Iterator[None]:
    """Show as notes what the library logs under this name."""
    log, lines = logging.getLogger(name), logging.Handler()
    lines.emit = lambda record: note(record.getMessage())  # type: ignore[method-assign]
    level = log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(lines)


def hits_table(hits: Hits) -> Table:
    """Hits for people: rank, relevance where it is known, exact score, the round that scored each, and the item."""
    table = Table(title=Text(hits.query.text), title_justify="left", show_edge=False, pad_edge=False, expand=True)
    for name in ("#", *(() if hits.relevance is None else ("relevance",)), "score", "round"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("id", overflow="fold", max_width=30)
    table.add_column("item", no_wrap=True, overflow="ellipsis", ratio=1)
    for hit in hits:
        relevance = () if hit.relevance is None else (f"{hit.relevance:.2f}",)
        text = " ".join(hit.item.text.split()) if hit.item else ""
        table.add_row(str(hit.rank), *relevance, f"{hit.score:.2f}", str(hit.round or "–"), Text(hit.id), Text(text))
    return table


def notes_on(hits: Hits) -> Iterator[str]:
    """How good hits are, what their order needs for an explanation, and what they took."""
    trace = hits.trace
    if hits.verdict is not None:
        means = {
            "judgements": " (relevance: the chance to be judged relevant)",
            "anchors": " (relevance: the share of anchor queries whose best item scores lower)",
        }.get(trace.settings.get("relevance") or "", "")
        yield f"{hits.verdict.capitalize()}{means}."
    if weight := trace.settings.get("fuse"):
        yield f"Order: scorer blended with first stage (fuse={weight:g}); --fuse 0 for the scorer's own order."
    if hits.certificate is not None:
        yield str(hits.certificate)
    steps = "  ".join(f"{step} {seconds:.3f} s" for step, seconds in trace.seconds.items())
    spent = "" if trace.tokens is None else f", {trace.tokens:,} tokens"
    spent += "" if trace.cost is None else f", {trace.cost}"
    yield f"{trace.calls} scorer calls{spent}{_STOPPED.get(trace.stopped, '')}  {steps}\n"
