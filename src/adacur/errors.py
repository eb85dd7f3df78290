"""Every error the package raises on purpose.

AdacurError
├── InputError (ValueError)            an argument that cannot be used
│   ├── EmptyInput                     no items, no queries, a text without a word
│   ├── DuplicateId                    two records share an id
│   ├── BudgetError                    calls, rounds, k or deadline that contradict each other
│   ├── TextTooLong                    a query that leaves the model no tokens for an item
│   ├── EngineRefused                  a vector engine that refuses what it was asked
│   ├── UnknownOption (TypeError)      an option that the class opened does not take
│   └── FileFormatError                an input file or a line in it that cannot be read
├── UnknownName (LookupError)          an unknown first stage, method, model or id
├── NotTrusted (PermissionError)       code or a service that an index folder names, without consent
├── ScorerError (RuntimeError)         the scorer failed or answered nonsense
│   ├── ScorerFailed                   it raised; the original error is the cause
│   ├── ScoreCountError                it returned too few or too many scores
│   ├── NonFiniteScore                 it returned NaN or an infinity; the pair is named
│   └── WrongScorer                    it is not the scorer the index was built with
├── IndexFolderError (OSError)         an index folder that cannot be used as asked
│   ├── NotAnIndex                     missing, unreadable or foreign folder
│   ├── OtherFormat                    written in another format than this adacur reads
│   ├── IncompleteIndex                a build that has not finished
│   ├── IndexMismatch                  a build continued with other items, anchors or settings
│   ├── IndexLocked                    another process is building here
│   ├── DamagedIndex                   a flipped byte, a missing chunk, a NaN
│   └── StorageFull                    the disk is full
├── TrainingFailed (RuntimeError)      a loss that is no number, a checkpoint that could not be written
├── FetchError (ConnectionError)       a model or collection could not be fetched
├── EngineUnavailable (ConnectionError) a vector engine that does not answer, or answers nonsense
├── DeviceFailed (RuntimeError)        a GPU that fails, or vanishes, while predictions are made on it
└── MissingExtra (ImportError)         an optional dependency is not installed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adacur.records import Pair
    from adacur.results import Hits


class AdacurError(Exception):
    """Root of the tree: catch this to catch everything adacur raises on purpose.

    `hits`: what a search had found when this ended it, for each of its queries; their `trace.stopped` is "error" where
    a query had more to score.
    """

    hits: Sequence[Hits] = ()


class InputError(AdacurError, ValueError):
    """An argument that cannot be used."""


class EmptyInput(InputError):
    """No items, no queries, or a text without a word."""


class DuplicateId(InputError):
    """Two records share an id."""


class BudgetError(InputError):
    """Calls, rounds, k or deadline that contradict each other."""


class TextTooLong(InputError):
    """A query that leaves the model no tokens for an item."""


class EngineRefused(InputError):
    """A vector engine refuses what it was asked, in its own words: they may name hosts, tables and columns."""


class UnknownOption(InputError, TypeError):
    """An option that the class opened does not take."""


class FileFormatError(InputError):
    """An input file, or a line in it, that cannot be read."""


class UnknownName(AdacurError, LookupError):
    """An unknown first stage, method, model or id."""


class NotTrusted(AdacurError, PermissionError):
    """An index folder names code or a service, and the user has not consented to open it."""


class ScorerError(AdacurError, RuntimeError):
    """The scorer failed or answered nonsense; `scored` are pairs of the same call that have their scores."""

    scored: Mapping[Pair, float] = {}


class ScorerFailed(ScorerError):
    """The scorer raised; the original error is the cause."""


class ScoreCountError(ScorerError):
    """The scorer returned too few or too many scores."""


class NonFiniteScore(ScorerError):
    """The scorer returned NaN or an infinity."""


class WrongScorer(ScorerError):
    """The scorer is not the one the index was built with."""


class IndexFolderError(AdacurError, OSError):
    """An index folder that cannot be used as asked."""


class NotAnIndex(IndexFolderError):
    """The folder is missing, unreadable or not one of ours."""


class OtherFormat(IndexFolderError):
    """The folder was written by a version of adacur with another format."""


class IncompleteIndex(IndexFolderError):
    """The build of this folder has not finished."""


class IndexMismatch(IndexFolderError):
    """A build was continued with other items, anchors or settings."""


class IndexLocked(IndexFolderError):
    """Another process is building in this folder."""


class DamagedIndex(IndexFolderError):
    """The folder's content is not what the build wrote."""


class StorageFull(IndexFolderError):
    """The disk is full."""


class TrainingFailed(AdacurError, RuntimeError):
    """A training run could not go on; its last checkpoint is whole."""


class FetchError(AdacurError, ConnectionError):
    """A model or collection could not be fetched."""


class EngineUnavailable(AdacurError, ConnectionError):
    """A vector engine does not answer, or answers nonsense."""


class DeviceFailed(AdacurError, RuntimeError):
    """A GPU fails, or vanishes, while predictions are made on it; the original error is the cause."""


class MissingExtra(AdacurError, ImportError):
    """An optional dependency is not installed."""
