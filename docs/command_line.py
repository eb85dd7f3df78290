"""The page on the command line, made from the commands themselves.

    python docs/command_line.py > cli.md

docs/build.py puts it on the site; the repository holds no copy of what `adacur COMMAND --help` says.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import Any

import typer

# An option that so many commands explain in the same words is explained once.
SHARED_BY = 3

BEGINNING = """# The command line

`docs/command_line.py` makes this page from the commands. Results are on stdout; notes, progress and errors are on \
stderr. `--debug`, anywhere on the line, shows the traceback of an error. Files of items and queries: \
[Data](data.md). Names of scorers: [Scorers](scorers.md).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | one error message, or `inspect --verify` found damage |
| 2 | the command line could not be understood |
| 130 | interrupted with Ctrl-C; a build keeps its finished blocks, a training its last checkpoint |
"""


def commands() -> dict[str, Any]:
    """Every command by its full name, in the order of the table of commands."""
    from adacur.cli.app import app

    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {f"{name} {one}": inner[one] for one in inner} if inner else {name: command}
    return found


def plain(text: str | None) -> str:
    """A text on one line, in a cell of a table."""
    return re.sub(r"\s+", " ", text or "").strip().replace("|", "\\|")


def row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"| `{plain(parameter.metavar or parameter.name).upper()}` | {plain(parameter.help)} |"
    return f"| {', '.join(f'`{name}`' for name in sorted(parameter.opts, key=len))} | {plain(parameter.help)} |"


def rows(command: Any) -> list[str]:
    return [row(parameter) for parameter in command.params if parameter.name != "help"]


def table(rows: list[str], heading: str) -> list[str]:
    return [f"| {heading} | |", "|---|---|", *rows, ""] if rows else []


def section(name: str, command: Any, *, left_out: set[str]) -> list[str]:
    explained, _, example = (command.help or "").replace("\b", "").partition("Example:")
    paragraphs = [plain(part) for part in re.split(r"\n\n+", explained.strip())]
    return [
        *(f"## adacur {name}", ""),
        *(line for paragraph in paragraphs for line in (paragraph, "")),
        *("```bash", re.sub(r"\s+", " ", example).strip(), "```", ""),
        *table([row for row in rows(command) if row not in left_out], "option"),
    ]


def page() -> str:
    found = commands()
    counted = Counter(row for command in found.values() for row in rows(command))
    shared = [row for row, times in counted.items() if times >= SHARED_BY]
    links = [f"[{name}](#adacur-{name.replace(' ', '-')})" for name in found]
    lines = [BEGINNING, " · ".join(links), "", "What several commands take:", "", *table(shared, "option")]
    for name, command in found.items():
        lines += section(name, command, left_out=set(shared))
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
