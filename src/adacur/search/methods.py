"""The search methods, in one table, and the plans that they make.

A method owns its options and completes a plan; a name is short for a method with defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from adacur.arrays import FloatArray
from adacur.budget import is_whole
from adacur.errors import BudgetError, InputError, ScorerFailed, UnknownName
from adacur.first_stages import Placed
from adacur.first_stages.joined import parts_of
from adacur.model import PseudoInverse, TopK
from adacur.protocols import Acquisition, Approximator, ScorerCard
from adacur.records import Pair
from adacur.search.finish import Documents, FirstStageAlone, Floors
from adacur.search.plan import KeepPredictions, Model, Plan
from adacur.search.stopping import FIRST_BATCH, NEVER, ROUNDS, Effort, Stop, check_effort
from adacur.search.tuned import default_settings, usual_rounds
from adacur.spelling import did_you_mean

if TYPE_CHECKING:
    from adacur.search.snapshot import Snapshot


class NoScorer:
    """Stands for the scorer in a search that calls none."""

    card = ScorerCard(name="none", backend="none")

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """Refused."""
        raise ScorerFailed("This search has no scorer to call.")


# One object, so that such searches may step together.
NO_SCORER = NoScorer()


class Method(Protocol):
    """How a search spends its calls.

    `needs` names what it can predict from, "anchors" or "vectors"; one is enough. `refuses` are options of a search
    that it does not take, and `because` says why.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    refuses: ClassVar[tuple[str, ...]]
    because: ClassVar[str]

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        """The base plan (items, scorer, budget, first stage, filter) with this method's choices."""
        ...


_RULES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "rounds": ("a whole number of at least 1", lambda value: is_whole(value) and value >= 1),
    "seed": ("a whole number", is_whole),
    "split": ("the anchor items' share of the budget, between 0 and 1", lambda value: 0 < value < 1),
    "first_batch": ("the first round's share of the budget, between 0 and 1", lambda value: 0 < value < 1),
    "keep_predictions": ("False, 'last' or 'all'", lambda value: value in (False, "last", "all")),
}


