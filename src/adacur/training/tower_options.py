"""What a dual encoder is to look like, whichever way it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adacur.core.budget import is_whole
from adacur.core.errors import InputError

__all__ = ["Pooling", "TowerOptions", "Towers"]

Towers = Literal["separate", "shared"]
Pooling = Literal["cls", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerOptions:
    """None is what the base model says; of a plain encoder the first token's vector as it is.

    `scale` multiplies dot products in the loss: by default 20 where vectors have length 1, and 1 elsewhere.
    """

    towers: Towers = "separate"
    pooling: Pooling | None = None
    normalise: bool | None = None
    scale: float | None = None
    max_query_tokens: int | None = None
    max_item_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.towers not in ("separate", "shared"):
            raise InputError(f"towers are 'separate' or 'shared'; got {self.towers!r}.")
        if self.pooling not in (None, "cls", "mean"):
            raise InputError(f"pooling is 'cls', 'mean' or None, what the base model does; got {self.pooling!r}.")
        if self.scale is not None and not 0 < self.scale < float("inf"):
            raise InputError(f"scale is a number above 0; got {self.scale!r}.")
        for name in ("max_query_tokens", "max_item_tokens"):
            value = getattr(self, name)
            if value is not None and not (is_whole(value) and value >= 1):
                raise InputError(f"{name} is a whole number of at least 1; got {value!r}.")
        if self.towers == "shared" and self.max_query_tokens not in (None, self.max_item_tokens):
            raise InputError(
                "A shared tower cuts all texts at one length: leave max_query_tokens out, or take separate towers; "
                f"got {self.max_query_tokens} for queries and {self.max_item_tokens} for items."
            )
