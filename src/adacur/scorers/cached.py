"""Scores that were paid for once, kept in a file."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.budget import is_whole
from adacur.core.errors import AdacurError, InputError
from adacur.core.protocols import Scorer, ScorerCard
from adacur.core.records import Item, Pair, Query
from adacur.core.scores import check_scores
from adacur.scorers.calling import ascore
from adacur.scorers.metered import Metered
from adacur.scorers.score_file import ScoreFile, digest
from adacur.scorers.shared_batches import SharedBatches, shares_calls

__all__ = ["CacheWarning", "Cached", "past_cache"]

_SAVE_EVERY = 16_384
_SEE_IDS = ("matrix", "pyterrier")


class CacheWarning(UserWarning):
    """Scores were answered but could not be stored."""


class Cached:
    """A scorer that is called for each pair of texts once: its scores are kept in the SQLite file `path`.

    The file may serve several scorers, threads and processes at once. A scorer is recognised by its card (weights,
    settings, arithmetic, backend, dtype and token limits); one without weights, such as a service, only by its name and
    source, a function by its code too: give a `key`, and another one when what they call has changed. A function or
    object whose code cannot be read in full is refused without a `key`. Pairs are told apart by their texts; where a
    `MatrixScorer` or a PyTerrier transformer sees ids too, by both. Do not cache a scorer of your own that looks at
    ids or metadata.

    `hits` counts answers that cost nothing, `misses` the pairs that the scorer was called for. Scores are stored after
    every `save_every` pairs at most; that is what a crash can lose. Scores that cannot be stored (a full disk) are
    returned all the same, with a `CacheWarning`. Callers that need one unknown pair at the same time wait for one call.
    """

    def __init__(
        self, scorer: Scorer, path: str | Path, *, key: str | None = None, save_every: int = _SAVE_EVERY
    ) -> None:
        if not isinstance(scorer, Scorer):
            raise InputError(
                f"Cached wraps a scorer; got {type(scorer).__name__}. Open it first: Cached(adacur.scorer(…), path)."
            )
        if not is_whole(save_every) or save_every < 1:
            raise InputError(f"save_every must be a whole number of pairs, at least 1; got {save_every!r}.")
        self.scorer = scorer
        self.path = Path(path)
        self.hits = 0
        self.misses = 0
        self._save_every = save_every
        self._sees_ids = scorer.card.backend in _SEE_IDS
        self._file = ScoreFile(self.path, identity=_identity(scorer, key))
        self._lock = threading.Lock()
        self._claims: dict[bytes, _Claim] = {}

    @property
    def card(self) -> ScorerCard:
        return self.scorer.card

    @property
    def shares_calls(self) -> bool:
        """Whether callers may share a call."""
        return shares_calls(self.scorer)

    @property
    def hit_rate(self) -> float:
        """The share of answers that cost nothing; 0 before the first."""
        return self.hits / ((self.hits + self.misses) or 1)

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        call = _Call(self._keys(pairs), pairs)
        for missing in call.parts(self._save_every):
            while missing := self._look_up(call, missing):
                with self._claimed(missing, by_thread=True) as (mine, others):
                    # A claim that ended just now has stored its scores since the look-up.
                    if unknown := self._look_up(call, mine):
                        self._keep(call, unknown, self.scorer.score(call.pairs_of(unknown)))
                for claim in others:
                    claim.done.result()
        return self._answered(call)

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; look-ups run in a thread."""
        call = _Call(await asyncio.to_thread(self._keys, pairs), pairs)
        for missing in call.parts(self._save_every):
            while missing := await asyncio.to_thread(self._look_up, call, missing):
                with self._claimed(missing, by_thread=False) as (mine, others):
                    if unknown := await asyncio.to_thread(self._look_up, call, mine):
                        scores = await ascore(self.scorer, call.pairs_of(unknown))
                        await asyncio.to_thread(self._keep, call, unknown, scores)
                for claim in others:
                    await asyncio.wrap_future(claim.done)
        return self._answered(call)

    def count(self) -> int:
        """The number of scores of this scorer in the file."""
        return self._file.count()

    def clear(self) -> None:
        """Forget the scores of this scorer; those of others stay."""
        self._file.clear()

    def reset(self) -> None:
        """Count hits and misses from zero again."""
        with self._lock:
            self.hits = self.misses = 0

    def close(self) -> None:
        """Close the scorer, if it can be closed, and the file, which the next look-up would open again."""
        self._file.close()
        if callable(close := getattr(self.scorer, "close", None)):
            close()

    def __enter__(self) -> Cached:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keys(self, pairs: Sequence[Pair]) -> list[bytes]:
        digests: dict[tuple[bytes, str], bytes] = {}

        def key(kind: bytes, record: Query | Item) -> bytes:
            text = f"{len(record.id)} {record.id} {record.text}" if self._sees_ids else record.text
            if (kind, text) not in digests:
                digests[kind, text] = digest(text, kind)
            return digests[kind, text]

        return [key(b"query", query) + key(b"item", item) for query, item in pairs]

    def _look_up(self, call: _Call, keys: Sequence[bytes]) -> list[bytes]:
        """Add what the file knows to the call; the keys that are still unknown."""
        unknown = [key for key in keys if key not in call.scores]
        if unknown:
            call.scores |= self._file.find(unknown)
        return [key for key in unknown if key not in call.scores]

    def _keep(self, call: _Call, keys: list[bytes], answers: FloatArray) -> None:
        scores = check_scores(answers, call.pairs_of(keys))
        call.paid += len(keys)
        with self._lock:
            self.misses += len(keys)
        try:
            self._file.add(keys, scores)
        except AdacurError as error:
            # Paid for and correct: the answer goes to the caller whatever becomes of the copy.
            warnings.warn(
                f"{len(keys)} scores were not stored and will be paid for again. {error}", CacheWarning, stacklevel=3
            )
        call.scores |= zip(keys, scores, strict=True)

    def _answered(self, call: _Call) -> FloatArray:
        with self._lock:
            self.hits += len(call.keys) - call.paid
        # The widest type among the scores holds them all without a change.
        return np.array([call.scores[key] for key in call.keys])

    @contextlib.contextmanager
    def _claimed(self, keys: Sequence[bytes], *, by_thread: bool) -> Iterator[tuple[list[bytes], set[_Claim]]]:
        """Claim keys for a call of the scorer; yields those, and the claims of other callers to wait for afterwards."""
        claim = _Claim(by_thread)
        mine: list[bytes] = []
        others: set[_Claim] = set()
        # A coroutine may need this very thread, or the last of a pool, to go on: better to pay twice than to hang.
        waits_for_coroutines = not by_thread
        waits_for_threads = not by_thread or not _in_event_loop()
        with self._lock:
            for key in keys:
                holder = self._claims.setdefault(key, claim)
                if holder.process != claim.process:
                    # A forked child inherits claims that will never end there.
                    holder = self._claims[key] = claim
                waits = waits_for_threads if holder.by_thread else waits_for_coroutines
                if holder is claim or not waits:
                    mine.append(key)
                else:
                    others.add(holder)
        try:
            yield mine, others
        finally:
            with self._lock:
                for key in mine:
                    if self._claims.get(key) is claim:
                        del self._claims[key]
            claim.done.set_result(None)


