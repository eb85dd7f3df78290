"""Where the blocks of a build are scored: `executor` is None for this process, or `Ray(…)`."""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Callable, Iterator
from typing import TypeVar

from adacur.errors import InputError, ScorerFailed
from adacur.protocols import MovableScorer, Reopening, Scorer, ScorerCard
from adacur.scorers.by_name import scorer as open_scorer
from adacur.scorers.cached import past_cache
from adacur.store.executor import Cluster, Executor, InThisProcess

On = Cluster | None
_UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError)

Task = TypeVar("Task")
Result = TypeVar("Result")


def connected_to(executor: On) -> contextlib.AbstractContextManager[None]:
    """A connection to the cluster that is used, if one is."""
    return contextlib.nullcontext() if executor is None else executor.connected()


def check_workers(executor: On, scorer: Scorer) -> None:
    """Refuse a scorer that cannot work in several processes where it should."""
    if not isinstance(executor, Cluster | None):
        raise InputError(f"executor must be None, for this process, or Ray(…), e.g. Ray(workers=4); got {executor!r}.")
    if executor is not None and past_cache(scorer) is not scorer:
        raise InputError(
            "A score cache is a file that one process writes. Leave the cache out, or score in this process: without "
            "executor=… (--workers, --ray)."
        )


def workers_and_speed(executor: On, scorer: Scorer) -> tuple[int, float]:
    """How many score at the same time, as far as is known now, and their pace as a multiple of the scorer's here."""
    if executor is None:
        return 1, 1.0
    needs = next(_reopenings(scorer))
    workers = executor.workers or max(1, executor.capacity(cpus=needs.cpus, gpus=needs.gpus))
    return workers, workers * needs.share


def executor_for(
    executor: On,
    scorer: Scorer,
    *,
    here: Callable[[Task], Result],
    elsewhere: Callable[[Callable[[], Scorer]], Callable[[Task], Result]],
    blocks_left: int,
) -> Executor[Task, Result]:
    """The executor that scores what is left: by `here`, or by what `elsewhere` makes of an opener of the scorer."""
    if executor is None:
        return InThisProcess(here)
    errors: list[Exception] = []
    for way in _reopenings(scorer):
        try:
            opener = functools.partial(elsewhere, way.open)
            return executor.executor_of(opener, at_most=blocks_left, cpus=way.cpus, gpus=way.gpus)
        except _UNPICKLABLE as error:
            errors.append(error)
    raise ScorerFailed(
        f"Scorer {scorer.card.name!r} cannot go to other processes, since it does not pickle: {errors[0]}. Use a "
        "function at the top of a module, or a scorer by its name; or build in this process."
    ) from errors[0]


def _reopenings(scorer: Scorer) -> Iterator[Reopening]:
    """The ways to open a scorer in another process, the surest first."""
    if isinstance(scorer, MovableScorer):
        yield scorer.reopening()
        return
    yield Reopening(functools.partial(_itself, scorer))
    if scorer.card.source is not None:
        yield Reopening(functools.partial(_from_source, scorer.card))


def _itself(scorer: Scorer) -> Scorer:
    return scorer


def _from_source(card: ScorerCard) -> Scorer:
    limits = {"name": card.name, "max_tokens": card.max_tokens, "max_item_tokens": card.max_item_tokens}
    return open_scorer(card.source, **{name: limit for name, limit in limits.items() if limit is not None})
