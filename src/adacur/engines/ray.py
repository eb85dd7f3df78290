"""An engine on a Ray cluster: actors on any of its nodes."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic

from adacur.core.errors import InputError
from adacur.core.extras import require
from adacur.engines.engine import Result, Task, WorkersLost
from adacur.engines.tasks import MOST_DEATHS, Answer, Assignment, answer_of, read_ahead, run_tasks, unpickled

__all__ = ["Ray", "RayActors", "capacity", "connected"]

_log = logging.getLogger("adacur.engines")
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
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be at least 1; got {self.workers}.")


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
        self, opener: Callable[[], Callable[[Task], Result]], *, on: Ray | None = None, cpus: int = 1, gpus: int = 0
    ) -> None:
        self._opener: bytes = require("ray.cloudpickle", extra="ray").dumps(opener)
        self._on = on or Ray()
        self._size = {"cpus": cpus, "gpus": gpus}
        self._pool: _Pool | None = None

    @property
    def workers(self) -> int:
        """The number of workers that are open, or opening."""
        return (self._on.workers or 1) if self._pool is None else self._pool.n_open

    def run(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Result], None, None]:
        """Each task with its result, as they finish."""
        with (
            connected(self._on.address),
            read_ahead(tasks) as upcoming,
            _Pool(self._opener, workers=self._on.workers, size=self._size) as pool,
        ):
            self._pool = pool
            yield from run_tasks(pool, upcoming)


class _Actor:
    """The far side of a worker."""

    def __init__(self, opener: bytes, search_path: list[str]) -> None:
        self._opener = opener
        self._work: Callable[[Any], Any] | None = None
        # Modules beside the driver's are found here too, where the folders are the same.
        sys.path.extend(folder for folder in search_path if folder not in sys.path)

    def open(self) -> Answer:
        return answer_of(self._open)

    def ping(self) -> Answer:
        return Answer()

    def work(self, task: Any) -> Answer:
        assert self._work is not None
        return answer_of(functools.partial(self._work, task))

    def _open(self) -> None:
        import ray.cloudpickle

        self._work = unpickled(self._opener, loads=ray.cloudpickle.loads)()


class _RemoteWorker:
    """Our side of a worker: its actor, and the answer that is awaited from it."""

    def __init__(self, opener: bytes, *, cpus: int, gpus: int) -> None:
        self._ray = require("ray", extra="ray")
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._actor = self._ray.remote(_Actor).options(**options).remote(opener, sys.path)
        self.is_open = False
        self.assignment: Assignment | None = None
        self.pending: Any = self._actor.open.remote()

    @property
    def is_idle(self) -> bool:
        return self.is_open and self.pending is None

    def ping(self) -> None:
        """Ask whether it is still alive; until it has answered, it is not idle."""
        self.pending = self._actor.ping.remote()

    def give(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.pending = self._actor.work.remote(assignment.task)

    def receive(self) -> Answer:
        """What it has sent, or how it died."""
        try:
            answer: Answer = self._ray.get(self.pending)
        except self._ray.exceptions.RayError as death:
            # The first lines name the actor by numbers; the reason begins the last, and advice follows.
            return Answer(died=str(death).strip().splitlines()[-1].split(". ")[0][:300])
        self.pending = None
        return answer

    def stop(self) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)


class _Pool:
    """The actors of a run; their number follows the nodes of the cluster where it was not given."""

    def __init__(self, opener: bytes, *, workers: int | None, size: dict[str, int]) -> None:
        self._ray = require("ray", extra="ray")
        self._opener = opener
        self._n_workers = workers
        self._size = size
        self.workers: list[_RemoteWorker] = []
        self._failed_starts = 0
        self._last_death = ""
        self._last_open = time.monotonic()
        if workers is None and not capacity(**size):
            raise WorkersLost(f"No node of the Ray cluster has room for a worker, which takes {size}.")

    @property
    def n_open(self) -> int:
        return sum(worker.is_open for worker in self.workers) or len(self.workers)

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.stop()

    def fill(self) -> None:
        if self._failed_starts < MOST_DEATHS:
            places = self._n_workers or capacity(**self._size)
            self.workers += [_RemoteWorker(self._opener, **self._size) for _ in range(places - len(self.workers))]
        elif not self.workers:
            raise WorkersLost(f"No worker can start on the Ray cluster: {self._last_death}")
        now = time.monotonic()
        if any(worker.is_open for worker in self.workers) or (self.workers and capacity(**self._size)):
            self._last_open = now
        elif now - self._last_open > _SECONDS_WITHOUT_WORKER:
            raise WorkersLost(
                f"No node of the Ray cluster has had room for a worker, which takes {self._size}, for "
                f"{_SECONDS_WITHOUT_WORKER:.0f} s."
            )

    def wait(self) -> list[tuple[_RemoteWorker, Answer]]:
        pending = [worker.pending for worker in self.workers if worker.pending is not None]
        if not pending:
            time.sleep(_POLL_SECONDS)
            return []
        self._ray.wait(pending, timeout=_POLL_SECONDS)
        arrived = set(self._ray.wait(pending, num_returns=len(pending), timeout=0)[0])
        answers = [(worker, worker.receive()) for worker in self.workers if worker.pending in arrived]
        opened = [answer.died is None for worker, answer in answers if not worker.is_open]
        if any(opened):
            self._failed_starts = 0
        elif opened:
            # Those that a node takes with it count once.
            self._failed_starts += 1
        if any(answer.died is not None for _, answer in answers):
            # An idle worker may have gone with its node; it would be given the task, and count as another death on it.
            for worker in self.workers:
                if worker.is_idle:
                    worker.ping()
        return answers

    def remove(self, worker: _RemoteWorker, reason: str) -> None:
        self.workers.remove(worker)
        worker.stop()
        self._last_death = reason
        when = "on a task" if worker.assignment else "while it waited" if worker.is_open else "while it started"
        _log.warning("A worker died %s: %s", when, reason)


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
