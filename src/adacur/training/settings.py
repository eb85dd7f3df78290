"""How a model is trained, and what a dual encoder looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adacur.core.budget import is_whole
from adacur.core.errors import InputError

__all__ = ["Pooling", "Precision", "TowerOptions", "Towers", "TrainingSettings"]

Precision = Literal["auto", "float32", "bfloat16"]
Towers = Literal["separate", "shared"]
Pooling = Literal["cls", "mean"]


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
        for name in ("epochs", "batch_queries", "accumulate"):
            _check(name, getattr(self, name), is_whole(getattr(self, name)) and getattr(self, name) >= 1, "at least 1")
        patience = self.patience
        _check("patience", patience, patience is None or (is_whole(patience) and patience >= 1), "at least 1, or None")
        _check("seed", self.seed, is_whole(self.seed) and 0 <= self.seed < 2**32, "from 0 to 2**32 - 1")
        _check("learning_rate", self.learning_rate, 0 < self.learning_rate < 1, "between 0 and 1, such as 2e-5")
        _check("warmup", self.warmup, 0 <= self.warmup < 1, "a share of all updates, at least 0 and below 1")
        _check("weight_decay", self.weight_decay, self.weight_decay >= 0, "at least 0")
        _check("clip", self.clip, self.clip >= 0, "at least 0")
        precisions = ("auto", "float32", "bfloat16")
        _check("precision", self.precision, self.precision in precisions, f"one of {', '.join(precisions)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerOptions:
    """What a dual encoder looks like; None: as the base model has it.

    - `towers`: "separate" weights for queries and items, or "shared" ones
    - `pooling`: "cls" (the default of a plain encoder) or "mean"
    - `normalise`: whether vectors have length 1
    - `scale`: factor of dot products in the loss; by default 20 where vectors have length 1, else 1
    - `max_query_tokens`, `max_item_tokens`: where texts are cut; by default at 512 or where the base cuts them
    """

    towers: Towers = "separate"
    pooling: Pooling | None = None
    normalise: bool | None = None
    scale: float | None = None
    max_query_tokens: int | None = None
    max_item_tokens: int | None = None

    def __post_init__(self) -> None:
        _check("towers", self.towers, self.towers in ("separate", "shared"), "'separate' or 'shared'")
        _check("pooling", self.pooling, self.pooling in (None, "cls", "mean"), "'cls', 'mean' or None")
        _check("scale", self.scale, self.scale is None or 0 < self.scale < float("inf"), "a number above 0")
        for name in ("max_query_tokens", "max_item_tokens"):
            value = getattr(self, name)
            _check(name, value, value is None or (is_whole(value) and value >= 1), "at least 1")
        if self.towers == "shared" and self.max_query_tokens not in (None, self.max_item_tokens):
            raise InputError(
                "A shared tower cuts all texts at one length, so max_query_tokens must equal max_item_tokens; got "
                f"{self.max_query_tokens} and {self.max_item_tokens}."
            )


def _check(name: str, value: object, is_right: bool, rule: str) -> None:
    if not is_right:
        raise InputError(f"{name} must be {rule}; got {value!r}.")
