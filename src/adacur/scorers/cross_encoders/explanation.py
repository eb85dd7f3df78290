"""What a scorer makes of one pair, for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """A pair as a model reads it, and what is made of the numbers that it gives.

    `prompt` is the text of the whole pair, `tokens` what the model gets of it; `cut` tokens of the item did not fit.
    """

    prompt: str
    tokens: tuple[str, ...]
    cut: int
    readout: str
    score: float

    def __str__(self) -> str:
        cut = f", {self.cut} of the item cut" if self.cut else ""
        return (
            f"{self.prompt}\n\n{len(self.tokens)} tokens{cut}: {' '.join(map(repr, self.tokens))}\n"
            f"read as {self.readout}: {self.score:.4f}"
        )
