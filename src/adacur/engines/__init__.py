"""Where blocks of work run: in this process, or in one process per device. What a block means is not known here."""

from __future__ import annotations

from adacur.engines.engine import Engine, WorkersLost
from adacur.engines.local import InThisProcess, LocalProcesses

__all__ = ["Engine", "InThisProcess", "LocalProcesses", "WorkersLost"]
