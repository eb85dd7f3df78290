"""Scores that are paid for once, and kept."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import AdacurError, InputError, ScorerError
from adacur.protocols import Scorer
from adacur.records import Pair
from adacur.scorers.calling import ascore
from adacur.scorers.metered import Metered
from adacur.scorers.score_file import ScoreFile
from adacur.scorers.wrapping import Wrapping
from adacur.scores import check_scores


class CacheWarning(UserWarning):
    """Scores were answered but could not be stored."""


class ScoreMemory(Protocol):
    """Scores by pair; pairs with equal keys have one score."""

    def keys(self, pairs: Sequence[Pair]) -> Sequence[Hashable]: ...

    def find(self, keys: Sequence[Any]) -> Mapping[Any, np.floating]:
        """The scores of those keys that have one."""

    def add(self, keys: Sequence[Any], scores: FloatArray) -> None: ...


class ScoresInMemory:
    """Known scores of any pairs, as long as this object lives."""

    def __init__(self) -> None:
        self.scores: dict[Pair, np.floating] = {}

    def keys(self, pairs: Sequence[Pair]) -> Sequence[Hashable]:
        return pairs

    def find(self, keys: Sequence[Any]) -> Mapping[Any, np.floating]:
        return {key: self.scores[key] for key in keys if key in self.scores}

    def add(self, keys: Sequence[Any], scores: FloatArray) -> None:
        self.scores |= zip(keys, scores, strict=True)


class Cached(Wrapping):
    """A scorer that is called for each pair once: its scores are kept in `known`.

    `known` is the path of an SQLite file; without one, scores are kept in memory. A file may serve several scorers,
    threads and processes at once. There a scorer is recognised by its card (weights, settings, arithmetic, backend,
    dtype and token limits); one without weights, such as a service, only by its name and source. A function must have
    been given a `name`, and another one when it scores differently; so should a service whose model changed. Pairs are
    known by their texts: do not keep scores there that follow from ids or metadata.

    `hits` counts answers that cost nothing, `misses` the pairs that the scorer was called for. Scores are stored after
    every `save_every` pairs at most; that is what a crash can lose. Scores that cannot be stored (a full disk) are
    returned all the same, with a `CacheWarning`; with `must_keep` that is an error, so that no more is paid. Callers
    that need one unknown pair at the same moment may each pay for it.
    """

    def __init__(
        self,
        scorer: Scorer,
        known: str | Path | ScoreMemory | None = None,
        *,
        save_every: int = 16_384,
        must_keep: bool = False,
    ) -> None:
        if not isinstance(scorer, Scorer):
            raise InputError(
                f"Cached wraps a scorer; got {type(scorer).__name__}. Open it first: Cached(adacur.scorer(…), path)."
            )
        self.scorer = scorer
        self.hits = 0
        self.misses = 0
        self._save_every = save_every
        self._must_keep = must_keep
        if isinstance(known, str | Path):
            known = ScoreFile(Path(known), identity=_identity(scorer))
        self._known: ScoreMemory = ScoresInMemory() if known is None else known
        self._lock = threading.Lock()

    @property
    def hit_rate(self) -> float:
        """The share of answers that cost nothing; 0 before the first."""
        return self.hits / ((self.hits + self.misses) or 1)

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        keys = self._known.keys(pairs)
        scores = dict(self._known.find(list(dict.fromkeys(keys))))
        for part in self._unknown(keys, pairs, scores):
            with self._failing(part):
                answers = self.scorer.score(list(part.values()))
            self._keep(part, answers, scores)
        return _in_order(scores, keys)

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; look-ups run in a thread."""
        keys = await asyncio.to_thread(self._known.keys, pairs)
        scores = dict(await asyncio.to_thread(self._known.find, list(dict.fromkeys(keys))))
        for part in self._unknown(keys, pairs, scores):
            with self._failing(part):
                answers = await ascore(self.scorer, list(part.values()))
            await asyncio.to_thread(self._keep, part, answers, scores)
        return _in_order(scores, keys)

    def close_file(self) -> None:
        """Close the file alone, which the next look-up would open again."""
        if isinstance(self._known, ScoreFile):
            self._known.close()

    def close(self) -> None:
        """Close the scorer, if it can be closed, and the file, which the next look-up would open again."""
        self.close_file()
        super().close()

    def _unknown(
        self, keys: Sequence[Any], pairs: Sequence[Pair], scores: Mapping[Any, np.floating]
    ) -> list[dict[Any, Pair]]:
        """The pairs without a score, each once and by key, in parts that are scored and stored together."""
        unknown = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in scores}
        with self._lock:
            self.hits += len(keys) - len(unknown)
        entries = list(unknown.items())
        every = self._save_every
        return [dict(entries[start : start + every]) for start in range(0, len(entries), every)]

    @contextmanager
    def _failing(self, part: Mapping[Any, Pair]) -> Iterator[None]:
        """Store the scores that a call which fails has brought."""
        try:
            yield
        except ScorerError as error:
            if paid := {key: pair for key, pair in part.items() if pair in error.scored}:
                self._keep(paid, np.array([error.scored[pair] for pair in paid.values()]), {})
            raise

    def _keep(self, part: Mapping[Any, Pair], answers: FloatArray, scores: dict[Any, np.floating]) -> None:
        """Add the answers for these pairs to `scores`, and to the file."""
        paid = check_scores(answers, list(part.values()))
        with self._lock:
            self.misses += len(part)
        try:
            self._known.add(list(part), paid)
        except AdacurError as error:
            if self._must_keep:
                raise
            # Paid for and correct: the answer goes to the caller whatever becomes of the copy.
            warnings.warn(
                f"{len(part)} scores were not stored and will be paid for again. {error}", CacheWarning, stacklevel=3
            )
        scores |= zip(part, paid, strict=True)


def _in_order(scores: Mapping[Any, np.floating], keys: Sequence[Any]) -> FloatArray:
    # The widest type among the scores holds them all without a change.
    return np.array([scores[key] for key in keys])


def past_cache(scorer: Scorer) -> Scorer:
    """The scorer behind a cache, else the scorer itself: old scores do not say who answers today."""
    inner = _unwrapped(scorer)
    return inner.scorer if isinstance(inner, Cached) else scorer


def _unwrapped(scorer: Scorer) -> Scorer:
    # Only wrappers that pass scores on unchanged.
    while isinstance(scorer, Metered):
        scorer = scorer.scorer
    return scorer


def _identity(scorer: Scorer) -> str:
    """What distinguishes scorers, as text; fields that a card may get one day count too."""
    card = scorer.card
    fields: dict[str, object] = dataclasses.asdict(card)
    if not getattr(_unwrapped(scorer), "is_named", True):
        raise InputError(
            f"Scores are kept under the name of their scorer, and {card.name!r} was given none: others, or another "
            "version of it, may be called the same. Name it, and its version: --scorer-set name=my-model-v1, or in "
            "Python adacur.scorer(…, name='my-model-v1')."
        )
    if card.weights:
        # They identify a model, wherever it lies and whatever its folder is called.
        del fields["name"], fields["source"]
    return json.dumps(fields, sort_keys=True)
