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


def oracle_anchors(method: str, n: int, exact: np.ndarray, *, masked: int, epsilon: float) -> tuple[list[int], int]:
    """TopK^O(k_m, ε) of the appendix: the items taken by rank, and how many more are drawn at random.

    SoftMax^O has the same masked items and the same number at random.
    """
    ranked = [int(position) for position in np.argsort(-exact, kind="stable")]
    n_random = round(epsilon * n)
    return (ranked[masked : masked + n - n_random] if method == "topk" else ranked[:masked]), n_random


def one_shot(anchor_scores: np.ndarray, exact: np.ndarray, anchors: list[int], *, budget: int) -> list[int]:
    """Predict all items from the anchor items' exact scores, then retrieve the rest of the budget by prediction."""
    approximate = exact[anchors] @ np.linalg.pinv(anchor_scores[:, anchors]) @ anchor_scores
    approximate[anchors] = -np.inf
    return [int(position) for position in np.argsort(-approximate, kind="stable")[: budget - len(anchors)]]


def axn(
    embeddings: np.ndarray,
    dual: np.ndarray,
    exact: np.ndarray,
    *,
    budget: int,
    rounds: int,
    blend: float,
    ridge: float,
) -> tuple[list[int], np.ndarray]:
    """AXN_DE,DE: the retrieved items and the last predictions, with the regression in its primal form."""
    per_round = budget // rounds
    chosen = [int(position) for position in np.argsort(-(embeddings @ dual), kind="stable")[:per_round]]
    for round_ in range(2, rounds + 2):
        rows = embeddings[chosen] - embeddings[chosen].mean(axis=0)
        penalty = ridge * (rows**2).sum() / len(rows)
        targets = exact[chosen] - exact[chosen].mean()
        fitted = np.linalg.solve(rows.T @ rows + penalty * np.eye(rows.shape[1]), rows.T @ targets)
        scaled = dual * np.linalg.norm(fitted) / np.linalg.norm(dual)
        vector = (1 - blend) * fitted + blend * scaled
        approximate = exact[chosen].mean() + (embeddings - embeddings[chosen].mean(axis=0)) @ vector
        if round_ <= rounds:
            open_ = approximate.copy()
            open_[chosen] = -np.inf
            chosen = chosen + [int(position) for position in np.argsort(-open_, kind="stable")[:per_round]]
    return chosen, approximate


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
