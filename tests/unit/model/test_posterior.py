"""The posterior is that of a Bayesian linear regression, whatever it is computed with and with whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from adacur.model.posterior import (
    Prior,
    State,
    Told,
    joined,
    listed_features,
    residual_deviations,
    rises,
    room_in,
    some_of,
    start,
    tell,
)

N_ITEMS, N_FEATURES, N_LISTED = 300, 9, 2
FEATURES = np.random.default_rng(0).normal(size=(N_ITEMS, N_FEATURES))


def prior_of(seed: int, *, listed: int = 80, noise: float = 0.3) -> Prior:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(N_LISTED, N_LISTED))
    return Prior(
        weights=rng.normal(size=(1, N_FEATURES)),
        variances=rng.random((1, N_FEATURES)),
        noise=np.array([noise]),
        listed=np.sort(rng.permutation(N_ITEMS)[:listed])[None],
        values=rng.normal(size=(1, listed, N_LISTED)),
        listed_weights=rng.normal(size=(1, N_LISTED)),
        covariance=(root @ root.T)[None],
    )


def scores_of(seed: int, n: int) -> Told:
    rng = np.random.default_rng([7, seed])
    return Told(rng.permutation(N_ITEMS)[None, :n], np.ones((1, n), np.bool_), rng.normal(size=(1, n)))


def some_told(told: Told, some: slice) -> Told:
    return Told(*(array[:, some] for array in told))


def after(prior: Prior, told: Told, ends: Sequence[int] = ()) -> State:
    state = start(prior)
    for first, end in zip([0, *ends], [*ends, told.at.shape[1]], strict=True):
        state = tell(state, some_told(told, slice(first, end)), lambda at: FEATURES[at])
    return state


def in_torch(record: Any) -> Any:
    import torch

    fields = (in_torch(field) if isinstance(field, tuple) else torch.from_numpy(field) for field in record)
    return type(record)(*fields)


def padded(told: Told, n: int) -> Told:
    """The same scores, and after them places that say nothing."""
    more = ((0, 0), (0, n - told.at.shape[1]))
    return Told(np.pad(told.at, more), np.pad(told.filled, more), np.pad(told.rarities, more))


@pytest.mark.parametrize("ends", [[], [1], [5, 5, 29], list(range(1, 60))], ids=str)
def test_it_is_the_posterior_of_the_regression_written_out(ends: list[int]) -> None:
    prior, told = prior_of(1), scores_of(1, 60)
    everything = np.hstack([FEATURES, np.zeros((N_ITEMS, N_LISTED))])
    everything[prior.listed[0], N_FEATURES:] = prior.values[0]
    mean = np.concatenate([prior.weights[0], prior.listed_weights[0]])
    precision = np.zeros((len(mean), len(mean)))
    precision[:N_FEATURES, :N_FEATURES] = np.diag(1 / prior.variances[0])
    precision[N_FEATURES:, N_FEATURES:] = np.linalg.inv(prior.covariance[0])
    rows, noise = everything[told.at[0]], prior.noise[0]
    wanted = np.linalg.solve(precision + rows.T @ rows / noise, precision @ mean + rows.T @ told.rarities[0] / noise)
    state = after(prior, told, ends)
    assert np.concatenate([state.weights[0], state.listed_weights[0]]) == pytest.approx(wanted, abs=1e-8)
    added = np.zeros(N_ITEMS)
    added[prior.listed[0]] = rises(state)[0]
    assert added == pytest.approx(everything[:, N_FEATURES:] @ wanted[N_FEATURES:], abs=1e-8)


def test_deviations_are_those_of_predictions_from_all_other_scores() -> None:
    prior, told, n = prior_of(2), scores_of(2, 25), 25
    left = []
    for out in range(n):
        others = np.arange(n) != out
        state = after(prior, Told(*(array[:, others] for array in told)))
        at = told.at[:, [out]]
        expected = FEATURES[at[0]] @ state.weights[0] + listed_features(prior, at)[0] @ state.listed_weights[0]
        left.append(float(told.rarities[0, out] - expected[0]))
    assert residual_deviations(after(prior, told)) == pytest.approx([np.std(left)], rel=1e-8)
    assert residual_deviations(after(prior, scores_of(2, 9))).tolist() == [np.inf]
    assert residual_deviations(start(prior)).tolist() == [np.inf]


def test_many_scores_of_few_dimensions_with_little_noise_are_still_explained() -> None:
    prior = prior_of(3, noise=1e-9)
    told = scores_of(3, 200)
    exact = FEATURES[told.at[0]] @ np.arange(N_FEATURES)
    told = told._replace(rarities=exact[None])
    state = after(prior, told, list(range(20, 200, 20)))
    assert FEATURES[told.at[0]] @ state.weights[0] + (
        listed_features(prior, told.at)[0] @ state.listed_weights[0]
    ) == pytest.approx(exact, abs=1e-4)


def test_listed_features_are_zero_for_all_other_items() -> None:
    prior = prior_of(4)
    found = listed_features(prior, np.arange(N_ITEMS)[None])[0]
    assert found[prior.listed[0]].tolist() == prior.values[0].tolist()
    assert not np.delete(found, prior.listed[0], axis=0).any()
    nothing = prior._replace(listed=prior.listed[:, :0], values=prior.values[:, :0])
    assert listed_features(nothing, np.arange(5)[None]).tolist() == np.zeros((1, 5, N_LISTED)).tolist()


def test_queries_of_one_batch_are_told_apart() -> None:
    """To the bit where they have as many scores, and within rounding where some are padded."""
    seeds, n = range(5), 30
    alone = [after(prior_of(seed), scores_of(seed, n), [7]) for seed in seeds]
    batch = start(joined([prior_of(seed) for seed in seeds]))
    for some in (slice(0, 7), slice(7, n)):
        told = joined([some_told(scores_of(seed, n), some) for seed in seeds])
        batch = tell(batch, told, lambda at: FEATURES[at])
    assert room_in(batch) == room_in(alone[0]) == (n, 80, N_LISTED)
    for at, state in enumerate(alone):
        assert some_of(batch, slice(at, at + 1)).weights.tolist() == state.weights.tolist()
        assert some_of(batch, [at]).solved.tolist() == state.solved.tolist()
        assert rises(batch)[at].tolist() == rises(state)[0].tolist()
    uneven = tell(
        start(joined([prior_of(seed) for seed in seeds])),
        joined([padded(scores_of(seed, 3 * seed), 12) for seed in seeds]),
        lambda at: FEATURES[at],
    )
    for seed in seeds:
        state = after(prior_of(seed), scores_of(seed, 3 * seed))
        assert uneven.weights[seed] == pytest.approx(state.weights[0], abs=1e-10)
        assert residual_deviations(uneven)[seed] == pytest.approx(residual_deviations(state)[0], rel=1e-8)


def test_states_that_are_joined_go_on_as_each_would_alone() -> None:
    alone = [after(prior_of(seed), scores_of(seed, 20), [8]) for seed in range(3)]
    told = [some_told(scores_of(seed, 40), slice(20, 40)) for seed in range(3)]
    together = tell(joined(alone), joined(told), lambda at: FEATURES[at])
    for at, (state, more) in enumerate(zip(alone, told, strict=True)):
        assert tell(state, more, lambda at: FEATURES[at]).weights.tolist() == together.weights[[at]].tolist()


@pytest.mark.parametrize("n_queries", [1, 4])
def test_torch_computes_what_numpy_computes(n_queries: int) -> None:
    torch = pytest.importorskip("torch")
    features = torch.from_numpy(FEATURES)
    prior = joined([prior_of(seed) for seed in range(n_queries)])
    ours, theirs = start(prior), start(in_torch(prior))
    for some in (slice(0, 5), slice(5, 25)):
        told = joined([some_told(padded(scores_of(seed, 25 - seed), 25), some) for seed in range(n_queries)])
        ours, theirs = tell(ours, told, lambda at: FEATURES[at]), tell(theirs, in_torch(told), lambda at: features[at])
    assert theirs.weights.numpy() == pytest.approx(ours.weights, abs=1e-12)
    assert rises(theirs).numpy() == pytest.approx(rises(ours), abs=1e-12)
    assert residual_deviations(theirs).numpy() == pytest.approx(residual_deviations(ours), rel=1e-12)
