"""The search methods, in one table. Each owns its options and makes a plan; a name is short for one with defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Protocol

from adacur.approximation import EmbeddingRegression, GaussianModel, PseudoInverse, TopK
from adacur.core.budget import even_split, is_whole
from adacur.core.errors import BudgetError, InputError, UnknownName
from adacur.core.protocols import Acquisition, AnchorScores, Approximator
from adacur.core.spelling import did_you_mean
from adacur.index import AnchorTable
from adacur.search.plan import KeepPredictions, Plan, stage_name
from adacur.search.tuned import GaussianSettings, default_settings

__all__ = [
    "ANNCUR",
    "AXN",
    "METHODS",
    "AdaCUR",
    "Exact",
    "Gaussian",
    "Method",
    "Rerank",
    "method_named",
    "options_of",
]


class Source(Protocol):
    """What methods take from an index to make a plan."""

    @property
    def anchors(self) -> AnchorScores: ...

    def gaussian_model(self) -> GaussianModel:
        """The Gaussian of this index's anchor scores and item vectors."""
        ...

    def embedding_regression(self) -> EmbeddingRegression:
        """The regression on the dense first stage's vectors; an error where there are none."""
        ...

    def tuned(self, *, k: int, budget: int, first: str | None) -> tuple[GaussianSettings, tuple[int, int]] | None:
        """The settings tuned for about this k and budget, and the k and budget that they were tuned for."""
        ...


class Method(Protocol):
    """How a search spends its calls."""

    name: ClassVar[str]

    def plan(self, base: Plan, source: Source, *, k: int) -> Plan:
        """The base plan (items, scorer, budget, first stage, filter) with this method's choices."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """Predict by the mean and covariance of the anchor scores and item vectors; the default method.

    Options left at None are chosen for k, by `adacur.tune` where the index is tuned for about this k and budget.

    - `rounds`: how many rounds the budget is spent in;
    - `seed`: of the random draws;
    - `first_batch`: the first round's share of the budget;
    - `first_share`: the first stage's share of each later round;
    - `first_weight`: the first stage's weight beside the predictions;
    - `stop_when`: end a query's search after the round by which its top k is expected to have this recall;
    - `keep_predictions`: the predicted scores of all items in the trace: of the "last" round, or of "all".
    """

    name: ClassVar[str] = "gaussian"

    rounds: int | None = None
    seed: int = 0
    first_batch: float | None = None
    first_share: float | None = None
    first_weight: float | None = None
    stop_when: float | None = None
    keep_predictions: KeepPredictions = False

    def __post_init__(self) -> None:
        _check(self)

    def plan(self, base: Plan, source: Source, *, k: int) -> Plan:
        """The base plan with settings tuned or chosen for k."""
        tuned = source.tuned(k=k, budget=base.calls, first=stage_name(base.first))
        settings, tuned_for = tuned or (default_settings(k), None)
        names = ("rounds", "first_batch", "first_share", "first_weight")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        settings = replace(settings, **given)
        model = source.gaussian_model()
        return replace(
            base,
            anchors=source.anchors,
            keys=model.keys,
            approximator=settings.approximator(model),
            acquisition=TopK(),
            batch_sizes=partial(_in_rounds, rounds=settings.rounds, first_batch=settings.first_batch),
            first_share=settings.first_share,
            first_weight=settings.first_weight,
            tuned_for=tuned_for,
            seed=self.seed,
            stop_when=self.stop_when,
            keep_predictions=self.keep_predictions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaCUR:
    """Algorithm 1 of the paper: score a batch, predict the rest, score the most promising next, over some rounds.

    - `rounds`, `seed`: how many rounds, and the seed of the random draws;
    - `approximator`: how the scores of all items follow from a few exact ones; the paper's pseudo-inverse by default;
    - `acquisition`: which items to score next: `TopK()`, `Softmax(…)` or `Uniform()`;
    - `first_batch`, `first_share`, `first_weight`, `stop_when`, `keep_predictions`: as for `Gaussian`. The paper has
      none of these.
    """

    name: ClassVar[str] = "adacur"

    rounds: int = 5
    seed: int = 0
    approximator: Approximator = field(default_factory=PseudoInverse)
    acquisition: Acquisition = field(default_factory=TopK)
    first_batch: float | None = None
    first_share: float = 0.0
    first_weight: float = 0.0
    stop_when: float | None = None
    keep_predictions: KeepPredictions = False

    def __post_init__(self) -> None:
        _check(self)

    def plan(self, base: Plan, source: Source, *, k: int) -> Plan:
        """The base plan in rounds of predictions."""
        _check_anchors(self, source)
        return replace(
            base,
            anchors=source.anchors,
            batch_sizes=partial(_in_rounds, rounds=self.rounds, first_batch=self.first_batch),
            **_adaptive(self),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AXN:
    """Like `AdaCUR`, predicting from the dual encoder's item vectors alone: no anchor scores are used.

    - `approximator`: an `EmbeddingRegression`; by default one on the vectors of the dense first stage;
    - the other options: as for `AdaCUR`.
    """

    name: ClassVar[str] = "axn"

    rounds: int = 5
    seed: int = 0
    approximator: Approximator | None = None
    acquisition: Acquisition = field(default_factory=TopK)
    first_batch: float | None = None
    first_share: float = 0.0
    first_weight: float = 0.0
    stop_when: float | None = None
    keep_predictions: KeepPredictions = False

    def __post_init__(self) -> None:
        _check(self)

    def plan(self, base: Plan, source: Source, *, k: int) -> Plan:
        """The base plan in rounds of predictions from item vectors."""
        choices = _adaptive(self)
        return replace(
            base,
            anchors=AnchorTable.of_items(source.anchors.items),
            batch_sizes=partial(_in_rounds, rounds=self.rounds, first_batch=self.first_batch),
            **choices | {"approximator": self.approximator or source.embedding_regression()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ANNCUR:
    """The one-shot baseline: score anchor items, predict the rest once, score the best predicted.

    Without a first stage the anchor items are one uniform sample for all queries; with one they are each query's best
    under it. Items scored as anchor items are not paid for again.

    - `split`: the share of the budget spent on anchor items (k_i / B);
    - `seed`, `approximator`, `keep_predictions`: as for `AdaCUR`.
    """

    name: ClassVar[str] = "anncur"

    split: float = 0.5
    seed: int = 0
    approximator: Approximator = field(default_factory=PseudoInverse)
    keep_predictions: KeepPredictions = False

    def __post_init__(self) -> None:
        _check(self)

    def plan(self, base: Plan, source: Source, *, k: int) -> Plan:
        """The base plan in two rounds."""
        _check_anchors(self, source)
        return replace(
            base,
            anchors=source.anchors,
            acquisition=TopK(),
            batch_sizes=partial(_anchors_then_rest, split=self.split),
            same_first_for_all=base.first is None,
            seed=self.seed,
            approximator=self.approximator,
            keep_predictions=self.keep_predictions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerank:
    """The usual baseline: score the first stage's best items, as many as the budget affords.

    - `seed`: of the uniform sample that tops up a first stage that returns too few.
    """

    name: ClassVar[str] = "rerank"

    seed: int = 0

    def __post_init__(self) -> None:
        _check(self)

    def plan(self, base: Plan, source: Source, *, k: int) -> Plan:
        """The base plan in one round."""
        return replace(base, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The truth: score every item. It takes a first stage only to fuse its scores into the order."""

    name: ClassVar[str] = "exact"

    def plan(self, base: Plan, source: Source, *, k: int) -> Plan:
        """The base plan in one round of every item."""
        if base.pool is not None or (base.first is not None and base.fuse is None):
            raise InputError("Method 'exact' scores every item: it takes a first stage only to fuse, and no pool.")
        if base.calls < len(base.items):
            raise BudgetError(
                f"Method 'exact' scores all {len(base.items):,} items, and a budget of {base.calls} does not cover "
                "them. Leave the budget out, or choose another method."
            )
        return replace(base, calls=len(base.items))


