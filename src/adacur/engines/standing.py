"""Workers that stay: each holds something that takes long to open, and answers calls until it is dismissed."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from adacur.core.errors import ShardLost
from adacur.core.extras import require
from adacur.core.products import blas_threads
from adacur.engines.crew import Answer, answer_to, unpacked
from adacur.engines.ray import connected

__all__ = ["Opener", "Standing", "StandingActors", "StandingHere"]

Opener = Callable[[], Any]
# Calls are made again on a worker that has been started anew; one that dies on the same call each time is given up.
_CALLS_AGAIN = 2


class Standing(Protocol):
    """Workers in an order of their own."""

    def __len__(self) -> int: ...

    def call(self, method: str, arguments: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Call a method of what each worker holds, at the same time; None spares a worker, and is its result."""
        ...

    def share(self, value: Any) -> Any:
        """What stands for a value in the arguments of several calls, so that it travels once."""
        ...

    def close(self) -> None:
        """Dismiss the workers."""
        ...


class StandingHere:
    """Workers in this process, which take turns."""

    def __init__(self, openers: Sequence[Opener]) -> None:
        self._held = [opener() for opener in openers]

    def __len__(self) -> int:
        return len(self._held)

    def call(self, method: str, arguments: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Call a method of what each worker holds."""
        return [
            None if own is None else getattr(held, method)(*own)
            for held, own in zip(self._held, arguments, strict=True)
        ]

    def share(self, value: Any) -> Any:
        """The value itself."""
        return value

    def close(self) -> None:
        """Let go of what the workers hold."""
        self._held = []


class StandingActors:
    """One Ray actor per worker, spread over the nodes of the cluster at `address`, or of one that is started here.

    An actor that dies, alone or with its node, is started again by Ray, opens what it held, and answers what it was
    asked; so calls must not depend on earlier ones. Actors reserve no CPU: what they take is memory, or `gpus`. Those
    that find no room within `patience` seconds, in which a cluster may grow, are an error.
    """

    def __init__(
        self, openers: Sequence[Opener], *, address: str | None = None, gpus: int = 0, patience: float = 600.0
    ) -> None:
        ray = require("ray", extra="ray")
        pack = require("ray.cloudpickle", extra="ray").dumps
        self._ray = ray
        self._actors: list[Any] = []
        self._connection = contextlib.ExitStack()
        self._connection.enter_context(connected(address))
        # As many threads as here: some products of BLAS are rounded by their number.
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(blas_threads()))
        options = {
            "num_cpus": 0,
            "num_gpus": gpus,
            "max_restarts": -1,
            "max_task_retries": _CALLS_AGAIN,
            "scheduling_strategy": "SPREAD",
            "runtime_env": {"env_vars": threads},
        }
        try:
            actor = ray.remote(_Actor).options(**options)
            self._actors = [actor.remote(pack(opener), sys.path) for opener in openers]
            self._wait_for_all(patience, gpus=gpus)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._actors)

    def call(self, method: str, arguments: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Call a method of what each actor holds, at the same time."""
        asked = [
            None if own is None else actor.call.remote(method, *own)
            for actor, own in zip(self._actors, arguments, strict=True)
        ]
        try:
            answers = iter(self._ray.get([answer for answer in asked if answer is not None]))
        except self._ray.exceptions.RayError as death:
            reason = str(death).strip().splitlines()[-1].split(". ")[0][:300]
            raise ShardLost(
                f"A worker that holds a part of the index died, and died again when it was asked again: {reason}. It "
                "may need more memory than its machine has; open the index again with more shards."
            ) from death
        return [None if own is None else _result(next(answers)) for own in asked]

    def share(self, value: Any) -> Any:
        """A reference to the value in Ray's object store."""
        if not self._actors:
            # Asked for anything without a connection, Ray would start a cluster of its own.
            raise ShardLost("The workers that hold the index have been dismissed. Open it again.")
        return self._ray.put(value)

    def close(self) -> None:
        """End the actors, and the connection where it was made here and nobody else uses it."""
        actors, self._actors = self._actors, []
        for actor in actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._connection.close()

    def _wait_for_all(self, patience: float, *, gpus: int) -> None:
        ready = [actor.be_there.remote() for actor in self._actors]
        there, waiting = self._ray.wait(ready, num_returns=len(ready), timeout=patience)
        if waiting:
            takes = f" of {gpus} GPU each" if gpus else ""
            raise ShardLost(
                f"The Ray cluster has room for {len(there)} of {len(ready)} workers{takes}, after {patience:.0f} s. "
                "Add nodes, or open the index with fewer shards."
            )


class _Actor:
    """The far side of a worker."""

    def __init__(self, opener: bytes, search_path: list[str]) -> None:
        self._opener = opener
        self._held: Any = None
        sys.path.extend(folder for folder in search_path if folder not in sys.path)

    def be_there(self) -> None:
        """Answer as soon as there is a process."""

    def call(self, method: str, *arguments: Any) -> Answer:
        return answer_to(functools.partial(self._call, method, arguments))

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        # Not when the actor starts: an error would end it, and its message would be Ray's.
        if self._held is None:
            import ray.cloudpickle

            self._held = unpacked(self._opener, loads=ray.cloudpickle.loads)()
        return getattr(self._held, method)(*arguments)


def _result(answer: Answer) -> Any:
    if answer.error is not None:
        raise answer.error
    return answer.result
