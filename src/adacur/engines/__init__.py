"""Where blocks of work run: in this process or on a Ray cluster. What a block means is not known here."""

from __future__ import annotations

from adacur.engines.engine import Engine, InThisProcess, WorkersLost
from adacur.engines.ray import Ray, RayActors

__all__ = ["Engine", "InThisProcess", "Ray", "RayActors", "WorkersLost"]
