"""Where the blocks of a build are scored: in this process, or by a cluster such as `Ray(…)`."""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from adacur.errors import InputError, ScorerFailed
from adacur.protocols import MovableScorer, Reopening, Scorer, ScorerCard
from adacur.scorers.by_name import scorer as open_scorer
from adacur.scorers.cached import past_cache

Task = TypeVar("Task")
Result = TypeVar("Result", covariant=True)
_END: Any = object()
_UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError)


class WorkersLost(RuntimeError):
    """The processes that should do the work keep dying without raising an error."""


class Executor(Protocol[Task, Result]):
    """Runs tasks somewhere, each of them to one result."""

    @property
    def workers(self) -> int:
        """How many work at the same time: now, or before a run the expected number."""
        ...

    def run(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Result], None, None]:
        """Each task with its result, in the order in which they finish.

        Tasks are read in a separate thread, at most one beyond those at work. The first error of the tasks or the work
        ends the run; so does closing the generator. Nothing it started outlives it.
        """
        ...


@runtime_checkable
class Cluster(Protocol):
    """Other processes, here or on other machines: where the blocks of a build can be scored, such as `Ray(…)`."""

    workers: int | None

    def connected(self) -> contextlib.AbstractContextManager[None]:
        """A connection that is open as long as the cluster is used."""
        ...

    def capacity(self, *, cpus: int, gpus: int) -> int:
        """How many workers of this size it holds."""
        ...

    def executor_of(
        self, opener: Callable[[], Callable[[Any], Any]], *, at_most: int, cpus: int, gpus: int
    ) -> Executor[Any, Any]:
        """Runs tasks by what `opener` makes there, with at most so many workers."""
        ...


On = Cluster | None
"""Where to score: None is this process."""


class InThisProcess(Generic[Task, Result]):
    """Work in the caller's thread, while another thread reads the next task."""

    workers = 1

    def __init__(self, work: Callable[[Task], Result]) -> None:
        self._work = work

    def run(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Result], None, None]:
        """Each task with its result, in order."""
        with contextlib.closing(read_ahead(tasks)) as upcoming:
            for task in upcoming:
                yield task, self._work(task)


def read_ahead(tasks: Iterable[Task]) -> Generator[Task, None, None]:
    """Tasks in order, each read in a separate thread while the one before it is worked on; to be closed."""
    source = iter(tasks)
    with ThreadPoolExecutor(1, thread_name_prefix="adacur-read-ahead") as reader:
        try:
            upcoming = reader.submit(next, source, _END)
            while (task := upcoming.result()) is not _END:
                upcoming = reader.submit(next, source, _END)
                yield task
        finally:
            # In the reader's thread, which opened whatever the tasks are read from.
            reader.submit(getattr(source, "close", lambda: None)).result()


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
