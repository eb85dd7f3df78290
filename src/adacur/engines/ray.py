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
from typing import Any, Generic

from adacur.core.errors import InputError
from adacur.core.extras import require
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

__all__ = ["RayActors", "connected", "room"]

_log = logging.getLogger("adacur.engines")
_SECONDS_BETWEEN_ROLL_CALLS = 1.0
# A cluster that grows on demand starts a machine in minutes.
_SECONDS_TO_FIND_ROOM = 600.0
_SECONDS_TO_ANSWER = 10.0


@contextlib.contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """A connection to the cluster at `address`, by default to one that is started here and ended again.

    A process has one connection. Where there is one already, it is used: one that was made here ends with the last
    who uses it, and another is kept.
    """
    ray = require("ray", extra="ray")
    with _shared.lock:
        is_ours = bool(_shared.users) or not ray.is_initialized()
        if not ray.is_initialized():
            _shared.connection.enter_context(_connection(ray, address))
        _shared.users += is_ours
    try:
        yield
    finally:
        with _shared.lock:
            _shared.users -= is_ours
            if is_ours and not _shared.users:
                _shared.connection.close()


class _Shared:
    """The connection that was made here, and how many use it."""

    def __init__(self) -> None:
        # One thread may come here twice: whoever is forgotten instead of closed leaves whenever memory is cleaned up.
        self.lock = threading.RLock()
        self.connection = contextlib.ExitStack()
        self.users = 0


_shared = _Shared()


@contextlib.contextmanager
def _connection(ray: Any, address: str | None) -> Iterator[None]:
    with _quiet(ray):
        try:
            _knock(address)
            with warnings.catch_warnings():
                # Hints for Ray's own users, which would be errors where warnings are.
                warnings.simplefilter("ignore")
                ray.init(
                    address=address or "local",
                    log_to_driver=False,
                    configure_logging=False,
                    **({} if address else {"include_dashboard": False}),
                )
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


def _knock(address: str | None) -> None:
    """An error at once where nobody listens; Ray itself would try for minutes, and tell each failure."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER).close()


def room(*, cpus: int, gpus: int) -> int:
    """How many workers of this size the nodes of the cluster hold, if nobody else uses them."""
    ray = require("ray", extra="ray")
    needs = {name: amount for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount}
    return sum(
        min(int(node["Resources"].get(name, 0) // amount) for name, amount in needs.items())
        for node in ray.nodes()
        if node["Alive"]
    )


class RayActors(Generic[Task, Result]):
    """One Ray actor per worker: it calls the opener once, then works on one task after another.

    `workers` of them are asked for, or by default as many as the nodes have room for; nodes that join meanwhile are
    used. The opener may be a closure. A worker that dies, alone or with its node, is replaced where there is room, and
    its task goes to whoever is free next; a task that sees three deaths is given up.
    """

    def __init__(
        self,
        opener: Callable[[], Callable[[Task], Result]],
        *,
        address: str | None = None,
        workers: int | None = None,
        cpus: int = 1,
        gpus: int = 0,
    ) -> None:
        self._opener: bytes = require("ray.cloudpickle", extra="ray").dumps(opener)
        self._address = address
        self._wanted = workers
        self._size = {"cpus": cpus, "gpus": gpus}
        self._cast: _Cast | None = None

    @property
    def workers(self) -> int:
        """How many are open, or opening."""
        return (self._wanted or 1) if self._cast is None else self._cast.n_workers

    def run(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Result], None, None]:
        """Each task with its result, as they finish."""
        with (
            connected(self._address),
            read_ahead(tasks) as upcoming,
            _Cast(self._opener, TaskQueue(upcoming), wanted=self._wanted, size=self._size) as cast,
        ):
            self._cast = cast
            yield from run_with(cast)


class _Actor:
    """The far side of a worker."""

    def __init__(self, opener: bytes, search_path: list[str]) -> None:
        self._opener = opener
        self._work: Callable[[Any], Any] | None = None
        # Modules beside the driver's are found here too, where the folders are the same.
        sys.path.extend(folder for folder in search_path if folder not in sys.path)

    def open(self) -> Answer:
        return answer_to(self._open)

    def be_there(self) -> Answer:
        return Answer()

    def work(self, task: Any) -> Answer:
        assert self._work is not None
        return answer_to(functools.partial(self._work, task))

    def _open(self) -> None:
        import ray.cloudpickle

        self._work = unpacked(self._opener, loads=ray.cloudpickle.loads)()


class _Worker:
    """Our side of a worker: its actor, what it was asked, and what for."""

    def __init__(self, opener: bytes, *, cpus: int, gpus: int) -> None:
        self._ray = require("ray", extra="ray")
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._actor = self._ray.remote(_Actor).options(**options).remote(opener, sys.path)
        self.is_open = False
        self.assignment: Assignment | None = None
        self.answer: Any = self._actor.open.remote()

    @property
    def is_idle(self) -> bool:
        return self.is_open and self.answer is None

    def call(self) -> None:
        """Ask whether it is still there; until it has answered, it is not idle."""
        self.answer = self._actor.be_there.remote()

    def give(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.answer = self._actor.work.remote(assignment.task)

    def receive(self) -> Answer:
        """What it has sent; an error of Ray's if it died first."""
        answer: Answer = self._ray.get(self.answer)
        self.answer = None
        return answer

    def dismiss(self) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)


