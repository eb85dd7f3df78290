"""Where blocks of work run: in this process, in several, or on a Ray cluster. What a block means is not known here."""

from __future__ import annotations

from adacur.engines.engine import Engine, WorkersLost
from adacur.engines.local import InThisProcess, LocalProcesses
from adacur.engines.ray import Ray, RayActors

__all__ = ["Engine", "InThisProcess", "LocalProcesses", "Ray", "RayActors", "WorkersLost"]
