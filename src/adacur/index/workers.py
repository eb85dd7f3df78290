"""Where the blocks of a build are scored: `on` is None (this process, or one process per device), a number of local
processes, or a `Ray` cluster.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from adacur.core.errors import InputError, ScorerFailed
from adacur.core.protocols import MovableScorer, Reopening, ReplicatedScorer, Scorer, ScorerCard
from adacur.engines import Engine, InThisProcess, LocalProcesses, Ray, RayActors
from adacur.engines.ray import capacity, connected
from adacur.scorers.cached import past_cache
from adacur.scorers.opening import scorer as open_scorer

__all__ = ["On", "check_workers", "connected_to", "engine_for", "n_workers", "speed"]

On = int | Ray | None
# Starting a process takes as long as scoring some thousand pairs.
_FEW_PAIRS = 20_000
_UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError)

Task = TypeVar("Task")
Result = TypeVar("Result")


def connected_to(on: On) -> contextlib.AbstractContextManager[None]:
    """A connection to the cluster that is used, if one is."""
    return connected(on.address) if isinstance(on, Ray) else contextlib.nullcontext()


def check_workers(on: On, scorer: Scorer) -> None:
    """Refuse a scorer that cannot work in as many places as it should."""
    if isinstance(on, bool) or not isinstance(on, int | Ray | None) or (isinstance(on, int) and on < 1):
        raise InputError(f"on must be None, a number of processes from 1 on, or Ray(…); got {on!r}.")
    if on in (None, 1):
        return
    if past_cache(scorer) is not scorer:
        raise InputError(
            "A score cache is a file that one process writes. Leave the cache out, or score in one process: without "
            "on=… (--workers, --ray)."
        )
    devices = len(_replicas(scorer)) or (1 if next(_reopenings(scorer)).gpus else None)
    if isinstance(on, int) and devices is not None and on > devices:
        raise InputError(
            f"Scorer {scorer.card.name!r} has {devices} device(s) here, and each serves one process; got on={on}."
        )


def n_workers(on: On, scorer: Scorer) -> int:
    """How many score at the same time, as far as can be known now."""
    if not isinstance(on, Ray):
        return min(on or 2**31, len(_replicas(scorer)) or on or 1)
    needs = next(_reopenings(scorer))
    return on.workers or max(1, capacity(cpus=needs.cpus, gpus=needs.gpus))


def speed(on: On, scorer: Scorer) -> float:
    """The pace of all workers, as a multiple of the scorer's in this process."""
    number = n_workers(on, scorer)
    if not isinstance(on, Ray) and (number == 1 or _replicas(scorer)):
        return number
    return number * next(_reopenings(scorer)).share


def engine_for(
    on: On,
    scorer: Scorer,
    *,
    here: Callable[[Task], Result],
    elsewhere: Callable[[Callable[[], Scorer]], Callable[[Task], Result]],
    blocks_left: int,
    pairs_left: int,
) -> Engine[Task, Result]:
    """The engine that scores what is left: by `here`, or by what `elsewhere` makes there of an opener of the scorer."""
    if isinstance(on, Ray):
        fewer = Ray(on.address, on.workers and min(on.workers, blocks_left))
        return _first_that_pickles(
            scorer,
            lambda way: RayActors(functools.partial(elsewhere, way.open), on=fewer, cpus=way.cpus, gpus=way.gpus),
        )
    openers = _replicas(scorer)[:on]
    number = min(on or len(openers), blocks_left)
    if number < 2 or (on is None and pairs_left <= _FEW_PAIRS):
        return InThisProcess(here)
    if not openers:
        return _first_that_pickles(
            scorer, lambda way: LocalProcesses([functools.partial(elsewhere, way.open)] * number)
        )
    try:
        return LocalProcesses([functools.partial(elsewhere, opener) for opener in openers[:number]])
    except _UNPICKLABLE as error:
        raise ScorerFailed(
            f"What replicas() returns must pickle, to be called in other processes; that of scorer "
            f"{scorer.card.name!r} does not: {error}. Define it at the top of a module, or leave replicas() out."
        ) from error


def _replicas(scorer: Scorer) -> Sequence[Callable[[], Scorer]]:
    """How to open the scorer again, once per device; nothing where it has one."""
    openers = tuple(scorer.replicas()) if isinstance(scorer, ReplicatedScorer) else ()
    return openers if len(openers) > 1 else ()


def _reopenings(scorer: Scorer) -> Iterator[Reopening]:
    """The ways to open a scorer in another process, the surest first."""
    if isinstance(scorer, MovableScorer):
        yield scorer.reopening()
        return
    yield Reopening(functools.partial(_itself, scorer))
    if scorer.card.source is not None:
        yield Reopening(functools.partial(_from_source, scorer.card))


def _first_that_pickles(scorer: Scorer, make: Callable[[Reopening], Engine[Task, Result]]) -> Engine[Task, Result]:
    errors: list[Exception] = []
    for way in _reopenings(scorer):
        try:
            return make(way)
        except _UNPICKLABLE as error:
            errors.append(error)
    raise ScorerFailed(
        f"Scorer {scorer.card.name!r} cannot go to other processes, since it does not pickle: {errors[0]}. Use a "
        "function at the top of a module, or a scorer by its name; or build in this process."
    ) from errors[0]


def _itself(scorer: Scorer) -> Scorer:
    return scorer


def _from_source(card: ScorerCard) -> Scorer:
    limits = {"name": card.name, "max_tokens": card.max_tokens, "max_item_tokens": card.max_item_tokens}
    return open_scorer(card.source, **{name: limit for name, limit in limits.items() if limit is not None})
