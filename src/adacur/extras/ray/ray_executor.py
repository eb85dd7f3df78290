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

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """A connection to the cluster, which is started and ended here if it has no address.

        A process has one connection: where there is one already, it is used and left open.
        """
        ray = require("ray", extra="ray")
        if ray.is_initialized():
            yield
            return
        with _quiet(ray):
            try:
                _check_listening(self.address)
                with warnings.catch_warnings():
                    # Hints for Ray's users, which would be errors where warnings are.
                    warnings.simplefilter("ignore")
                    local = {} if self.address else {"include_dashboard": False}
                    ray.init(address=self.address or "local", log_to_driver=False, configure_logging=False, **local)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise InputError(
                    f"No Ray cluster can be used at {self.address or 'this machine'!r}: {error}. Start one with "
                    "`ray start --head` and give its address, or leave the address out to use this machine only."
                ) from error
            try:
                yield
            finally:
                # Not where Python is ending: Ray has then ended the connection by itself.
                if ray.is_initialized():
                    ray.shutdown()

    def capacity(self, *, cpus: int, gpus: int) -> int:
        """How many workers of this size the nodes hold, if nothing else runs there."""
        ray = require("ray", extra="ray")
        needs = {name: amount for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount}
        return sum(
            min(int(node["Resources"].get(name, 0) // amount) for name, amount in needs.items())
            for node in ray.nodes()
            if node["Alive"]
        )

    def executor_of(
        self, opener: Callable[[], Callable[[Any], Any]], *, at_most: int, cpus: int, gpus: int
    ) -> RayActors[Any, Any]:
        """Actors that each call the opener once."""
        fewer = Ray(self.address, self.workers and min(self.workers, at_most))
        return RayActors(opener, executor=fewer, cpus=cpus, gpus=gpus)


def _check_listening(address: str | None) -> None:
    """An error at once where nothing listens; Ray would retry for minutes and print each failure."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


class RayActors(Generic[Task, Result]):
    """One Ray actor per worker: it calls the opener once, then works on one task after another.

    The opener may be a closure. A worker that dies, alone or with its node, is replaced where there is room, and its
    task goes to the next that is free; a task that sees three deaths ends the run.
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
        self.workers = self._executor.workers or 1

    def run(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Result], None, None]:
        """Each task with its result, as they finish."""
        ray = require("ray", extra="ray")
        actors: list[Any] = []
        with self._executor.connected(), contextlib.closing(read_ahead(tasks)) as upcoming:
            if self._executor.workers is None and not self._executor.capacity(**self._size):
                raise WorkersLost(f"No node of the Ray cluster has room for a worker, which takes {self._size}.")
            try:
                yield from self._finished(ray, actors, upcoming)
            finally:
                for actor in actors:
                    ray.kill(actor)

    def _finished(self, ray: Any, actors: list[Any], tasks: Iterator[Task]) -> Generator[tuple[Any, Any], None, None]:
        # By the answer that is awaited: the actor, and what it works at; none where it was only asked whether it is
        # there. One that waits for room on a node must not be given a task.
        awaited: dict[Any, tuple[Any, _Work | None]] = {}
        again: list[_Work] = []
        last_sign, failed_starts, all_read = time.monotonic(), 0, False
        while not all_read or again or any(work for _, work in awaited.values()):
            places = 0 if all_read and not again else self._executor.workers or self._executor.capacity(**self._size)
            for _ in range(places - len(actors)):
                actors.append(self._started(ray))
                awaited[actors[-1].ping.remote()] = actors[-1], None
            arrived, _ = ray.wait(list(awaited), timeout=_POLL_SECONDS)
            if not arrived and not any(work for _, work in awaited.values()):
                _check_patience(last_sign, self._size)
            for reference in arrived:
                actor, work = awaited.pop(reference)
                try:
                    result, error = ray.get(reference)
                except ray.exceptions.RayError as death:
                    actors.remove(actor)
                    failed_starts += work is None
                    again += _after_death(work, death, is_hopeless=failed_starts >= _MOST_DEATHS and not awaited)
                    continue
                if error is not None:
                    raise error
                last_sign, failed_starts = time.monotonic(), 0
                # Before the result goes out: no worker waits for what is done with the result of another.
                try:
                    following = again.pop() if again else next((_Work(one) for one in tasks), None)
                except Exception as failure:
                    following, error = None, failure
                if following is None:
                    all_read = True
                    actors.remove(actor)
                    ray.kill(actor)
                else:
                    awaited[actor.work.remote(following.task)] = actor, following
                self.workers = max(1, sum(one is not None for _, one in awaited.values()))
                if work is not None:
                    yield work.task, result
                if error is not None:
                    raise error

    def _started(self, ray: Any) -> Any:
        size = {"num_cpus": self._size["cpus"], "num_gpus": self._size["gpus"], "scheduling_strategy": "SPREAD"}
        return ray.remote(_Actor).options(**size, max_restarts=0).remote(self._opener, sys.path)


@dataclass(frozen=True, slots=True)
class _Work:
    """A task, and how many workers died on it."""

    task: Any
    deaths: int = 0


def _after_death(work: _Work | None, death: Exception, *, is_hopeless: bool) -> list[_Work]:
    """What is to be done again after a worker has died; an error where there were too many deaths."""
    # The first lines name the actor by numbers; the reason begins the last, and advice follows.
    reason = str(death).strip().splitlines()[-1].split(". ")[0][:300]
    _log.warning("A worker died %s: %s", "without one" if work is None else "on a task", reason)
    if work is None:
        if is_hopeless:
            raise WorkersLost(f"No worker can start on the Ray cluster: {reason}")
        return []
    if work.deaths + 1 == _MOST_DEATHS:
        raise WorkersLost(
            f"A worker died on a task ({reason}), the {_MOST_DEATHS}rd time on the same one; it may need more memory."
        )
    return [_Work(work.task, work.deaths + 1)]


def _check_patience(last_sign: float, size: dict[str, int]) -> None:
    if time.monotonic() - last_sign > _SECONDS_WITHOUT_WORKER:
        raise WorkersLost(
            f"No node of the Ray cluster has had room for a worker, which takes {size}, for "
            f"{_SECONDS_WITHOUT_WORKER:.0f} s."
        )


class _Actor:
    """A worker, in the process where it runs."""

    def __init__(self, opener: bytes, search_path: list[str]) -> None:
        self._opener = opener
        self._work: Callable[[Any], Any] | None = None
        # Modules beside the driver's are found here too, where the folders are the same.
        sys.path.extend(folder for folder in search_path if folder not in sys.path)

    def ping(self) -> tuple[Any, Exception | None]:
        return None, None

    def work(self, task: Any) -> tuple[Any, Exception | None]:
        try:
            if self._work is None:
                self._work = self._opened()
            return self._work(task), None
        except Exception as error:
            return None, _able_to_travel(error)

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
