"""Where blocks of work run: here, in processes, or on a cluster. What a block means is not known here."""

from __future__ import annotations

from adacur.engines.engine import Engine, WorkersLost
from adacur.engines.local import InThisProcess, LocalProcesses
from adacur.engines.ray import RayActors

__all__ = ["Engine", "InThisProcess", "LocalProcesses", "RayActors", "WorkersLost"]
