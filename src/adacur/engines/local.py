"""Engines of one machine: this process, or several."""

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
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, Generic

from adacur.engines.engine import Result, Task, WorkersLost
from adacur.engines.tasks import MOST_DEATHS, Answer, Assignment, answer_of, read_ahead, run_tasks, unpickled

__all__ = ["InThisProcess", "LocalProcesses"]

_log = logging.getLogger("adacur.engines")
_POLL_SECONDS = 1.0
_EXIT_SECONDS = 10.0


class InThisProcess(Generic[Task, Result]):
    """Work in the caller's thread, while another thread reads the next task."""

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
    to the next that is free; a place or a task that sees three deaths in a row is given up.
    """

    def __init__(self, openers: Sequence[Callable[[], Callable[[Task], Result]]]) -> None:
        self._openers = [pickle.dumps(opener) for opener in openers]
        self._pool: _Pool | None = None

    @property
    def workers(self) -> int:
        """The number of live processes."""
        return len(self._openers) if self._pool is None else len(self._pool.workers)

    def run(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Result], None, None]:
        """Each task with its result, as they finish."""
        with read_ahead(tasks) as upcoming, _Pool(self._openers) as pool:
            self._pool = pool
            yield from run_tasks(pool, upcoming)


class _Pool:
    """Processes by place; a place whose processes keep dying stays empty."""

    def __init__(self, openers: Sequence[bytes]) -> None:
        self._openers = openers
        self._deaths = [0] * len(openers)
        self._workers: dict[int, _Process] = {}
        self._last_death = ""

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.stop()
        for worker in self._workers.values():
            worker.join()

    @property
    def workers(self) -> Collection[_Process]:
        return self._workers.values()

    def fill(self) -> None:
        for place, opener in enumerate(self._openers):
            if place not in self._workers and self._deaths[place] < MOST_DEATHS:
                self._workers[place] = _Process(place, opener)
        if not self._workers:
            raise WorkersLost(f"All worker processes died, and so did their replacements ({self._last_death}).")

    def wait(self) -> list[tuple[_Process, Answer]]:
        # A process that a worker left behind may hold its pipe open, and hide that it has died.
        wait([worker.connection for worker in self._workers.values()], timeout=_POLL_SECONDS)
        answers = []
        for worker in [worker for worker in self._workers.values() if worker.has_news()]:
            answer = worker.receive()
            if answer.died is None and worker.assignment is not None:
                self._deaths[worker.place] = 0
            answers.append((worker, answer))
        return answers

    def remove(self, worker: _Process, reason: str) -> None:
        del self._workers[worker.place]
        self._deaths[worker.place] += 1
        self._last_death = reason
        when = "on a task" if worker.assignment else "while it started"
        _log.warning("A worker process died %s (%s); %d others go on.", when, reason, len(self._workers))


class _Process:
    """A process and our end of the pipe to it."""

    def __init__(self, place: int, opener: bytes) -> None:
        spawning = multiprocessing.get_context("spawn")
        self.place = place
        self.connection, theirs = spawning.Pipe()
        self.is_open = False
        self.assignment: Assignment | None = None
        self._process = spawning.Process(target=_serve, args=(opener, theirs), name="adacur-worker")
        with _main_hidden_from_children(opener):
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

    def receive(self) -> Answer:
        """What it has sent, or how it died."""
        with contextlib.suppress(EOFError, OSError):
            # It may have answered and left between two looks at it.
            if self.connection.poll():
                answer: Answer = self.connection.recv()
                return answer
        self.connection.close()
        return Answer(died=_in_words(self.join()))

    def stop(self) -> None:
        """End it: an idle one sees the end of the pipe and leaves by itself."""
        if not self.is_idle:
            self._process.terminate()
        self.connection.close()

    def join(self) -> int | None:
        """Its exit code, once it has ended."""
        self._process.join(_EXIT_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        code = self._process.exitcode
        self._process.close()
        return code


def _serve(opener: bytes, connection: Connection) -> None:
    """What a worker process runs."""
    # Ctrl-C reaches every process of a terminal; the parent is the one to act on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work: Callable[[Any], Any] | None = None

    def open_work() -> None:
        nonlocal work
        work = unpickled(opener)()

    with contextlib.suppress(EOFError, ConnectionError):
        connection.send(answer_of(open_work))
        while work is not None:
            task = connection.recv()
            connection.send(answer_of(functools.partial(work, task)))


def _end_with_parent() -> None:
    """End this process when its parent is killed: its results would not be read."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def _main_hidden_from_children(opener: bytes) -> Iterator[None]:
    """A spawned process runs the user's script again, which without a `__main__` guard would start more workers."""
    script = sys.modules["__main__"]
    # Not a search of the bytes: a text in the opener may contain the word.
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
