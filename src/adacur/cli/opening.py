"""Scorers and encoders by what the command line calls them."""

from __future__ import annotations

from shlex import quote
from typing import Annotated, Any

import typer

from adacur.cli.messages import tell
from adacur.core.errors import AdacurError, InputError, UnknownOption
from adacur.core.protocols import Scorer
from adacur.scorers.consent import why_consent

__all__ = ["DEFAULT_ENCODER", "DEFAULT_SCORER", "Trust", "cut_flag", "opened_encoder", "opened_scorer", "scorer_flag"]

DEFAULT_SCORER = "ms-marco-MiniLM-L-12-v2"
DEFAULT_ENCODER = "bge-small-en-v1.5"
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Open what the folder names as scorer or encoder, a function or a service too."),
]


def opened_scorer(source: str, max_item_tokens: int | None = None) -> Scorer:
    """What `adacur.scorer` opens; it is told what that was."""
    import adacur

    options = {} if max_item_tokens is None else {"max_item_tokens": max_item_tokens}
    try:
        opened = adacur.scorer(source, **options)
        tell(f"Scorer: {opened.card}")
        return opened
    except UnknownOption as error:
        raise InputError(f"The scorer {source!r} does not count tokens. Leave --max-item-tokens out.") from error
    except AdacurError:
        raise
    except Exception as error:
        raise _unopened("scorer", source, error) from error


def cut_flag(max_item_tokens: int | None) -> str:
    """The option of `adacur build` with which items are cut as they were before; nothing where they were not."""
    return f" --max-item-tokens {max_item_tokens}" if max_item_tokens else ""


def scorer_flag(source: str | None) -> str:
    """The option that names a scorer again where an index alone is not believed; nothing where it is."""
    return f" --scorer {quote(source)}" if source and why_consent(source, folder=None) else ""


def opened_encoder(source: str) -> Any:
    """What `adacur.encoder` opens."""
    import adacur

    try:
        return adacur.encoder(source)
    except AdacurError:
        raise
    except Exception as error:
        raise _unopened("encoder", source, error) from error


def _unopened(what: str, source: str, error: Exception) -> InputError:
    return InputError(f"The {what} {source!r} cannot be opened: {type(error).__name__}: {error}")
