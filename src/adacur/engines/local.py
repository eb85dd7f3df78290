"""Engines of one machine: this process, or one process per device."""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import os
import pickle
import pickletools
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, Generic, cast

from adacur.engines.crew import (
    DEATHS_IN_A_ROW,
    Answer,
    Assignment,
    TaskQueue,
    answer_to,
    read_ahead,
    run_with,
    unpacked,
)
from adacur.engines.engine import Result, Task, WorkersLost

__all__ = ["InThisProcess", "LocalProcesses"]

_log = logging.getLogger("adacur.engines")
_SECONDS_BETWEEN_ROLL_CALLS = 1.0
_SECONDS_TO_LEAVE = 10.0


class InThisProcess(Generic[Task, Result]):
    """Work in the thread of whoever asks for the results, while another thread reads the next task."""

    workers = 1

    def __init__(self, work: Callable[[Task], Result]) -> None:
        self._work = work

    def run(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Result], None, None]:
        """Each task with its result, in order."""
        with read_ahead(tasks) as upcoming:
            for task in upcoming:
                yield task, self._work(task)


class LocalProcesses(Generic[Task, Result]):
    """One process per opener: it calls the opener once, then works on one task after another.

    Openers, tasks and results must pickle. A process that dies (killed, out of memory) is replaced, and its task goes
    to whoever is free next; a place or a task that sees three deaths in a row is given up.
    """

    def __init__(self, openers: Sequence[Callable[[], Callable[[Task], Result]]]) -> None:
        self._openers = [pickle.dumps(opener) for opener in openers]
        self._crew: _Crew | None = None

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self._openers) if self._crew is None else self._crew.n_workers

    def run(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Result], None, None]:
        """Each task with its result, as they finish."""
        with read_ahead(tasks) as upcoming, _Crew(self._openers, TaskQueue(upcoming)) as crew:
            self._crew = crew
            yield from run_with(crew)


class _Crew:
    """The workers of a run, by place, and who has which task."""

    def __init__(self, openers: Sequence[bytes], tasks: TaskQueue) -> None:
        self.error: Exception | None = None
        self._openers = openers
        self._tasks = tasks
        self._deaths = [0] * len(openers)
        self._workers: dict[int, _Worker] = {}

    @property
    def n_workers(self) -> int:
        return len(self._workers)

    def __enter__(self) -> _Crew:
        try:
            for place, opener in enumerate(self._openers):
                self._workers[place] = _Worker(opener)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.dismiss()
        for worker in self._workers.values():
            worker.wait_until_gone()

    def hand_out(self) -> bool:
        """Give every idle worker a task; whether anything remains to be done."""
        for worker in self._workers.values():
            if worker.is_idle and self.error is None and (assignment := self._tasks.take()) is not None:
                worker.give(assignment)
            self.error = self.error or self._tasks.error
        return not self._tasks.is_empty or any(worker.assignment for worker in self._workers.values())

    def gather(self) -> list[tuple[Any, Any]]:
        """Wait until a worker has sent something, or died; every result that has come in."""
        # A process that a worker left behind may hold its pipe open, and hide that it has died.
        wait([worker.connection for worker in self._workers.values()], timeout=_SECONDS_BETWEEN_ROLL_CALLS)
        finished = []
        for place, worker in list(self._workers.items()):
            if not worker.has_news():
                continue
            answer = worker.receive()
            if answer is None:
                self._replace(place)
            elif answer.error is not None:
                self.error = answer.error
            elif worker.assignment is None:
                worker.is_open = True
            else:
                finished.append((worker.assignment.task, answer.result))
                worker.assignment = None
                self._deaths[place] = 0
        return finished

    def _replace(self, place: int) -> None:
        worker = self._workers.pop(place)
        worker.connection.close()
        code = worker.wait_until_gone()
        self._deaths[place] += 1
        if worker.assignment is not None:
            self._tasks.give_back(worker.assignment)
        died = f"A worker process died {'on a task' if worker.assignment else 'while it started'} ({_in_words(code)})"
        if worker.assignment is not None and worker.assignment.deaths == DEATHS_IN_A_ROW:
            self.error = WorkersLost(f"{died}, the {DEATHS_IN_A_ROW}rd time on the same one; it may need more memory.")
        elif self._deaths[place] < DEATHS_IN_A_ROW:
            _log.warning("%s; another takes its place.", died)
            self._workers[place] = _Worker(self._openers[place])
        elif self._workers:
            _log.warning("%s, %d in a row; %d others go on.", died, DEATHS_IN_A_ROW, len(self._workers))
        else:
            self.error = WorkersLost(f"{died}, as did all others and those that took their places.")


class _Worker:
    """A process and our end of the pipe to it."""

    def __init__(self, opener: bytes) -> None:
        spawning = multiprocessing.get_context("spawn")
        self.connection, theirs = spawning.Pipe()
        self.is_open = False
        self.assignment: Assignment | None = None
        self._process = spawning.Process(target=_serve, args=(opener, theirs), name="adacur-worker")
        with _script_kept_from_children(opener):
            self._process.start()
        # Without a copy of their end here, their death shows as the end of the pipe.
        theirs.close()

    @property
    def is_idle(self) -> bool:
        return self.is_open and self.assignment is None

    def give(self, assignment: Assignment) -> None:
        self.assignment = assignment
        # If it has died, that is seen when its answer is due.
        with contextlib.suppress(OSError):
            self.connection.send(assignment.task)

    def has_news(self) -> bool:
        return self.connection.poll() or not self._process.is_alive()

    def receive(self) -> Answer | None:
        """What it has sent; None if it died first."""
        try:
            # Asked again, since it may have answered and left between two looks at it.
            answer = self.connection.recv() if self.connection.poll() else None
        except (EOFError, OSError):
            return None
        return cast("Answer | None", answer)

    def dismiss(self) -> None:
        """Send it away: an idle one sees the end of the pipe and leaves by itself."""
        if not self.is_idle:
            self._process.terminate()
        self.connection.close()

    def wait_until_gone(self) -> int | None:
        """Its exit code."""
        self._process.join(_SECONDS_TO_LEAVE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        code = self._process.exitcode
        self._process.close()
        return code


def _serve(opener: bytes, connection: Connection) -> None:
    """The life of a worker."""
    # Ctrl-C reaches every process of a terminal; the parent is the one to act on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work: Callable[[Any], Any] | None = None

    def open_work() -> None:
        nonlocal work
        work = unpacked(opener)()

    with contextlib.suppress(EOFError, ConnectionError):
        connection.send(answer_to(open_work))
        while work is not None:
            task = connection.recv()
            connection.send(answer_to(functools.partial(work, task)))


def _end_with_parent() -> None:
    """A killed parent tells nobody; without this, its workers would finish what no one waits for."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def _script_kept_from_children(opener: bytes) -> Iterator[None]:
    """A spawned process runs the user's script again, which without a `__main__` guard would start its own workers."""
    script = sys.modules["__main__"]
    # Not a search of the bytes: a text in the opener may well speak of it.
    if not any(argument == "__main__" for _, argument, _ in pickletools.genops(opener)):
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _in_words(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        with contextlib.suppress(ValueError):
            return f"by {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"
