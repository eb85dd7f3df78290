"""The search methods, in one table, and the plans that they make.

A method owns its options and completes a plan; a name is short for a method with defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from adacur.approximation import PseudoInverse, TopK
from adacur.core.arrays import IntArray, KeyArray
from adacur.core.budget import is_whole
from adacur.core.errors import BudgetError, InputError, UnknownName
from adacur.core.protocols import Acquisition, AnchorScores, Approximator, Items, Scorer
from adacur.core.spelling import did_you_mean
from adacur.first_stages import AnyStage, Placed
from adacur.index import AnchorTable
from adacur.search.effort import FIRST_BATCH, NEVER, ROUNDS, Effort, EffortPoint, EffortRule
from adacur.search.engine_items import EngineFirst, EngineItems
from adacur.search.filters import Filter
from adacur.search.fusion import Fusion
from adacur.search.relevance import Relevance
from adacur.search.spending import Spending
from adacur.search.tuned import Tuning, default_settings, first_weight_of

if TYPE_CHECKING:
    from adacur.search.planning import Snapshot

KeepPredictions = Literal[False, "last", "all"]


@dataclass(frozen=True, slots=True)
class First:
    """The first stage of a search, and what it is used for.

    - `stage`: the name of a first stage of the index, several joined with "+" ("bm25+dense": by reciprocal
      ranks), a first stage object, or None for the one that tuning chose, or else the index's default;
    - `pool`: search only its best N items;
    - `fuse`: its weight in the final order (0.5 is a good first try). One standard deviation among its best 100
      counts as much as an exact score that is e^fuse times as rare. Hits are then ordered by `fused`.

    `pool` and `fuse` left at None are none (fuse=0), unless tuning by judgements chose them.
    """

    stage: str | AnyStage | None = None
    pool: int | None = None
    fuse: float | None = None

    def __post_init__(self) -> None:
        if self.pool is not None and self.pool < 1:
            raise BudgetError(f"A pool must hold at least one item; got pool={self.pool}.")
        if self.fuse is not None and not 0 <= self.fuse < float("inf"):
            raise InputError(f"fuse must be a weight from 0 (none) up; got {self.fuse}.")


def _at_once(affordable: int) -> tuple[int, ...]:
    return (affordable,)


@dataclass(frozen=True, slots=True)
class Plan:
    """A search with all its choices made. Every method makes a plan, and one loop runs them all.

    - `batch_sizes(n)`: the calls of each round when n calls can be afforded. The first round takes the best of `first`,
      or a uniform sample; later rounds take what `acquisition` chooses from the predictions, which `first_weight`
      raises for the items that the first stage ranks high;
    - `fuse`: how the first stage enters the final order;
    - `tuned_for`: the k and budget that the settings were tuned for; `tuned`: which other options a tuning chose;
    - `stop_when`: the expected recall at which a query's search ends; `effort` replaces it: a rule, and the point of
      its curve at which to stop;
    - `keys`: the items' random keys, where they are stored and need not be made from the ids;
    - `engine`: the vector engine that holds the items, if they are not here;
    - `relevance`: reads the scores of hits; those below `min_relevance` or `min_score` are left out;
    - `spending`: limits of tokens and money beside the calls;
    - `documents`: the document number of each item, where items are passages and k counts documents.
    """

    method: str
    items: Items
    scorer: Scorer
    calls: int
    batch_sizes: Callable[[int], tuple[int, ...]] = _at_once
    first: Placed | EngineFirst | None = None
    anchors: AnchorScores | None = None
    approximator: Approximator | None = None
    acquisition: Acquisition | None = None
    deadline: float | None = None
    pool: int | None = None
    filter: Filter | None = None
    seed: int = 0
    same_first_for_all: bool = False
    first_share: float = 0.0
    first_weight: float = 0.0
    fuse: Fusion | None = None
    tuned_for: tuple[int, int] | None = None
    tuned: tuple[str, ...] = ()
    stop_when: float | None = None
    keep_predictions: KeepPredictions = False
    keys: KeyArray | None = None
    engine: EngineItems | None = None
    relevance: Relevance | None = None
    min_relevance: float | None = None
    min_score: float | None = None
    effort: tuple[EffortRule, EffortPoint] | None = None
    spending: Spending | None = None
    documents: IntArray | None = None

    def __post_init__(self) -> None:
        if self.pool is not None and self.first is None:
            raise BudgetError("A pool is the first stage's best items, so it needs a first stage; give first=….")
        if self.fuse is not None and self.first is None:
            raise InputError("fuse blends the first stage's scores into the final order; give first=….")
        if self.stop_when is not None and self.first is None:
            # From a random start, expected recalls of .93 turned out .44: what is missing resembles nothing seen.
            raise InputError(
                "stop_when can be trusted only where a search starts from a first stage's best items, and this one "
                "starts at random. Give first=…, such as 'dense' or 'bm25' where the index has it."
            )

    @property
    def uses_ranks(self) -> bool:
        """Whether predictions start from the first stage's ranks."""
        return self.first is not None and getattr(self.approximator, "slopes", None) is not None

    def settings(self) -> dict[str, Any]:
        """The choices that a result should name."""
        return {
            "method": self.method,
            "budget": self.calls,
            # A budget beyond all items is spent on them alone, in at most as many rounds.
            "batch_sizes": self.batch_sizes(min(self.calls, len(self.items))),
            "first": self.first.name if self.first else None,
            "anchors": len(self.anchors.anchor_queries) if self.anchors else 0,
            "approximator": repr(self.approximator) if self.approximator else None,
            "acquisition": repr(self.acquisition) if self.acquisition else None,
            "first_share": self.first_share,
            "first_weight": self.first_weight,
            "fuse": self.fuse.weight if self.fuse else None,
            "tuned_for": self.tuned_for,
            "tuned": self.tuned,
            "stop_when": None if self.effort else self.stop_when,
            "effort": asdict(self.effort[1]) if self.effort else None,
            "relevance": self.relevance.source if self.relevance else None,
            "min_relevance": self.min_relevance,
            "min_score": self.min_score,
            "pool": self.pool,
            "filtered": self.filter is not None,
            "engine": self.engine.store.name if self.engine else None,
            "deadline": self.deadline,
            **(self.spending.settings() if self.spending else {}),
            "seed": self.seed,
            "scorer": self.scorer.card.name,
        }


