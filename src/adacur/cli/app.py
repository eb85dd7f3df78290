"""The table of commands. A command is a function in the file of its name or of its group; each is one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from adacur import __version__
from adacur.cli.build_command import build
from adacur.cli.demo import demo
from adacur.cli.evaluate import evaluate
from adacur.cli.index_commands import add, compact, compress, remove
from adacur.cli.inspect import inspect
from adacur.cli.match import match
from adacur.cli.messages import KEPT, note, say, warnings_as_notes
from adacur.cli.search import find, search
from adacur.cli.try_ import try_
from adacur.cli.tune import tune
from adacur.names import COMMANDS, INDEX_COMMANDS, named

# All in all at most sixteen, and `adacur --help` fits a screen: the first sentence of each is short.
_COMMANDS = (search, find, match, try_, build, tune, evaluate, inspect, *map(named, COMMANDS), demo)
_INDEX = (add, remove, compact, compress, *map(named, INDEX_COMMANDS))
_CONTINUED = {"build", "evaluate", "match", "try"}


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings_as_notes():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            # typer would end the process here without a word about what is kept, which some commands say themselves.
            kept = str(error) or (KEPT if ctx.invoked_subcommand in _CONTINUED else "")
            note(f"Interrupted. {kept}".rstrip())
            raise typer.Exit(130) from None


def _group(commands: Iterable[Callable[..., None]], **options: Any) -> typer.Typer:
    options |= {"no_args_is_help": True, "rich_markup_mode": None, "pretty_exceptions_enable": False}
    group = typer.Typer(add_completion=False, **options)
    for command in commands:
        # Lines of an example are not joined and broken anew.
        text = cleandoc(command.__doc__ or "").replace("\n\nExample:", "\n\n\b\nExample:")
        group.command(command.__name__.rstrip("_").replace("_", "-"), help=text)(command)
    return group


app = _group(
    _COMMANDS,
    name="adacur",
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Add --debug to any command to see the traceback of an error.",
)
app.add_typer(_group(_INDEX, help="Change an index."), name="index")


def _version(shown: bool) -> None:
    if shown:
        say(f"adacur {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Search with an expensive scorer, within a budget of calls to it."""
