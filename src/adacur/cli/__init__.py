"""The command line: parse, call, format."""

from __future__ import annotations

import os
import sys

__all__ = ["run"]


def run() -> None:
    """Run the command line; an error that adacur raises on purpose becomes one message and exit code 1."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1

    from adacur.cli.app import app
    from adacur.cli.messages import failed, interrupted
    from adacur.core.errors import AdacurError

    try:
        app(arguments, prog_name="adacur")
    except AdacurError as error:
        if debug:
            raise
        failed(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        if debug:
            raise
        interrupted()
        sys.exit(130)
    except BrokenPipeError:
        # The reader left (as `head` does): nothing more to say, and nothing to flush at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
