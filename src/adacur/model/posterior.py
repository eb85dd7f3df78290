"""What exact scores say of a query: one Bayesian linear regression, for many queries at once, in numpy or in torch.

The rarity of an item's score is modelled as

    features · weights + listed features · listed weights + noise

Features are those that all items have: what anchor queries and embeddings say, the item's mean, and a constant, whose
weight is the level of the query's scores. Listed features belong to the few items that a first stage names. Weights
have Gaussian priors: independent ones for features, a joint one for listed features.

Every array has a first axis of queries. Queries of a batch may have different numbers of scores, of listed items and of
listed features: shorter ones are padded with entries that say nothing. A state is never changed, `tell` makes the next.
On numpy a batch is one query: the products of more would round differently, and an answer must not depend on its
neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from array_api_compat import array_namespace, device, is_torch_namespace

# Fewer residuals than these say nothing of their standard deviation.
FEWEST_RESIDUALS = 10
# No collection has as many, and int64 holds this times a batch of millions.
_MOST_ITEMS = 1 << 40


class Prior(NamedTuple):
    """What is known of queries before any score.

    - `weights`, `variances`: of the features, (queries, features), with those of mean and constant at the end;
    - `noise`: the variance of a score that no weight explains, (queries,);
    - `listed`, `values`: the positions of listed items, ascending, (queries, items), and their listed features,
      (queries, items, listed features); padding repeats the last position, with features of 0;
    - `listed_weights`, `covariance`: mean and covariance of the listed features' weights.
    """

    weights: Any
    variances: Any
    noise: Any
    listed: Any
    values: Any
    listed_weights: Any
    covariance: Any


class Told(NamedTuple):
    """Exact scores of some queries: positions, which of these are no padding, and rarities, each (queries, items)."""

    at: Any
    filled: Any
    rarities: Any


class State(NamedTuple):
    """What is known of queries after some scores; `weights` and `listed_weights` are what predictions take.

    Of the scored items: where they are, which of these places are `filled`, their listed features, the inverse factor
    L⁻¹ of the covariance L Lᵀ of their scores, how far these lie from the prior, and (L Lᵀ)⁻¹ times that. The factor
    grows by blocks, so that nothing is factored twice.
    """

    prior: Prior
    at: Any
    filled: Any
    listed: Any
    inverse: Any
    surprises: Any
    solved: Any
    weights: Any
    listed_weights: Any


_Record = TypeVar("_Record", bound=tuple[Any, ...])


def start(prior: Prior) -> State:
    """The state before any score."""
    xp, (n_queries, n_listed) = array_namespace(prior.weights), prior.listed_weights.shape

    def nothing(*shape: int, dtype: Any = xp.float64) -> Any:
        return xp.zeros((n_queries, *shape), dtype=dtype, device=device(prior.weights))

    return State(
        prior,
        at=nothing(0, dtype=xp.int64),
        filled=nothing(0, dtype=xp.bool),
        listed=nothing(0, n_listed),
        inverse=nothing(0, 0),
        surprises=nothing(0),
        solved=nothing(0),
        weights=prior.weights,
        listed_weights=prior.listed_weights,
    )


def informed(prior: Prior, told: Told) -> Prior:
    """The prior of queries whose own first scores are all that says where their scores lie, less what ranks explain."""
    xp = array_namespace(prior.weights)
    n = xp.clip(xp.sum(xp.astype(told.filled, xp.float64), axis=1), min=1)
    unexplained = told.rarities - _applied(listed_features(prior, told.at), prior.listed_weights)
    levels = xp.sum(xp.where(told.filled, unexplained, 0.0), axis=1) / n
    last = prior.weights[:, -1:] + levels[:, None]
    return prior._replace(weights=xp.concat([prior.weights[:, :-1], last], axis=1))


def tell(state: State, told: Told, rows: Callable[[Any], Any]) -> State:
    """The state after these scores too; `rows` reads features by position, (queries, items, features), float64."""
    xp, prior, known = array_namespace(state.weights), state.prior, state.at.shape[1]
    new_listed = listed_features(prior, told.at)
    at, filled = xp.concat([state.at, told.at], axis=1), xp.concat([state.filled, told.filled], axis=1)
    listed = xp.concat([state.listed, new_listed], axis=1)
    # Read again each time: held, they would take more memory than the factor.
    features = rows(at)
    new = features[:, known:, :]
    covariance = (new * prior.variances[:, None, :]) @ xp.matrix_transpose(features)
    surprises = told.rarities - _applied(new, prior.weights)
    if listed.shape[2]:
        covariance = covariance + new_listed @ prior.covariance @ xp.matrix_transpose(listed)
        surprises = surprises - _applied(new_listed, prior.listed_weights)
    # Padding is independent of all else, with variance 1: it changes nothing.
    covariance = xp.where(told.filled[:, :, None] & filled[:, None, :], covariance, 0.0)
    noise = xp.where(told.filled, prior.noise[:, None], 1.0)
    identity = xp.eye(noise.shape[1], dtype=xp.float64, device=device(noise))
    among = covariance[:, :, known:] + identity * noise[:, None, :]
    inverse = _grown(state.inverse, covariance[:, :, :known], among, identity)
    surprises = xp.concat([state.surprises, xp.where(told.filled, surprises, 0.0)], axis=1)
    solved = _applied(xp.matrix_transpose(inverse), _applied(inverse, surprises))
    weights = prior.weights + prior.variances * _applied(xp.matrix_transpose(features), solved)
    listed_weights = prior.listed_weights
    if listed.shape[2]:
        moved = _applied(xp.matrix_transpose(listed), solved)
        listed_weights = listed_weights + _applied(prior.covariance, moved)
    return State(prior, at, filled, listed, inverse, surprises, solved, weights, listed_weights)


def listed_features(prior: Prior, at: Any) -> Any:
    """The listed features of the items at these places, (queries, items, listed features)."""
    xp, (n_queries, n_listed, n_features) = array_namespace(at), prior.values.shape
    if not n_listed or not n_features:
        return xp.zeros((*at.shape, n_features), dtype=xp.float64, device=device(at))
    keys, wanted = prior.listed, at
    if n_queries > 1:
        # One sorted list of all queries' items, so that one search finds all.
        firsts = xp.arange(n_queries, dtype=xp.int64, device=device(at))[:, None] * _MOST_ITEMS
        keys, wanted = keys + firsts, wanted + firsts
    keys, wanted = xp.reshape(keys, (-1,)), xp.reshape(wanted, (-1,))
    # Without the last: then every place is that of a key.
    places = xp.searchsorted(keys[:-1], wanted)
    values = xp.reshape(prior.values, (-1, n_features))[places]
    found = xp.where((keys[places] == wanted)[:, None], values, 0.0)
    return xp.reshape(found, (*at.shape, n_features))


def rises(state: State) -> Any:
    """What their listed features add to the predictions of listed items, (queries, items)."""
    return _applied(state.prior.values, state.listed_weights)


def residual_deviations(state: State) -> Any:
    """Per query, the standard deviation of its scores from what the others predict of each; infinite for too few."""
    xp = array_namespace(state.solved)
    n = xp.clip(xp.sum(xp.astype(state.filled, xp.float64), axis=1), min=1)
    # Leaving one out, in closed form: residual = (K + λ)⁻¹ y / diagonal.
    residuals = state.solved / xp.sum(state.inverse**2, axis=1)
    residuals = xp.where(state.filled, residuals, 0.0)
    means = xp.sum(residuals, axis=1) / n
    squares = xp.where(state.filled, (residuals - means[:, None]) ** 2, 0.0)
    return xp.where(n < FEWEST_RESIDUALS, xp.inf, xp.sqrt(xp.sum(squares, axis=1) / n))


def joined(records: Sequence[_Record]) -> _Record:
    """The queries of several priors or states as one batch; all must have room for as much."""
    if len(records) == 1:
        return records[0]
    return _each(lambda *arrays: array_namespace(arrays[0]).concat(arrays), records)


def some_of(record: _Record, queries: Any) -> _Record:
    """Some queries of a prior or state, by a slice or by their places."""
    return _each(lambda array: array[queries], [record])


def room_in(state: State) -> tuple[int, ...]:
    """How many scores, listed items and listed features there is room for: states that are joined agree in all."""
    return (state.at.shape[1], *state.prior.values.shape[1:])


def _each(make: Callable[..., Any], records: Sequence[_Record]) -> _Record:
    """A record of what `make` makes of each array of these records."""
    together = zip(*records, strict=True)
    made = (_each(make, fields) if isinstance(fields[0], tuple) else make(*fields) for fields in together)
    return type(records[0])(*made)


def _applied(matrices: Any, vectors: Any) -> Any:
    return (matrices @ vectors[:, :, None])[:, :, 0]


def _grown(inverse: Any, across: Any, among: Any, identity: Any) -> Any:
    """The inverse factor of a covariance with some rows more.

    `across` is the covariance of these with the rows so far, `among` with each other. The inverse is stored rather than
    L, since it grows by products alone. A block of b rows beside m costs O(m² b), so all together cost about what one
    factorisation does.
    """
    xp, size, new = array_namespace(among), inverse.shape[1], among.shape[1]
    beside = across @ xp.matrix_transpose(inverse)
    factor = xp.linalg.cholesky(among - beside @ xp.matrix_transpose(beside))
    if is_torch_namespace(xp):
        corner = xp.linalg.solve_triangular(factor, xp.broadcast_to(identity, factor.shape), upper=False)
    else:
        # numpy has no triangular solver, and its inverse leaves dust above the diagonal.
        corner = xp.tril(xp.linalg.inv(factor))
    grown = xp.zeros((len(among), size + new, size + new), dtype=xp.float64, device=device(among))
    grown[:, :size, :size] = inverse
    grown[:, size:, :size] = -corner @ (beside @ inverse)
    grown[:, size:, size:] = corner
    return grown
