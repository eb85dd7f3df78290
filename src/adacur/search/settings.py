"""The settings of the default search, and what they are where nobody has chosen."""

from __future__ import annotations

from dataclasses import dataclass

from adacur.approximation import GaussianModel

__all__ = ["GaussianSettings", "default_settings"]


@dataclass(frozen=True, slots=True)
class GaussianSettings:
    """How `method="gaussian"` predicts and spends.

    `noise`, `embedding_weight` and `locality` are the approximator's (`GaussianModel`; None: by the number of anchor
    queries). `first_batch` is the first round's share of the budget (None: as much as any other), `first_share` the
    first stage's share of each later round, and `first_weight` its say beside the predictions.
    """

    rounds: int = 5
    noise: float = 0.3
    embedding_weight: float | None = None
    locality: float | None = None
    first_batch: float | None = None
    first_share: float = 0.0
    first_weight: float = 0.25

    def approximator(self, gaussian: GaussianModel) -> GaussianModel:
        """This approximator with these settings."""
        return gaussian.adjusted(noise=self.noise, embedding_weight=self.embedding_weight, locality=self.locality)


def default_settings(k: int) -> GaussianSettings:
    """Settings that do well on every collection tried, for the best k.

    The fewer are wanted, the more the first stage is to be trusted: it is sharpest at the top.
    """
    if k <= 3:
        return GaussianSettings(first_batch=0.3, first_share=0.2)
    return GaussianSettings(first_batch=0.3) if k <= 30 else GaussianSettings()
