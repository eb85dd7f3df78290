"""The shape of an engine."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Protocol, TypeVar

__all__ = ["Engine", "Result", "Task", "WorkersLost"]

Task = TypeVar("Task")
Result = TypeVar("Result", covariant=True)


class WorkersLost(RuntimeError):
    """The processes that should do the work keep dying without raising an error."""


class Engine(Protocol[Task, Result]):
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
