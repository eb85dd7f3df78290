"""An executor on a Ray cluster, or on this machine by Ray: actors on any of its nodes."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic

from adacur.budget import at_least
from adacur.errors import InputError
from adacur.requirements import require
from adacur.store.executor import Result, Task, WorkersLost, read_ahead

_log = logging.getLogger("adacur.extras.ray")
# A task is given up after this number of deaths, and the cluster when as many workers in a row cannot start.
_MOST_DEATHS = 3
_POLL_SECONDS = 1.0
# A cluster that grows on demand starts a machine in minutes.
_SECONDS_WITHOUT_WORKER = 600.0
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Ray:
    """Run on the Ray cluster at `address` ("auto", "host:port"); None starts one on this machine.

    `workers` is the number of actors; None: as many as the nodes have room for, nodes that join later included.
    """

    address: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        at_least(1, workers=self.workers)

    def connected(self) -> contextlib.AbstractContextManager[None]:
        """A connection to the cluster, which is started and ended here if it has no address."""
        return connected(self.address)

    def capacity(self, *, cpus: int, gpus: int) -> int:
        """How many workers of this size the nodes hold, if nothing else runs there."""
        return capacity(cpus=cpus, gpus=gpus)

    def executor_of(
        self, opener: Callable[[], Callable[[Any], Any]], *, at_most: int, cpus: int, gpus: int
    ) -> RayActors[Any, Any]:
        """Actors that each call the opener once."""
        fewer = Ray(self.address, self.workers and min(self.workers, at_most))
        return RayActors(opener, executor=fewer, cpus=cpus, gpus=gpus)


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """A connection to the cluster at `address`, by default to one that is started here and ended again.

    A process has one connection: where there is one already, it is used and left open.
    """
    ray = require("ray", extra="ray")
    if ray.is_initialized():
        yield
        return
    with _quiet(ray):
        try:
            _check_listening(address)
            with warnings.catch_warnings():
                # Hints for Ray's users, which would be errors where warnings are.
                warnings.simplefilter("ignore")
                local = {} if address else {"include_dashboard": False}
                ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **local)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise InputError(
                f"No Ray cluster can be used at {address or 'this machine'!r}: {error}. Start one with "
                "`ray start --head` and give its address, or leave the address out to use this machine only."
            ) from error
        try:
            yield
        finally:
            # Not where Python is ending: Ray has then ended the connection by itself.
            if ray.is_initialized():
                ray.shutdown()


def _check_listening(address: str | None) -> None:
    """An error at once where nothing listens; Ray would retry for minutes and print each failure."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