METHODS: Mapping[str, type[Gaussian | AdaCUR | ANNCUR | AXN | Rerank | Exact]] = {
    method.name: method for method in (Gaussian, AdaCUR, ANNCUR, AXN, Rerank, Exact)
}
_RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "rounds": ("a whole number of at least 1", lambda value: is_whole(value) and value >= 1),
    "seed": ("a whole number", is_whole),
    "split": ("the anchor items' share of the budget, between 0 and 1", lambda value: 0 < value < 1),
    "first_batch": ("the first round's share of the budget, between 0 and 1", lambda value: 0 < value < 1),
    "first_share": ("the first stage's share of each later round, from 0 to 1", lambda value: 0 <= value <= 1),
    "first_weight": ("the first stage's weight, from 0 up", lambda value: 0 <= value < float("inf")),
    "stop_when": ("the expected recall that is enough, between 0 and 1, such as 0.98", lambda value: 0 < value < 1),
    "keep_predictions": ("False, 'last' or 'all'", lambda value: value in (False, "last", "all")),
}


def options_of(name: str) -> tuple[str, ...]:
    """The names of the options that the method of this name takes."""
    if name not in METHODS:
        raise UnknownName(
            f"There is no method {name!r}.{did_you_mean(str(name), METHODS)} Choose one of: {', '.join(METHODS)}."
        )
    return tuple(field.name for field in fields(METHODS[name]))


def method_named(name: str, **options: Any) -> Method:
    """The method of this name with these options; an option that it does not take is an error."""
    takes = options_of(name)
    if unknown := [option for option in options if option not in takes]:
        raise InputError(
            f"Method {name!r} does not take {', '.join(unknown)}. It takes: {', '.join(takes) or 'no options'}."
        )
    return METHODS[name](**options)


def _adaptive(method: AdaCUR | AXN) -> dict[str, Any]:
    names = ("seed", "approximator", "acquisition", "first_share", "first_weight", "stop_when", "keep_predictions")
    return {name: getattr(method, name) for name in names}


def _check(method: Method) -> None:
    """Refuse an option that makes no sense."""
    for name, (rule, holds) in _RULES.items():
        value = getattr(method, name, None)
        if value is not None and not holds(value):
            raise BudgetError(f"{name} must be {rule}; got {value!r}.")


def _check_anchors(method: AdaCUR | ANNCUR, source: Source) -> None:
    if not source.anchors.anchor_queries and method.approximator == PseudoInverse():
        raise InputError(
            f"Method {method.name!r} predicts from anchor queries, and this index has none. Use 'gaussian' or 'axn' "
            "with a dense first stage, or 'rerank'."
        )


def _in_rounds(affordable: int, *, rounds: int, first_batch: float | None) -> tuple[int, ...]:
    rounds = min(rounds, affordable)
    if first_batch is None or first_batch * rounds <= 1:
        return even_split(affordable, rounds)
    # Every round scores something.
    first = min(max(1, round(first_batch * affordable)), affordable - rounds + 1)
    return (first, *even_split(affordable - first, rounds - 1))


def _anchors_then_rest(affordable: int, *, split: float) -> tuple[int, ...]:
    anchors = min(max(1, round(split * affordable)), affordable)
    return (anchors, affordable - anchors) if anchors < affordable else (anchors,)
