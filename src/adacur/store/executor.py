"""The shape of an executor of blocks, and the one that works in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

Task = TypeVar("Task")
Result = TypeVar("Result", covariant=True)
_END: Any = object()


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