class _Checked:
    """Refuses options that break one of `_RULES`."""

    __slots__ = ()
    refuses: ClassVar[tuple[str, ...]] = ()
    because: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, (rule, holds) in _RULES.items():
            value = getattr(self, name, None)
            if value is not None and not holds(value):
                raise BudgetError(f"{name} must be {rule}; got {value!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(_Checked):
    """Predict by the mean and covariance of the anchor scores and item vectors; the default method.

    Options left at None are chosen for k, by `adacur.tune` where the index is tuned for about this k and budget.

    - `rounds`: how many rounds the budget is spent in; untuned, 10 where a model runs in this process, else 5;
    - `seed`: of the random draws;
    - `first_batch`: the first round's share of the budget;
    - `keep_predictions`: the predicted scores of all items in the trace: of the "last" round, or of "all".
    """

    name: ClassVar[str] = "gaussian"
    needs: ClassVar[tuple[str, ...]] = ("anchors", "vectors")

    rounds: int | None = None
    seed: int = 0
    first_batch: float | None = None
    keep_predictions: KeepPredictions = False

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        """The base plan with settings tuned or chosen for k."""
        tuning = source.tuned(k=k, budget=base.purse.calls, first=base.first.name if base.first else None)
        settings = tuning.settings if tuning else default_settings(k)
        names = ("rounds", "first_batch")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        settings = replace(settings, **given)
        rounds = settings.rounds or usual_rounds(base.scorer.card)
        # Where a search starts is one question, what ranks say of scores another.
        first = source.ranked_by_all(base.first)
        model = source.gaussian_model().with_slopes(source.rank_slopes(first))
        # One that cannot answer here is left out, and answers then differ from those of a process where it can.
        ranks = tuple(part.name for part in parts_of(first)) if isinstance(first, Placed) else ()
        return replace(
            base,
            first=first,
            model=Model(source.anchors, model, self.keep_predictions),
            acquisition=TopK(),
            sizes=partial(in_rounds, rounds=rounds, first_batch=settings.first_batch),
            seed=self.seed,
            notes={**base.notes, "ranks": ranks, "tuned_for": (tuning.k, tuning.budget) if tuning else None},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaCUR(_Checked):
    """Algorithm 1 of the paper: score a batch, predict the rest, score the most promising next, over several rounds.

    - `rounds`, `seed`: how many rounds, and the seed of the random draws;
    - `approximator`: how the scores of all items follow from a few exact ones; the paper's pseudo-inverse by default;
    - `acquisition`: which items to score next: `TopK()`, `Softmax(…)` or `Uniform()`;
    - `first_batch`, `keep_predictions`: as for `Gaussian`. The paper has none of these.
    """

    name: ClassVar[str] = "adacur"
    needs: ClassVar[tuple[str, ...]] = ("anchors",)

    rounds: int = 5
    seed: int = 0
    approximator: Approximator = field(default_factory=PseudoInverse)
    acquisition: Acquisition = field(default_factory=TopK)
    first_batch: float | None = None
    keep_predictions: KeepPredictions = False

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        """The base plan in rounds of predictions."""
        _check_anchors(self, source)
        return replace(
            base,
            model=Model(source.anchors, self.approximator, self.keep_predictions),
            acquisition=self.acquisition,
            sizes=partial(in_rounds, rounds=self.rounds, first_batch=self.first_batch),
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ANNCUR(_Checked):
    """The one-shot baseline: score anchor items, predict the rest once, score the best predicted.

    Without a first stage the anchor items are a uniform sample; with one they are the query's best under it. Items
    scored as anchor items are not paid for again.

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
            model=Model(source.anchors, self.approximator, self.keep_predictions),
            acquisition=TopK(),
            sizes=partial(_anchors_then_rest, split=self.split),
            seed=self.seed,
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
    refuses: ClassVar[tuple[str, ...]] = ("first", "tokens", "cost")
    because: ClassVar[str] = "scores every item, whatever it costs, and takes a first stage only to fuse"

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        """The base plan in one round of every item."""
        if base.purse.calls < len(base.items):
            raise BudgetError(
                f"Method 'exact' scores all {len(base.items):,} items, and a budget of {base.purse.calls} does not "
                "cover them. Leave the budget out, or choose another method."
            )
        return replace(base, purse=replace(base.purse, calls=len(base.items)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstOnly:
    """The first stage's best k, without a scorer call, whatever the budget: what every other method is measured by.

    The scores of its hits are the first stage's. The scorer is not even opened.
    """

    name: ClassVar[str] = "first"
    needs: ClassVar[tuple[str, ...]] = ()
    refuses: ClassVar[tuple[str, ...]] = ("fuse", "min_score", "min_relevance")
    because: ClassVar[str] = "scores nothing"

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        """The base plan without a round."""
        if base.first is None:
            raise InputError(
                "Method 'first' returns what a first stage finds, and this search starts at random. Give first=…, such "
                "as 'dense' or 'bm25' where the index has it."
            )
        # What scores mean was learned of the scorer's.
        steps = (Floors() if isinstance(step, Floors) else step for step in base.finish)
        return replace(base, purse=replace(base.purse, calls=0), finish=(FirstStageAlone(), *steps))


METHODS: Mapping[str, type[Gaussian | AdaCUR | ANNCUR | Rerank | FirstOnly | Exact]] = {
    method.name: method for method in (Gaussian, AdaCUR, ANNCUR, Rerank, FirstOnly, Exact)
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


def with_effort(plan: Plan, effort: Effort, source: Snapshot, *, k: int) -> Plan:
    """The plan of a Gaussian search, in small rounds that end when it has done enough."""
    check_effort(effort)
    if plan.method != Gaussian.name:
        raise InputError(f"effort belongs to method 'gaussian'; got method {plan.method!r}.")
    if any(isinstance(step, Documents) for step in plan.finish):
        raise InputError(
            "effort is learned from items, and here k counts documents, of which items are passages. Leave it out."
        )
    calls, first = plan.purse.calls, plan.first
    tuning = source.tuned(k=k, budget=calls, first=first.name if first else None)
    if tuning is None or tuning.effort is None:
        raise InputError(
            "effort is learned by `adacur tune`, not by the quick tuning of a build, and this index has not learned it "
            f"for about this k and budget{f' from {first.name}' if first else ''}. Run `adacur tune INDEX -k {k} "
            f"--budget {calls}`, or adacur.tune(index, k={k}, budget={calls})."
        )
    sizes = partial(in_rounds, rounds=ROUNDS, first_batch=FIRST_BATCH)
    return replace(plan, sizes=sizes, stop=Stop(NEVER, (tuning.effort, tuning.effort.point(effort))))


def _check_anchors(method: AdaCUR | ANNCUR, source: Snapshot) -> None:
    if not source.anchors.anchor_queries and method.approximator == PseudoInverse():
        raise InputError(
            f"Method {method.name!r} predicts from anchor queries, and this index has none. Use 'gaussian' with "
            "a dense first stage, or 'rerank'."
        )


def in_rounds(affordable: int, *, rounds: int, first_batch: float | None) -> tuple[int, ...]:
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
