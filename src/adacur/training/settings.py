"""How a model is trained: the numbers that every kind of training has in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adacur.core.budget import is_whole
from adacur.core.errors import InputError

__all__ = ["Precision", "TrainingSettings"]

Precision = Literal["auto", "float32", "bfloat16"]
_PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Epochs, step size and the like; the defaults are the paper's for cross-encoders.

    `batch_queries` are the queries of one step, each with all its items; `accumulate` takes the mean of so many steps
    for one update. `warmup` is the share of all updates during which the learning rate rises. After each of
    `checks_per_epoch` checks on held-out queries a checkpoint is written; `patience` checks without a better one end
    the training, and the best is kept. "auto" is bfloat16 on a GPU that has it, and float32 elsewhere.
    """

    epochs: int = 4
    learning_rate: float = 1e-5
    batch_queries: int = 16
    accumulate: int = 1
    weight_decay: float = 0.01
    warmup: float = 0.01
    clip: float = 1.0
    precision: Precision = "auto"
    checks_per_epoch: int = 1
    patience: int | None = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_queries", "accumulate", "checks_per_epoch"):
            value = getattr(self, name)
            if not (is_whole(value) and value >= 1):
                raise InputError(f"{name} is a whole number of at least 1; got {value!r}.")
        if self.patience is not None and not (is_whole(self.patience) and self.patience >= 1):
            raise InputError(f"patience is a whole number of at least 1, or None to never stop; got {self.patience!r}.")
        if not (is_whole(self.seed) and 0 <= self.seed < 2**32):
            raise InputError(f"seed is a whole number from 0 up to 2**32; got {self.seed!r}.")
        if not 0 < self.learning_rate < 1:
            raise InputError(f"learning_rate lies between 0 and 1, such as 2e-5; got {self.learning_rate!r}.")
        if not 0 <= self.warmup < 1:
            raise InputError(f"warmup is a share of all updates, from 0 up to 1; got {self.warmup!r}.")
        for name, least in (("weight_decay", 0.0), ("clip", 0.0)):
            if not getattr(self, name) >= least:
                raise InputError(f"{name} is at least {least:g}; got {getattr(self, name)!r}.")
        if self.precision not in _PRECISIONS:
            raise InputError(f"precision is one of {', '.join(_PRECISIONS)}; got {self.precision!r}.")
