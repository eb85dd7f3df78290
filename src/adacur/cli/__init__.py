"""The command line: parse, call, format."""

from __future__ import annotations

import os
import sys
import traceback

__all__ = ["run"]


def run() -> None:
    """Run the command line: an error becomes one message and exit code 1, with a traceback only in --debug."""
    arguments, debug = _without_debug(sys.argv[1:])
    # An installed script does not look for modules where it is called, and `--scorer module:function` is most often
    # a file there. Last, so that no file there can stand in for a library.
    sys.path.append("")
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show is no reason to fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    from adacur.cli.app import app
    from adacur.cli.messages import explained, failed

    try:
        app(arguments, prog_name="adacur")
    except BrokenPipeError:
        # The reader left (as `head` does): nothing more to say, and nothing to flush at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if debug:
            traceback.print_exc()
        failed(explained(error))
        sys.exit(1)


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments less --debug, which may stand anywhere before a lone `--`; and whether it was there."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [argument for argument in arguments[:end] if argument != "--debug"]
    return options + arguments[end:], len(options) < end
