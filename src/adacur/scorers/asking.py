"""The door to the scorer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from adacur.core.errors import AdacurError, ScorerFailed
from adacur.core.protocols import Scorer

__all__ = ["asking"]


@contextlib.contextmanager
def asking(scorer: Scorer) -> Iterator[None]:
    """Tell whatever a scorer raises as one error, with the original as its cause."""
    try:
        yield
    except AdacurError:
        raise
    except Exception as error:
        raise ScorerFailed(f"Scorer {scorer.card.name!r} failed with {type(error).__name__}: {error}") from error