class _Claim:
    """A call of the scorer that is under way for some keys."""

    def __init__(self, by_thread: bool) -> None:
        self.by_thread = by_thread
        self.process = os.getpid()
        self.done: Future[None] = Future()
        # A running future cannot be cancelled by one of those who wait for it.
        self.done.set_running_or_notify_cancel()


class _Call:
    """What one call of `Cached` needs and what it knows so far; `paid` counts scores that cost a call."""

    def __init__(self, keys: Sequence[bytes], pairs: Sequence[Pair]) -> None:
        self.keys = keys
        self.scores: dict[bytes, np.floating] = {}
        self.paid = 0
        self._pair_of = dict(zip(keys, pairs, strict=True))

    def parts(self, size: int) -> Iterator[list[bytes]]:
        distinct = list(self._pair_of)
        return (distinct[start : start + size] for start in range(0, len(distinct), size))

    def pairs_of(self, keys: Sequence[bytes]) -> list[Pair]:
        return [self._pair_of[key] for key in keys]


def past_cache(scorer: Scorer) -> Scorer:
    """The scorer behind a cache, else the scorer itself: old scores do not say who answers today."""
    inner = _unwrapped(scorer)
    return inner.scorer if isinstance(inner, Cached) else scorer


def _unwrapped(scorer: Scorer) -> Scorer:
    # Only wrappers that pass scores on unchanged.
    while isinstance(scorer, Metered | SharedBatches):
        scorer = scorer.scorer
    return scorer


def _identity(scorer: Scorer, key: str | None) -> str:
    """What distinguishes scorers, as text; fields that a card may get one day count too."""
    card = scorer.card
    # Caches of before cards had these two fields are still recognised where a card leaves them empty.
    newer = ("settings", "arithmetic")
    fields: Mapping[str, object] = dataclasses.asdict(card)
    fields = {name: value for name, value in fields.items() if value is not None or name not in newer}
    if not card.weights and key is None:
        # All lambdas have one name, and an edited function keeps its name. Where `code` cannot be read it raises: a
        # name alone would mix two scorers.
        fields["code"] = getattr(_unwrapped(scorer), "code", None)
    if card.weights:
        # They identify a model, wherever it lies and whatever its folder is called.
        del fields["name"], fields["source"]
    return json.dumps(fields | {"key": key}, sort_keys=True)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
