"""The loop that engines with workers share: hand out tasks, collect answers, replace the dead."""

from __future__ import annotations

import contextlib
import pickle
import socket
import traceback
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from adacur.engines.engine import Task, WorkersLost

__all__ = ["MOST_DEATHS", "Answer", "Assignment", "Pool", "Worker", "answer_of", "read_ahead", "run_tasks", "unpickled"]

# A place or a task is given up after this number of deaths in a row.
MOST_DEATHS = 3
_END: Any = object()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker sent: that it is open, a result, or an error; or why it `died` without one."""

    result: Any = None
    error: Exception | None = None
    died: str | None = None


@dataclass(slots=True)
class Assignment:
    """A task, and how many workers died on it."""

    task: Any
    deaths: int = 0


class Worker(Protocol):
    """A process somewhere that works on one task at a time."""

    is_open: bool
    assignment: Assignment | None

    @property
    def is_idle(self) -> bool: ...

    def give(self, assignment: Assignment) -> None: ...


class Pool(Protocol):
    """The workers of a run."""

    @property
    def workers(self) -> Collection[Worker]: ...

    def fill(self) -> None:
        """Start the workers that are missing; WorkersLost where none is left and none can be started."""
        ...

    def wait(self) -> list[tuple[Any, Answer]]:
        """Wait for a while until a worker has answered or died; (worker, answer) of each that has."""
        ...

    def remove(self, worker: Any, reason: str) -> None:
        """Take out a worker that died."""
        ...


def run_tasks(pool: Pool, tasks: Iterator[Any]) -> Generator[tuple[Any, Any], None, None]:
    """Each task with its result, as they finish."""
    queue = _Queue(tasks)
    finished: list[tuple[Any, Any]] = []
    error: Exception | None = None
    while True:
        # Before the results go out: no worker waits for what is done with the result of another.
        if error is None:
            error = _hand_out(pool, queue)
        while finished:
            yield finished.pop(0)
        if error is not None:
            raise error
        if queue.is_empty and not any(worker.assignment for worker in pool.workers):
            return
        for worker, answer in pool.wait():
            if answer.died is not None:
                if worker.assignment is not None and queue.give_back(worker.assignment) == MOST_DEATHS:
                    error = WorkersLost(
                        f"A worker died on a task ({answer.died}), the {MOST_DEATHS}rd time on the same one; it may "
                        "need more memory."
                    )
                pool.remove(worker, answer.died)
            elif answer.error is not None:
                error = answer.error
            elif worker.assignment is None:
                worker.is_open = True
            else:
                finished.append((worker.assignment.task, answer.result))
                worker.assignment = None


def _hand_out(pool: Pool, queue: _Queue) -> Exception | None:
    """Give every idle worker a task; the error of reading tasks or of starting workers, if there is one."""
    try:
        if not queue.is_empty:
            pool.fill()
        for worker in pool.workers:
            if worker.is_idle and (assignment := queue.take()) is not None:
                worker.give(assignment)
    except Exception as error:
        return error
    return None


class _Queue:
    """Tasks as they are read, those first that have been given back."""

    def __init__(self, tasks: Iterator[Any]) -> None:
        self._tasks = tasks
        self._given_back: list[Assignment] = []
        self._all_read = False

    def take(self) -> Assignment | None:
        """The next task; None where there is none."""
        if self._given_back:
            return self._given_back.pop()
        if self._all_read:
            return None
        task = next(self._tasks, _END)
        self._all_read = task is _END
        return None if self._all_read else Assignment(task)

    def give_back(self, assignment: Assignment) -> int:
        """Take back the task of a worker that died; how many have died on it."""
        assignment.deaths += 1
        self._given_back.append(assignment)
        return assignment.deaths

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be handed out."""
        return self._all_read and not self._given_back


def answer_of(work: Callable[[], Any]) -> Answer:
    """In a worker: the result of some work, or its error in a form that can travel."""
    try:
        return Answer(result=work())
    except Exception as error:
        where = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        # Neither a traceback nor a cause survives the way to the parent; a note does.
        error.add_note(f"In a worker process:\n{where}")
        return Answer(error=error)


def unpickled(opener: bytes, *, loads: Callable[[bytes], Any] = pickle.loads) -> Any:
    """In a worker: the function that opens its work."""
    try:
        return loads(opener)
    except Exception as error:
        raise WorkersLost(
            f"A worker on {socket.gethostname()} cannot unpickle its work: {type(error).__name__}: {error}. Every "
            "process needs the packages and modules that this one uses."
        ) from error


@contextlib.contextmanager
def read_ahead(tasks: Iterable[Task]) -> Iterator[Iterator[Task]]:
    """Tasks in order, each read in a separate thread while the one before it is worked on."""
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
            # In the reader's thread, which opened whatever the tasks are read from.
            reader.submit(getattr(source, "close", lambda: None)).result()
