"""The shape of an engine."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Protocol, TypeVar

__all__ = ["Engine", "Result", "Task", "WorkersLost"]

Task = TypeVar("Task")
Result = TypeVar("Result", covariant=True)


class WorkersLost(RuntimeError):
    """The processes that should do the work keep dying without an error of their own."""


class Engine(Protocol[Task, Result]):
    """Runs tasks somewhere, each of them to one result."""

    @property
    def workers(self) -> int:
        """How many work at the same time: now, where their number changes, or before a run, to be expected."""
        ...

    def run(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Result], None, None]:
        """Each task with its result, in the order in which they finish.

        Tasks are read in a thread of their own, at most one beyond those at work. The first error of the tasks or
        the work ends the run; closing the generator ends it too. Nothing it started outlives it.
        """
        ...
