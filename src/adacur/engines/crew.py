"""What engines with workers share: the tasks to be done, and what a worker answers."""

from __future__ import annotations

import contextlib
import pickle
import socket
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from adacur.engines.engine import Task, WorkersLost

__all__ = [
    "DEATHS_IN_A_ROW",
    "Answer",
    "Assignment",
    "Crew",
    "TaskQueue",
    "answer_to",
    "read_ahead",
    "run_with",
    "unpacked",
]

DEATHS_IN_A_ROW = 3
_END: Any = object()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker sends: a result, or an error; first of all, that it is ready."""

    result: Any = None
    error: Exception | None = None


@dataclass(slots=True)
class Assignment:
    """A task, and how many workers died on it."""

    task: Any
    deaths: int = 0


class Crew(Protocol):
    """The workers of a run."""

    error: Exception | None

    def hand_out(self) -> bool:
        """Give every idle worker a task; whether anything remains to be done."""
        ...

    def gather(self) -> list[tuple[Any, Any]]:
        """Wait until a worker has sent something, or died; every result that has come in."""
        ...


class TaskQueue:
    """Tasks as they are read, those first that have been given back."""

    def __init__(self, upcoming: Iterator[Any]) -> None:
        self.error: Exception | None = None
        self._upcoming = upcoming
        self._given_back: list[Assignment] = []
        self._all_read = False

    def take(self) -> Assignment | None:
        """The next task; None where there is none, or none could be read."""
        if self._given_back:
            return self._given_back.pop()
        if self._all_read:
            return None
        try:
            task = next(self._upcoming, _END)
        except Exception as error:
            # Told once the results that have come in are out: they are paid for.
            self.error, task = error, _END
        self._all_read = task is _END
        return None if self._all_read else Assignment(task)

    def give_back(self, assignment: Assignment) -> None:
        """Take note that a worker died on it."""
        assignment.deaths += 1
        self._given_back.append(assignment)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be handed out."""
        return self._all_read and not self._given_back


def run_with(crew: Crew) -> Generator[tuple[Any, Any], None, None]:
    """Each task with its result, as they finish."""
    finished: list[tuple[Any, Any]] = []
    while True:
        # Before the results go out: no worker waits for what is done with the result of another.
        at_work = crew.hand_out()
        while finished:
            yield finished.pop(0)
        if crew.error is not None:
            raise crew.error
        if not at_work:
            return
        finished = crew.gather()


def answer_to(ask: Callable[[], Any]) -> Answer:
    """In a worker: what was asked for, or its error in a form that can travel."""
    try:
        return Answer(result=ask())
    except Exception as error:
        where = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        # Neither a traceback nor a cause survives the way to the parent; a note does.
        error.add_note(f"In a worker process:\n{where}")
        return Answer(error=error)


def unpacked(opener: bytes, *, loads: Callable[[bytes], Any] = pickle.loads) -> Any:
    """In a worker: what opens its work."""
    try:
        return loads(opener)
    except Exception as error:
        raise WorkersLost(
            f"A worker on {socket.gethostname()} cannot unpack its work: {type(error).__name__}: {error}. Every "
            "process needs the packages and modules that this one uses."
        ) from error


@contextlib.contextmanager
def read_ahead(tasks: Iterable[Task]) -> Iterator[Iterator[Task]]:
    """Tasks in order, read in a thread of their own, one ahead of whoever takes them."""
    with contextlib.closing(_reading_ahead(tasks)) as upcoming:
        yield upcoming


def _reading_ahead(tasks: Iterable[Task]) -> Generator[Task, None, None]:
    source = iter(tasks)
    with ThreadPoolExecutor(1, thread_name_prefix="adacur-read-ahead") as reader:
        try:
            upcoming = reader.submit(next, source, _END)
            while (task := upcoming.result()) is not _END:
                upcoming = reader.submit(next, source, _END)
                yield task
        finally:
            # In the reader's thread, which owns whatever the tasks are read from.
            reader.submit(getattr(source, "close", lambda: None)).result()
