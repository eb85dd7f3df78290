"""What a training run comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adacur.training.fitting import Fitted
from adacur.training.run_folder import RunFolder

__all__ = ["Trained"]


@dataclass(frozen=True, slots=True)
class Trained:
    """A model on disk and how its training went; `log` has a line per step and per check, in order."""

    folder: Path
    fitted: Fitted
    log: list[Mapping[str, Any]]

    @classmethod
    def write(cls, run: RunFolder, fitted: Fitted) -> Trained:
        """Say that the run is finished: its model must be in the folder by now."""
        run.finish(asdict(fitted))
        return cls(run.path, fitted, list(run.log))

    @classmethod
    def read(cls, run: RunFolder) -> Trained | None:
        """A run that finished earlier; None where it has not."""
        result = run.result
        return None if result is None else cls(run.path, Fitted(**result), list(run.log))
