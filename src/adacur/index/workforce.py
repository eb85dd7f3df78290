"""Who scores the blocks of a build, and how many of them."""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from adacur.core.errors import InputError, ScorerFailed
from adacur.core.protocols import MovableScorer, Reopening, ReplicatedScorer, Scorer, ScorerCard
from adacur.engines import Engine, InThisProcess, LocalProcesses, RayActors
from adacur.engines.ray import connected, room
from adacur.scorers.cached import past_cache
from adacur.scorers.opening import scorer as opened_scorer

__all__ = ["ENGINES", "Workforce"]

ENGINES = ("local", "ray")
_SMALL_BUILD = 20_000

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Workforce:
    """This machine, or the Ray cluster at `address` (by default one that is started here), with so many `workers`.

    By default those are as many as the scorer has devices, or as the cluster has room for.
    """

    engine: str = "local"
    address: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise InputError(f"engine is one of {', '.join(ENGINES)}; got {self.engine!r}.")
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers counts processes, at least 1; got {self.workers}.")
        if self.address is not None and self.engine != "ray":
            raise InputError(f"An address is that of a Ray cluster; got {self.address!r} with engine={self.engine!r}.")

    def at_hand(self) -> contextlib.AbstractContextManager[None]:
        """While it can be counted and employed."""
        return connected(self.address) if self.engine == "ray" else contextlib.nullcontext()

    def check(self, scorer: Scorer, *, cached: bool = False) -> None:
        """Refuse a scorer that cannot work in as many places as are asked for, such as one that is to be `cached`."""
        if self.engine == "local" and self.workers in (None, 1):
            return
        if cached or past_cache(scorer) is not scorer:
            raise InputError(
                "A score cache is a file of one process's scorer. Leave the cache out, or score in one process: "
                "without engine (--engine) and workers (--workers)."
            )
        devices = len(self._replicas(scorer)) or (1 if next(_reopenings(scorer)).gpus else None)
        if self.engine == "local" and devices is not None and self.workers is not None and self.workers > devices:
            raise InputError(
                f"Scorer {scorer.card.name!r} has {devices} device(s) here, and each serves one worker; got "
                f"workers={self.workers}."
            )

    def size(self, scorer: Scorer) -> int:
        """How many score at the same time, as far as can be seen now."""
        if self.engine == "local":
            return min(self.workers or 2**31, len(self._replicas(scorer)) or self.workers or 1)
        needs = next(_reopenings(scorer))
        return self.workers or max(1, room(cpus=needs.cpus, gpus=needs.gpus))

    def speed(self, scorer: Scorer) -> float:
        """Its pace, as a multiple of the scorer's in this process."""
        size = self.size(scorer)
        if self.engine == "local" and (size == 1 or self._replicas(scorer)):
            return size
        return size * next(_reopenings(scorer)).share

    def employ(
        self,
        scorer: Scorer,
        *,
        here: Callable[[Task], Result],
        elsewhere: Callable[[Callable[[], Scorer]], Callable[[Task], Result]],
        blocks_left: int,
        pairs_left: int,
    ) -> Engine[Task, Result]:
        """The engine that scores what is left: by `here`, or by what `elsewhere` makes there of what opens the scorer.

        Both must pickle where they are to travel.
        """
        if self.engine == "ray":
            return _first_that_pickles(
                scorer,
                lambda way: RayActors(
                    functools.partial(elsewhere, way.open),
                    address=self.address,
                    workers=self.workers and min(self.workers, blocks_left),
                    cpus=way.cpus,
                    gpus=way.gpus,
                ),
            )
        openers = self._replicas(scorer)[: self.workers]
        wanted = min(self.workers or len(openers), blocks_left)
        # Starting a process takes as long as scoring some thousand pairs; who asks for several has reason to.
        if wanted < 2 or (self.workers is None and pairs_left <= _SMALL_BUILD):
            return InThisProcess(here)
        if not openers:
            return _first_that_pickles(
                scorer, lambda way: LocalProcesses([functools.partial(elsewhere, way.open)] * wanted)
            )
        try:
            return LocalProcesses([functools.partial(elsewhere, opener) for opener in openers[:wanted]])
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ScorerFailed(
                f"What replicas() returns must pickle, to be called in other processes; that of scorer "
                f"{scorer.card.name!r} does not: {error}. Define it at the top of a module, or leave replicas() out."
            ) from error

    def _replicas(self, scorer: Scorer) -> Sequence[Callable[[], Scorer]]:
        """How to open the scorer again, once per device; nothing where it is to be used as it is."""
        found = tuple(scorer.replicas()) if isinstance(scorer, ReplicatedScorer) else ()
        return found if len(found) > 1 else ()


def _reopenings(scorer: Scorer) -> Iterator[Reopening]:
    """The ways to open a scorer elsewhere, the surest first; there may be none behind the first."""
    if isinstance(scorer, MovableScorer):
        yield scorer.reopening()
        return
    yield Reopening(functools.partial(_itself, scorer))
    if scorer.card.source is not None:
        yield Reopening(functools.partial(_from_source, scorer.card))


def _first_that_pickles(scorer: Scorer, employ: Callable[[Reopening], Engine[Task, Result]]) -> Engine[Task, Result]:
    errors: list[Exception] = []
    for way in _reopenings(scorer):
        try:
            return employ(way)
        # What a foreign object raises when it is pickled, nobody knows.
        except (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError) as error:
            errors.append(error)
    raise ScorerFailed(
        f"Scorer {scorer.card.name!r} cannot go to other processes, since it does not pickle: {errors[0]}. Use a "
        "function at the top of a module, or a scorer by its name; or build in this process."
    ) from errors[0]


def _itself(scorer: Scorer) -> Scorer:
    return scorer


def _from_source(card: ScorerCard) -> Scorer:
    limits = {"name": card.name, "max_tokens": card.max_tokens, "max_item_tokens": card.max_item_tokens}
    return opened_scorer(card.source, **{name: limit for name, limit in limits.items() if limit is not None})
