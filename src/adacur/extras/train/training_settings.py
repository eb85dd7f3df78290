"""How a model is trained, and what must be installed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from adacur.budget import is_whole
from adacur.errors import InputError
from adacur.requirements import require

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The numbers that every training has in common; the defaults are the paper's for cross-encoders.

    - `epochs`: passes over the queries; after each the model is checked on held-out queries and saved
    - `learning_rate`, `weight_decay`, `clip` (of the gradient's norm)
    - `batch_queries`: queries of one step, each with all its items
    - `accumulate`: steps whose mean gradient makes one update
    - `warmup`: share of all updates during which the learning rate rises
    - `precision`: "auto" is bfloat16 on a GPU that has it, float32 elsewhere
    - `patience`: epochs without a better check that end the training; None never does
    - `seed`: of the draws, the dropout and a new head
    """

    epochs: int = 4
    learning_rate: float = 1e-5
    batch_queries: int = 16
    accumulate: int = 1
    weight_decay: float = 0.01
    warmup: float = 0.01
    clip: float = 1.0
    precision: Precision = "auto"
    patience: int | None = 3
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("epochs", "batch_queries", "accumulate")
        _check(self, "a whole number of at least 1", {name: _counts(getattr(self, name)) for name in counts})
        _check(self, "at least 1, or None", {"patience": self.patience is None or _counts(self.patience)})
        _check(self, "from 0 to 2**32 - 1", {"seed": is_whole(self.seed) and 0 <= self.seed < 2**32})
        _check(self, "above 0 and below 1", {"learning_rate": 0 < self.learning_rate < 1})
        _check(self, "at least 0 and below 1", {"warmup": 0 <= self.warmup < 1})
        _check(self, "at least 0", {"weight_decay": self.weight_decay >= 0, "clip": self.clip >= 0})
        known = self.precision in ("auto", "float32", "bfloat16")
        _check(self, "'auto', 'float32' or 'bfloat16'", {"precision": known})


def _counts(value: Any) -> bool:
    return is_whole(value) and value >= 1


def _check(settings: object, rule: str, is_right: dict[str, bool]) -> None:
    for name, right in is_right.items():
        if not right:
            raise InputError(f"{name} must be {rule}; got {getattr(settings, name)!r}.")


def check_installed() -> None:
    """Refuse to begin without the packages of the extra `training`."""
    for module in ("torch", "transformers", "accelerate"):
        # Looked for, not imported: that takes seconds, and something else may be wrong.
        if find_spec(module) is None:
            require(module, extra="training")
