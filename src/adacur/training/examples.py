"""What a training loop asks of the examples that it is given."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Examples"]


class Examples(Protocol):
    """What a model learns from: an example per query, and how some of them become the tensors of one step."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int) -> Any: ...

    def begin_epoch(self, epoch: int) -> None:
        """Called before the first step of an epoch, and again where a killed run goes on in the middle of it."""
        ...

    def collate(self, examples: list[Any]) -> dict[str, Any]:
        """Arguments of the model's forward."""
        ...