def capacity(*, cpus: int, gpus: int) -> int:
    """How many workers of this size the nodes of the cluster hold, if nothing else runs there."""
    ray = require("ray", extra="ray")
    needs = {name: amount for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount}
    return sum(
        min(int(node["Resources"].get(name, 0) // amount) for name, amount in needs.items())
        for node in ray.nodes()
        if node["Alive"]
    )


class RayActors(Generic[Task, Result]):
    """One Ray actor per worker: it calls the opener once, then works on one task after another.

    The opener may be a closure. A worker that dies, alone or with its node, is replaced where there is room, and its
    task goes to the next that is free; a task that sees three deaths is given up.
    """

    def __init__(
        self,
        opener: Callable[[], Callable[[Task], Result]],
        *,
        executor: Ray | None = None,
        cpus: int = 1,
        gpus: int = 0,
    ) -> None:
        self._opener: bytes = require("ray.cloudpickle", extra="ray").dumps(opener)
        self._executor = executor or Ray()
        self._size = {"cpus": cpus, "gpus": gpus}
        self._pool: _Pool | None = None

    @property
    def workers(self) -> int:
        """The number of workers that are there."""
        return (self._executor.workers or 1) if self._pool is None else self._pool.n_workers

    def run(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Result], None, None]:
        """Each task with its result, as they finish."""
        with (
            connected(self._executor.address),
            contextlib.closing(read_ahead(tasks)) as upcoming,
            _Pool(self._opener, upcoming, workers=self._executor.workers, size=self._size) as pool,
        ):
            self._pool = pool
            yield from pool.run()


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a worker sent, a result or an error; or why it `died` without one."""

    result: Any = None
    error: Exception | None = None
    died: str | None = None


@dataclass(slots=True, eq=False)
class _Assignment:
    """A task, and how many workers died on it."""

    task: Any
    deaths: int = 0


class _Actor:
    """A worker, in the process where it runs."""

    def __init__(self, opener: bytes, search_path: list[str]) -> None:
        self._opener = opener
        self._work: Callable[[Any], Any] | None = None
        # Modules beside the driver's are found here too, where the folders are the same.
        sys.path.extend(folder for folder in search_path if folder not in sys.path)

    def ping(self) -> _Answer:
        return _Answer()

    def work(self, task: Any) -> _Answer:
        try:
            if self._work is None:
                self._work = self._opened()
            return _Answer(result=self._work(task))
        except Exception as error:
            return _Answer(error=_able_to_travel(error))

    def _opened(self) -> Callable[[Any], Any]:
        import ray.cloudpickle

        try:
            opener = ray.cloudpickle.loads(self._opener)
        except Exception as error:
            raise WorkersLost(
                f"A worker on {socket.gethostname()} cannot unpickle its work: {type(error).__name__}: {error}. Every "
                "process needs the packages and modules that this one uses."
            ) from error
        work: Callable[[Any], Any] = opener()
        return work


def _able_to_travel(error: Exception) -> Exception:
    """The error, or its words where it does not pickle, with a note of where it was raised."""
    where = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    # Neither a traceback nor a cause survives the way to the driver; a note does.
    error.add_note(f"In a worker process:\n{where}")
    return error


class _Pool:
    """The actors of a run; their number follows the nodes of the cluster where it was not given.

    An actor is idle once it has answered a ping: one that waits for room on a node must not be given a task.
    """

    def __init__(self, opener: bytes, tasks: Iterator[Any], *, workers: int | None, size: dict[str, int]) -> None:
        self._ray = require("ray", extra="ray")
        self._opener = opener
        self._tasks = tasks
        self._all_read = False
        self._given_back: list[_Assignment] = []
        self._n_wanted = workers
        self._size = size
        self._idle: list[Any] = []
        # By the answer that is awaited: the actor, and its task; None where it was only asked whether it is there.
        self._awaited: dict[Any, tuple[Any, _Assignment | None]] = {}
        self._failed_starts = 0
        self._last_sign = time.monotonic()
        if workers is None and not capacity(**size):
            raise WorkersLost(f"No node of the Ray cluster has room for a worker, which takes {size}.")

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in (*self._idle, *(actor for actor, _ in self._awaited.values())):
            with contextlib.suppress(Exception):
                self._ray.kill(actor)

    @property
    def n_workers(self) -> int:
        return max(1, len(self._idle) + self._n_at_work)

    @property
    def _n_at_work(self) -> int:
        return sum(assignment is not None for _, assignment in self._awaited.values())

    def run(self) -> Generator[tuple[Any, Any], None, None]:
        """Each task with its result, as they finish."""
        finished: list[tuple[Any, Any]] = []
        error: Exception | None = None
        while True:
            # Before the results go out: no worker waits for what is done with the result of another.
            if error is None:
                error = self._hand_out()
            while finished:
                yield finished.pop(0)
            if error is not None:
                raise error
            if self._all_read and not self._given_back and not self._n_at_work:
                return
            for actor, assignment, answer in self._answers():
                if answer.died is not None:
                    error = self._after_death(assignment, answer.died) or error
                elif answer.error is not None:
                    error = answer.error
                else:
                    self._idle.append(actor)
                    if assignment is not None:
                        finished.append((assignment.task, answer.result))

    def _hand_out(self) -> Exception | None:
        """Start the workers that are missing and give every idle one a task; the error of reading tasks, if any."""
        try:
            if not self._all_read or self._given_back:
                self._start_missing()
            while self._idle and (assignment := self._next()) is not None:
                actor = self._idle.pop()
                self._awaited[actor.work.remote(assignment.task)] = actor, assignment
        except Exception as error:
            return error
        return None

    def _next(self) -> _Assignment | None:
        if self._given_back:
            return self._given_back.pop()
        for task in self._tasks:
            return _Assignment(task)
        self._all_read = True
        return None

    def _start_missing(self) -> None:
        options = {"num_cpus": self._size["cpus"], "num_gpus": self._size["gpus"], "max_restarts": 0}
        places = self._n_wanted or capacity(**self._size)
        for _ in range(places - len(self._idle) - len(self._awaited)):
            remote = self._ray.remote(_Actor).options(**options, scheduling_strategy="SPREAD")
            actor = remote.remote(self._opener, sys.path)
            self._awaited[actor.ping.remote()] = actor, None
        if self._idle or self._n_at_work:
            self._last_sign = time.monotonic()
        elif time.monotonic() - self._last_sign > _SECONDS_WITHOUT_WORKER:
            raise WorkersLost(
                f"No node of the Ray cluster has had room for a worker, which takes {self._size}, for "
                f"{_SECONDS_WITHOUT_WORKER:.0f} s."
            )

    def _answers(self) -> list[tuple[Any, _Assignment | None, _Answer]]:
        """Wait for a while until workers have answered or died."""
        if not self._awaited:
            time.sleep(_POLL_SECONDS)
            return []
        self._ray.wait(list(self._awaited), timeout=_POLL_SECONDS)
        arrived = self._ray.wait(list(self._awaited), num_returns=len(self._awaited), timeout=0)[0]
        answers = [(*self._awaited.pop(reference), self._answer(reference)) for reference in arrived]
        started = [answer.died is None for _, assignment, answer in answers if assignment is None]
        if started:
            # Those that a node takes with it count once.
            self._failed_starts = 0 if any(started) else self._failed_starts + 1
        if any(answer.died is not None for *_, answer in answers):
            # An idle worker may have gone with its node; it would be given the task, and count as another death on it.
            self._awaited |= {actor.ping.remote(): (actor, None) for actor in self._idle}
            self._idle.clear()
        return answers

    def _answer(self, reference: Any) -> _Answer:
        try:
            answer: _Answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as death:
            # The first lines name the actor by numbers; the reason begins the last, and advice follows.
            return _Answer(died=str(death).strip().splitlines()[-1].split(". ")[0][:300])
        return answer

    def _after_death(self, assignment: _Assignment | None, reason: str) -> WorkersLost | None:
        """Take back the task of a worker that died; the error that ends the run where there were too many deaths."""
        _log.warning("A worker died %s: %s", "on a task" if assignment else "without one", reason)
        if assignment is None:
            is_hopeless = self._failed_starts >= _MOST_DEATHS and not self._idle and not self._n_at_work
            return WorkersLost(f"No worker can start on the Ray cluster: {reason}") if is_hopeless else None
        assignment.deaths += 1
        self._given_back.append(assignment)
        if assignment.deaths < _MOST_DEATHS:
            return None
        return WorkersLost(
            f"A worker died on a task ({reason}), the {_MOST_DEATHS}rd time on the same one; it may need more memory."
        )


@contextlib.contextmanager
def _quiet(ray: Any) -> Iterator[None]:
    """Keep Ray's messages off the terminal, and restore what it changes: a signal handler, its logger's level."""
    began_in_main_thread = threading.current_thread() is threading.main_thread()
    on_end = signal.getsignal(signal.SIGTERM)
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    usage_stats = os.environ.get("RAY_USAGE_STATS_ENABLED")
    # A build reports nothing to third parties.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without it, every death is printed on stdout, where a command may be writing JSON; there is no public switch.
    worker_logs = getattr(ray._private.worker, "_worker_logs_enabled", True)
    ray._private.worker._worker_logs_enabled = False
    try:
        yield
    finally:
        ray._private.worker._worker_logs_enabled = worker_logs
        logger.setLevel(level)
        if usage_stats is None:
            os.environ.pop("RAY_USAGE_STATS_ENABLED", None)
        # Only the main thread may set signal handlers.
        is_main_thread = threading.current_thread() is threading.main_thread()
        if began_in_main_thread and is_main_thread and on_end is not None:
            signal.signal(signal.SIGTERM, on_end)