class Method(Protocol):
    """How a search spends its calls. `needs` names what it can predict from, "anchors" or "vectors"; one is enough."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        """The base plan (items, scorer, budget, first stage, filter) with this method's choices."""
        ...


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


class _Checked:
    """Refuses options that break one of `_RULES`."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, (rule, holds) in _RULES.items():
            value = getattr(self, name, None)
            if value is not None and not holds(value):
                raise BudgetError(f"{name} must be {rule}; got {value!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(_Checked):
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
    needs: ClassVar[tuple[str, ...]] = ("anchors", "vectors")

    rounds: int | None = None
    seed: int = 0
    first_batch: float | None = None
    first_share: float | None = None
    first_weight: float | None = None
    stop_when: float | None = None
    keep_predictions: KeepPredictions = False

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        """The base plan with settings tuned or chosen for k."""
        tuning = source.tuned(k=k, budget=base.calls, first=base.first.name if base.first else None)
        settings = tuning.settings if tuning else default_settings(k)
        names = ("rounds", "first_batch", "first_share", "first_weight")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        settings = replace(settings, **given)
        model = source.gaussian_model()
        return replace(
            base,
            anchors=source.anchors,
            keys=model.keys,
            approximator=model.adjusted(
                noise=settings.noise,
                embedding_weight=settings.embedding_weight,
                locality=settings.locality,
                slopes=source.rank_slopes(base.first),
            ),
            acquisition=TopK(),
            batch_sizes=partial(_in_rounds, rounds=settings.rounds, first_batch=settings.first_batch),
            first_share=settings.first_share,
            first_weight=first_weight_of(settings, len(source.anchors.anchor_queries)),
            tuned_for=(tuning.k, tuning.budget) if tuning else None,
            seed=self.seed,
            stop_when=self.stop_when,
            keep_predictions=self.keep_predictions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Adaptive(_Checked):
    """The options of `AdaCUR` and `AXN`."""

    rounds: int = 5
    seed: int = 0
    approximator: Approximator | None = None
    acquisition: Acquisition = field(default_factory=TopK)
    first_batch: float | None = None
    first_share: float = 0.0
    first_weight: float = 0.0
    stop_when: float | None = None
    keep_predictions: KeepPredictions = False

    def _in_rounds(self, base: Plan, anchors: AnchorScores, approximator: Approximator) -> Plan:
        names = ("seed", "acquisition", "first_share", "first_weight", "stop_when", "keep_predictions")
        return replace(
            base,
            anchors=anchors,
            approximator=approximator,
            batch_sizes=partial(_in_rounds, rounds=self.rounds, first_batch=self.first_batch),
            **{name: getattr(self, name) for name in names},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaCUR(_Adaptive):
    """Algorithm 1 of the paper: score a batch, predict the rest, score the most promising next, over several rounds.

    - `rounds`, `seed`: how many rounds, and the seed of the random draws;
    - `approximator`: how the scores of all items follow from a few exact ones; the paper's pseudo-inverse by default;
    - `acquisition`: which items to score next: `TopK()`, `Softmax(…)` or `Uniform()`;
    - `first_batch`, `first_share`, `first_weight`, `stop_when`, `keep_predictions`: as for `Gaussian`. The paper has
      none of these.
    """

    name: ClassVar[str] = "adacur"
    needs: ClassVar[tuple[str, ...]] = ("anchors",)

    approximator: Approximator = field(default_factory=PseudoInverse)

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        """The base plan in rounds of predictions."""
        _check_anchors(self, source)
        return self._in_rounds(base, source.anchors, self.approximator)


@dataclass(frozen=True, slots=True, kw_only=True)
class AXN(_Adaptive):
    """Like `AdaCUR`, predicting from the dual encoder's item vectors alone: no anchor scores are used.

    - `approximator`: an `EmbeddingRegression`; by default one on the vectors of the dense first stage;
    - the other options: as for `AdaCUR`.
    """

    name: ClassVar[str] = "axn"
    needs: ClassVar[tuple[str, ...]] = ("vectors",)

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        """The base plan in rounds of predictions from item vectors."""
        approximator = self.approximator or source.embedding_regression()
        return self._in_rounds(base, AnchorTable.of_items(source.anchors.items), approximator)


@dataclass(frozen=True, slots=True, kw_only=True)
class ANNCUR(_Checked):
    """The one-shot baseline: score anchor items, predict the rest once, score the best predicted.

    Without a first stage the anchor items are one uniform sample for all queries; with one they are each query's best
    under it. Items scored as anchor items are not paid for again.

    - `split`: the share of the budget spent on anchor items (k_i / B);
    - `seed`, `approximator`, `keep_predictions`: as for `AdaCUR`.
    """

    name: ClassVar[str] = "anncur"
    needs: ClassVar[tuple[str, ...]] = ("anchors",)

    split: float = 0.5
    seed: int = 0
    approximator: Approximator = field(default_factory=PseudoInverse)
    keep_predictions: KeepPredictions = False

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
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
class Rerank(_Checked):
    """The usual baseline: score the first stage's best items, as many as the budget affords.

    - `seed`: of the uniform sample that tops up a first stage that returns too few.
    """

    name: ClassVar[str] = "rerank"
    needs: ClassVar[tuple[str, ...]] = ()

    seed: int = 0

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        """The base plan in one round."""
        return replace(base, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The truth: score every item. It takes a first stage only to fuse its scores into the order."""

    name: ClassVar[str] = "exact"
    needs: ClassVar[tuple[str, ...]] = ()

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        """The base plan in one round of every item."""
        if base.pool is not None or (base.first is not None and base.fuse is None):
            raise InputError("Method 'exact' scores every item: it takes a first stage only to fuse, and no pool.")
        if base.spending is not None and base.spending.is_limited:
            raise BudgetError(
                "Method 'exact' scores every item, whatever it costs: it takes no limit of tokens or cost. Leave them "
                "out, or choose another method."
            )
        if base.calls < len(base.items):
            raise BudgetError(
                f"Method 'exact' scores all {len(base.items):,} items, and a budget of {base.calls} does not cover "
                "them. Leave the budget out, or choose another method."
            )
        return replace(base, calls=len(base.items))


