"""Algorithms 1 and 2 of the paper, line by line, in float64: slow, and the judge of everything faster."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def sample_items(method: str, n: int, masked: list[int], scores: np.ndarray, rng: np.random.Generator) -> list[int]:
    """Algorithm 2, SampleItems."""
    shifted = np.exp(scores - scores.max())
    probabilities = shifted / shifted.sum()
    probabilities[masked] = 0
    if method == "topk":
        return [int(position) for position in np.argsort(-probabilities, kind="stable")[:n]]
    if method == "softmax":
        return [int(p) for p in rng.choice(len(scores), n, replace=False, p=probabilities / probabilities.sum())]
    rest = np.setdiff1d(np.arange(len(scores)), masked)
    return [int(position) for position in rng.choice(rest, n, replace=False)]


def adacur(
    anchor_scores: np.ndarray,
    score: Callable[[list[int]], np.ndarray],
    *,
    budget: int,
    rounds: int,
    first: list[int],
    method: str = "topk",
    rng: np.random.Generator | None = None,
    final_scores: bool = True,
) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Algorithm 1: Ŝ, the retrieved items and their exact scores. `anchor_scores` is R_anc, anchors × items.

    Without `final_scores` the last two lines, which change no answer, are left out; ours does so unless asked.
    """
    per_round = budget // rounds
    chosen = list(first)
    assert len(chosen) == per_round
    exact = score(chosen)
    for _ in range(2, rounds + 1):
        inverse = np.linalg.pinv(anchor_scores[:, chosen])
        approximate = exact @ inverse @ anchor_scores
        new = sample_items(method, per_round, chosen, approximate, rng or np.random.default_rng(0))
        chosen = chosen + new
        exact = np.concatenate([exact, score(new)])
    if not final_scores:
        return np.empty(0), chosen, exact
    inverse = np.linalg.pinv(anchor_scores[:, chosen])
    return exact @ inverse @ anchor_scores, chosen, exact