class _Cast:
    """The actors of a run, however many there are at the moment."""

    def __init__(self, opener: bytes, tasks: TaskQueue, *, wanted: int | None, size: dict[str, int]) -> None:
        self._ray = require("ray", extra="ray")
        self.error: Exception | None = None
        self._opener = opener
        self._tasks = tasks
        self._wanted = wanted
        self._size = size
        self._workers: list[_Worker] = []
        self._false_starts = 0
        self._seen_at_work = time.monotonic()

    @property
    def n_workers(self) -> int:
        return sum(worker.is_open for worker in self._workers) or len(self._workers)

    def __enter__(self) -> _Cast:
        if self._wanted is None and not room(**self._size):
            raise WorkersLost(f"No node of the Ray cluster has room for a worker, which takes {self._size}.")
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.dismiss()

    def hand_out(self) -> bool:
        """Give every idle worker a task; whether anything remains to be done."""
        if not self._tasks.is_empty and self.error is None:
            self._fill_up()
        for worker in self._workers:
            if worker.is_idle and self.error is None and (assignment := self._tasks.take()) is not None:
                worker.give(assignment)
            self.error = self.error or self._tasks.error
        return not self._tasks.is_empty or any(worker.assignment for worker in self._workers)

    def _fill_up(self) -> None:
        """Ask for as many workers as there should be, whatever nodes have come or gone."""
        if self._false_starts >= DEATHS_IN_A_ROW:
            return
        places = self._wanted or room(**self._size)
        self._workers += [_Worker(self._opener, **self._size) for _ in range(places - len(self._workers))]

    def gather(self) -> list[tuple[Any, Any]]:
        """Wait until a worker has sent something, or died; every result that has come in."""
        asked = [worker.answer for worker in self._workers if worker.answer is not None]
        if asked:
            self._ray.wait(asked, timeout=_SECONDS_BETWEEN_ROLL_CALLS)
            arrived = set(self._ray.wait(asked, num_returns=len(asked), timeout=0)[0])
        else:
            time.sleep(_SECONDS_BETWEEN_ROLL_CALLS)
            arrived = set()
        finished = []
        n_workers, starts_before = len(self._workers), self._false_starts
        for worker in [worker for worker in self._workers if worker.answer in arrived]:
            try:
                answer = worker.receive()
            except self._ray.exceptions.RayError as death:
                if not worker.is_open:
                    # Those that a node takes with it count once.
                    self._false_starts = starts_before + 1
                self._mourn(worker, death)
                continue
            if answer.error is not None:
                self.error = answer.error
            elif worker.assignment is None:
                worker.is_open = True
                self._false_starts = 0
            else:
                finished.append((worker.assignment.task, answer.result))
                worker.assignment = None
        if len(self._workers) < n_workers:
            # One that had nothing to do may have gone with its node; it would be given the task, and count as another
            # that died on it.
            for worker in self._workers:
                if worker.is_idle:
                    worker.call()
        self._look_out()
        return finished

    def _mourn(self, worker: _Worker, death: Exception) -> None:
        self._workers.remove(worker)
        worker.dismiss()
        # The first lines name the actor by numbers; the reason begins the last, and advice follows.
        reason = str(death).strip().splitlines()[-1].split(". ")[0][:300]
        if self._false_starts >= DEATHS_IN_A_ROW and not self._workers:
            self.error = WorkersLost(f"No worker can start on the Ray cluster: {reason}")
        if worker.assignment is not None:
            self._tasks.give_back(worker.assignment)
            if worker.assignment.deaths == DEATHS_IN_A_ROW:
                self.error = WorkersLost(
                    f"A worker died on a task, the {DEATHS_IN_A_ROW}rd time on the same one; it may need more memory. "
                    f"Ray says: {reason}"
                )
        when = "on a task" if worker.assignment else "while it waited" if worker.is_open else "while it started"
        _log.warning("A worker died %s: %s", when, reason)

    def _look_out(self) -> None:
        """Give up where nobody has found room to work for long."""
        now = time.monotonic()
        if any(worker.is_open for worker in self._workers) or (self._workers and room(**self._size)):
            self._seen_at_work = now
        elif self.error is None and now - self._seen_at_work > _SECONDS_TO_FIND_ROOM:
            self.error = WorkersLost(
                f"No node of the Ray cluster has had room for a worker, which takes {self._size}, for "
                f"{_SECONDS_TO_FIND_ROOM:.0f} s."
            )


@contextlib.contextmanager
def _quiet(ray: Any) -> Iterator[None]:
    """Keep Ray's talk off the terminal, and give back what it takes over: a signal, its logger's level."""
    began_in_main_thread = threading.current_thread() is threading.main_thread()
    on_end = signal.getsignal(signal.SIGTERM)
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    told = os.environ.get("RAY_USAGE_STATS_ENABLED")
    # A build tells nobody outside about itself.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without it, every death is told on stdout, where a command may be writing JSON; there is no public switch.
    talk = getattr(ray._private.worker, "_worker_logs_enabled", True)
    ray._private.worker._worker_logs_enabled = False
    try:
        yield
    finally:
        ray._private.worker._worker_logs_enabled = talk
        logger.setLevel(level)
        if told is None:
            os.environ.pop("RAY_USAGE_STATS_ENABLED", None)
        # No other thread may say what a signal does.
        is_main_thread = threading.current_thread() is threading.main_thread()
        if began_in_main_thread and is_main_thread and on_end is not None:
            signal.signal(signal.SIGTERM, on_end)