METHODS: Mapping[str, type[Gaussian | AdaCUR | ANNCUR | AXN | Rerank | Exact]] = {
    method.name: method for method in (Gaussian, AdaCUR, ANNCUR, AXN, Rerank, Exact)
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


def with_effort(plan: Plan, effort: Effort, tuning: Tuning | None, *, k: int) -> Plan:
    """The plan of a Gaussian search, in small rounds that end when it has done enough."""
    if plan.method != Gaussian.name or plan.stop_when is not None:
        raise InputError(
            f"effort belongs to method 'gaussian' and takes the place of stop_when; got method {plan.method!r}"
            + ("." if plan.stop_when is None else f", stop_when={plan.stop_when}.")
        )
    if tuning is None or tuning.effort is None:
        raise InputError(
            "effort is learned by `adacur tune`, not by the quick tuning of a build, and this index has not learned it "
            f"for about this k and budget{f' from {plan.first.name}' if plan.first else ''}. Run `adacur tune INDEX "
            f"-k {k} --budget {plan.calls}`, or adacur.tune(index, k={k}, budget={plan.calls})."
        )
    sizes = partial(_in_rounds, rounds=ROUNDS, first_batch=FIRST_BATCH)
    return replace(plan, batch_sizes=sizes, stop_when=NEVER, effort=(tuning.effort, tuning.effort.point(effort)))


def _check_anchors(method: AdaCUR | ANNCUR, source: Snapshot) -> None:
    if not source.anchors.anchor_queries and method.approximator == PseudoInverse():
        raise InputError(
            f"Method {method.name!r} predicts from anchor queries, and this index has none. Use 'gaussian' or 'axn' "
            "with a dense first stage, or 'rerank'."
        )


def _in_rounds(affordable: int, *, rounds: int, first_batch: float | None) -> tuple[int, ...]:
    """The calls of each round: the first round's share, and the others alike, larger first."""
    rounds = min(rounds, affordable)
    first = -(-affordable // rounds)
    if first_batch is not None and first_batch * rounds > 1:
        # Every round scores something.
        first = min(max(1, round(first_batch * affordable)), affordable - rounds + 1)
    small, larger = divmod(affordable - first, max(1, rounds - 1))
    return (first, *(small + (number < larger) for number in range(rounds - 1)))


def _anchors_then_rest(affordable: int, *, split: float) -> tuple[int, ...]:
    anchors = min(max(1, round(split * affordable)), affordable)
    return (anchors, affordable - anchors) if anchors < affordable else (anchors,)
