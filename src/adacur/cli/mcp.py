"""`adacur mcp`: an index for language models."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from adacur.cli.messages import tell
from adacur.cli.opening import Trust
from adacur.core.extras import require

__all__ = ["add_mcp_command"]


def add_mcp_command(app: typer.Typer) -> None:
    """Make this command known."""
    app.command(epilog="Example: adacur mcp my.adacur --about 'Articles of an encyclopedia.'")(mcp)


def mcp(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="An index folder, or a URL.")],
    k: Annotated[
        int | None,
        typer.Option(
            "-k", "--k", min=1, help="Items to return where the model does not say; default: 10, within the budget."
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            min=1, help="Scorer calls of a search where the model does not say; default: 100, within --max-budget."
        ),
    ] = None,
    max_budget: Annotated[int, typer.Option(min=1, help="The most scorer calls that the model may ask for.")] = 1000,
    about: Annotated[str | None, typer.Option(help="What the items are, for the model to know when to search.")] = None,
    first: Annotated[str | None, typer.Option(help="First stage, as for search.")] = None,
    scorer: Annotated[
        str | None, typer.Option(help="Another backend of the scorer that built the index; default: that scorer.")
    ] = None,
    trust: Trust = False,
    cache: Annotated[
        Path | None, typer.Option(help="A file that keeps scores from run to run; made if there is none.")
    ] = None,
) -> None:
    """Serve an index to a language model: an MCP server with the tool `search`, over stdin and stdout.

    Programs that speak MCP start this command themselves. It ends when they close its stdin.
    """
    require("mcp", extra="mcp")
    import adacur
    from adacur.integrations.mcp import serve_stdio, usual_search

    # Before models are opened, and before anybody is told that they are served.
    usual = usual_search(k=k, budget=budget, max_budget=max_budget, names=("-k", "--budget", "--max-budget"))
    options = {} if first is None else {"first": first}
    with contextlib.ExitStack() as stack:
        with _printing_to_stderr():
            opened = stack.enter_context(adacur.load(index, scorer=scorer, trust=trust, cache=cache))
            if first is not None and first != "random":
                opened.first_stage(first)
        tell(f"{opened!r} is served over stdin and stdout to a program that speaks MCP.")
        serve_stdio(opened, **usual, max_budget=max_budget, description=about, **options)


@contextlib.contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """Keep what a scorer prints while it is opened, child processes included, from the client.

    To the client every line of stdout is a message. While serving, the SDK does the same.
    """
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)
