"""What a trial advises: a choice, the reason in a sentence, its certainty, and the commands to go on with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from adacur.core.arrays import BoolArray, FloatArray
from adacur.core.protocols import ScorerCard
from adacur.evaluation.comparison import FEWEST_QUERIES, JUDGED
from adacur.evaluation.depth_verdict import DepthVerdict, depth_verdict
from adacur.evaluation.depths import typed_source
from adacur.evaluation.runs import bootstrap_interval
from adacur.first_stages.joined import SEPARATOR
from adacur.scorers.consent import why_consent
from adacur.trying.measuring import Measured, Saving, can_judge, saving
from adacur.tuning.judged import WEIGHTS, is_gain, loses_nothing
from adacur.tuning.settings import best_stage, gains

# Anchor queries that fuse and `adacur tune` need.
_FEW_ANCHORS = 20
# A smaller difference of nDCG@10 does not speak against a first stage.
_MATTERS = 0.01
# Anchor queries that make searches cheaper by less than this factor are not worth their price.
_SAVES_LITTLE = 1.02
_TRAIN = ("qrels/train.tsv", "qrels.train.tsv")
_DEFAULT_SCORER, _DEFAULT_ENCODER = "ms-marco-MiniLM-L-12-v2", "bge-small-en-v1.5"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question: `choice` is what to do, `words` say why.

    `mean`, `low` and `high` are the figure that decides and its 95 % interval, None where nothing was measured.
    """

    question: str
    choice: Any
    words: str
    mean: float | None = None
    low: float | None = None
    high: float | None = None


class Advice:
    """The answers that follow from what was measured, each worked out once."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.plan = measured.plan
        self.is_judged = measured.is_judged

    def answers(self, *, anchors: bool = True) -> Iterator[Answer]:
        """In the order in which one would ask; `anchors=False` leaves out the anchor index, which takes searches."""
        yield self._scorer()
        yield self._first()
        yield self._budget()
        if self.is_judged:
            yield self._fuse()
        yield self._method()
        if anchors:
            yield self._anchors()
        if self.is_judged:
            yield self._depth()

    @cached_property
    def first(self) -> str:
        """The first stage: of those whose judged quality is not certainly below the best, the one that finds most."""
        largest, usable = self.plan.budget, list(self.measured.stages)
        if self.is_judged:
            quality = {name: _judged(self.measured.reranked(name, largest, self._weight(name))) for name in usable}
            best = max(usable, key=lambda name: float(quality[name].mean()))
            losses = {name: _interval(quality[best] - quality[name]) for name in usable}
            usable = [name for name, (mean, low, _) in losses.items() if low <= 0 or mean < _MATTERS]
        return str(best_stage({name: self.recalls(name, largest) for name in usable}))

    @cached_property
    def fuse(self) -> float:
        """The weight of the first stage in the order; 0 where no gain can be seen, or none on unseen queries."""
        return self._weight(self.first) if self.is_judged and self.fuse_gain[0] > 0 else 0.0

    @cached_property
    def fuse_gain(self) -> tuple[float, float, float]:
        """What a weight gains: each half of the queries is measured with what the other half would have chosen."""
        plain = self.measured.reranked(self.first, self.plan.budget)
        unseen = plain.copy()
        for half in (np.arange(len(plain)) % 2 == 0, np.arange(len(plain)) % 2 == 1):
            weight = self._weight(self.first, ~half)
            unseen[half] = self.measured.reranked(self.first, self.plan.budget, weight)[half]
        return _interval(unseen - plain)

    @property
    def n_anchors(self) -> int:
        """The anchor queries of the index that the first command builds."""
        return _FEW_ANCHORS if self.fuse else 0

    @cached_property
    def budget(self) -> int:
        """By judgements the fewest calls that lose nothing, else the most that were tried."""
        if not self.is_judged:
            return self.plan.budget
        largest = self.quality(self.plan.budget)
        return next(n for n in self.measured.budgets() if loses_nothing(_judged(self.quality(n) - largest)))

    @cached_property
    def search_gains(self) -> tuple[FloatArray, FloatArray | None]:
        """What a search without anchor queries gains over re-ranking: recall, and judged quality where it is known."""
        measured, first = self.measured, self.measured.stages[-1]
        recall = measured.recalls(measured.searched) - self.recalls(first, self.plan.budget)
        if not self.is_judged:
            return recall, None
        return recall, _judged(measured.found(first) - measured.reranked(first, self.plan.budget))

    @cached_property
    def searches(self) -> bool:
        """Whether a search finds visibly more than re-ranking at equal calls, and the judges see no loss."""
        if not self.measured.searched:
            return False
        recall, quality = self.search_gains
        return gains(recall) and (quality is None or not gains(-quality))

    @cached_property
    def depths(self) -> DepthVerdict:
        """Judged quality by depth, all items included."""
        steps = self.measured.budgets()
        alone, every = self.measured.alone(self.first), self.measured.everything()
        values = [alone, *(self.measured.reranked(self.first, n) for n in steps), every]
        return depth_verdict([0, *map(self.plan.whole, steps), None], [_judged(one) for one in values])

    @property
    def depth_gains_nothing(self) -> bool:
        """Whether the judges see no gain at greater depth."""
        return self.is_judged and self.depths.kind in ("mend", "stay")

    @cached_property
    def saving(self) -> Saving | None:
        """What anchor queries save."""
        return saving(self.measured, self.first)

    def recalls(self, first: str, budget: int) -> FloatArray:
        """Estimated recall of re-ranking."""
        return self.measured.recalls(self.measured.scored_by(first, budget))

    def quality(self, budget: int) -> FloatArray:
        """Judged quality of re-ranking as advised."""
        return self.measured.reranked(self.first, budget, self.fuse)

    def questions_to_break_even(self, ratio: float) -> float:
        """The number of questions from which anchor queries pay off; infinite where they save nothing."""
        saved = (ratio - 1) * self.plan.whole(self.budget)
        return self.saving.n_anchors * self.plan.n_items / saved if self.saving and saved > 0 else math.inf

    def _why_unjudged(self) -> str:
        qrels = self.measured.material.qrels
        if not qrels:
            return "without judgements (qrels/test.tsv)"
        if not can_judge():
            return "without ir_measures, which is not installed"
        n_judged = sum(query.id in qrels for query in self.measured.queries)
        return f"from {n_judged} of {len(self.measured.queries)} queries that are judged: it takes {FEWEST_QUERIES}"

    def _scorer(self) -> Answer:
        if not self.is_judged:
            words = (
                f"Whether its order is good cannot be told {self._why_unjudged()}. Everything below is about finding "
            )
            return Answer("scorer", "unknown", f"{words}what it likes best.")
        alone = max(
            (self.measured.alone(name) for name in self.measured.stages), key=lambda one: float(np.nanmean(one))
        )
        reranked = self.measured.reranked(self.first, self.plan.budget, self.fuse)
        change = _interval(reranked - alone)
        choice = "yes" if change[1] > 0 else "no" if change[2] < 2 * _MATTERS else "unclear"
        said = {
            "yes": "Worth its calls",
            "no": "Not worth its calls: no better than the best first stage alone",
            "unclear": "Perhaps worth its calls: too few judged queries to be sure",
        }[choice]
        words = (
            f"{said}. {JUDGED} {np.nanmean(alone):.3f} without it, {np.nanmean(reranked):.3f} with it"
            f"{f' and fuse {self.fuse:g}' if self.fuse else ''}: {_change(change)}."
        )
        return Answer("scorer", choice, words, *change)

    def _first(self) -> Answer:
        largest = self.plan.budget
        recalls = {name: _interval(self.recalls(name, largest)) for name in self.measured.stages}
        mean, low, high = recalls[self.first]
        others = ", ".join(f"{name} {of[0]:.2f}" for name, of in recalls.items() if name != self.first)
        words = (
            f"{self.first}: re-ranking its best {self.plan.whole(largest)} has {mean:.2f} ({low:.2f} to {high:.2f}) of "
            f"the scorer's best {self.plan.whole(self.plan.k)}{f'; {others}' if others else ''}."
        )
        if self.is_judged and len(recalls) > 1:
            quality = {name: self.measured.reranked(name, largest) for name in recalls}
            order = " in the scorer's own order" if self.fuse else ""
            words += f" {JUDGED}{order}: {', '.join(f'{name} {np.nanmean(of):.3f}' for name, of in quality.items())}."
        return Answer("first stage", self.first, words, mean, low, high)

    def _budget(self) -> Answer:
        steps = self.measured.budgets()
        recalls = [float(self.recalls(self.first, n).mean()) for n in steps]
        figures = f"recall {_row(recalls, '.2f')}"
        spend, lost = self.plan.whole(self.budget), None
        words = f"{spend} calls a question"
        if self.is_judged:
            qualities = [self.quality(n) for n in steps]
            figures = f"{JUDGED} {_row([float(np.nanmean(one)) for one in qualities], '.3f')}; {figures}"
            lost = _interval(self.quality(self.budget) - self.quality(self.plan.budget))
            if self.budget < self.plan.budget:
                words += f": the judges see no loss against {self.plan.whole(self.plan.budget)}, {_change(lost)}"
        words += f". At {_row([self.plan.whole(n) for n in steps], 'd')} calls: {figures}."
        return Answer("budget", spend, words, *(lost or ()))

    def _fuse(self) -> Answer:
        gain = _change(self.fuse_gain)
        if self.fuse:
            words = f"{self.fuse:g} for {self.first} in the order: {JUDGED} {gain} over the scorer's own order."
        else:
            words = f"None: no weight of {self.first} in the order gained visibly, {gain}."
        return Answer("fuse", self.fuse, words, *self.fuse_gain)

    def _method(self) -> Answer:
        if not self.measured.searched:
            words = "Re-ranking: without dense vectors or anchor queries there is nothing to predict from."
            return Answer("method", "rerank", words)
        recall, quality = self.search_gains
        more = _interval(recall)
        by_judges = "" if quality is None else f", {JUDGED} {_change(_interval(quality))}"
        name = "Searching (predict, score, predict)" if self.searches else "Re-ranking"
        words = (
            f"{name}: at {self.plan.whole(self.plan.budget)} calls and without anchor queries, searching changes "
            f"recall by {_change(more)}{by_judges}."
        )
        return Answer("method", "gaussian" if self.searches else "rerank", words, *more)

    def _anchors(self) -> Answer:
        if (saved := self.saving) is None:
            return Answer("anchor index", "unknown", "Too few queries or items were scored to tell; give more minutes.")
        price = saved.n_anchors * self.plan.n_items
        spend = self.plan.whole(self.budget)
        found = (
            f"{saved.n_anchors} anchor queries × {self.plan.n_items:,} items = {price:,} calls; {spend} calls with "
            f"them find what {_rounded(saved.ratio * spend)} ({_rounded(saved.low * spend)} to "
            f"{_rounded(saved.high * spend)}) find without"
        )
        at, early, late = map(self.questions_to_break_even, (saved.ratio, saved.high, saved.low))
        if saved.high <= _SAVES_LITTLE:
            return Answer("anchor index", "no", f"No: {found}.", at, early, late)
        until = "never" if math.isinf(late) else f"{_rounded(late):,}"
        by_recall = (
            f"{found}. That pays from about {_rounded(at):,} questions on ({_rounded(early):,} to {until})"
            if math.isfinite(at)
            else f"{found}: they may never pay, or from {_rounded(early):,} questions on: too few queries to tell"
        )
        choice, verdict = "by number of questions", ""
        if self.depth_gains_nothing:
            choice, verdict = "no", "Not by the judges, who see no gain at greater depth. By recall: "
        return Answer("anchor index", choice, f"{verdict}{by_recall}.", at, early, late)

    def _depth(self) -> Answer:
        verdict = str(self.depths)
        deepest = self.depths.changes[-1]
        figures = (deepest.difference, deepest.low, deepest.high) if deepest else ()
        return Answer("depth", self.depths.kind, f"{verdict[:1].upper()}{verdict[1:]}", *figures)

    def _weight(self, first: str, among: BoolArray | slice = slice(None)) -> float:
        """The weight of a first stage in the order that these queries would choose; 0 where none is visibly better."""

        def quality(fuse: float) -> FloatArray:
            return _judged(self.measured.reranked(first, self.plan.budget, fuse)[among])

        best = max(WEIGHTS, key=lambda fuse: float(quality(fuse).mean()))
        return best if is_gain(quality(best) - quality(0.0)) else 0.0


def commands(advice: Advice, *, card: ScorerCard, encoder: str | None, folder: Path) -> tuple[str, ...]:
    """The command lines that follow from the advice."""
    material, plan = advice.measured.material, advice.plan
    source, name = quote(str(material.source)), material.name.partition(".")[0]
    index, again = quote(f"{name}.adacur"), f"adacur try {quote(str(folder))}"
    typed = typed_source(card.source) or "SCORER"
    scorer = "" if typed == _DEFAULT_SCORER else f" --scorer {typed}"
    cut = f" --max-item-tokens {card.max_item_tokens}" if card.max_item_tokens else ""
    parts = advice.first.split(SEPARATOR)
    encoded = typed_source(encoder) if encoder and "dense" in parts else ""
    flags = f"{scorer}{cut} --first {','.join(parts)}"
    flags += f" --encoder {encoded}" if encoded and encoded != _DEFAULT_ENCODER else ""
    # An index alone is not trusted to name a function or a service.
    named = "" if card.source and why_consent(card.source, folder=None) is None else f" --scorer {typed}"
    queries = f" --anchors {quote(str(material.queries_file))}" if material.queries_file else ""
    number = f"{queries} -n {advice.n_anchors}" if advice.n_anchors else " -n 0"
    method = "" if advice.searches else " --method rerank"
    fuse = f" --fuse {advice.fuse:g}" if advice.fuse else ""
    lines = [
        f"adacur build {source} {index}{number}{flags}",
        f"adacur search {index} 'your question' --budget {plan.whole(advice.budget)}{method} --first {advice.first}"
        f"{fuse}{named}",
    ]
    saved = advice.saving
    may_pay = saved is not None and saved.high > _SAVES_LITTLE and not advice.depth_gains_nothing
    if saved is not None and may_pay and saved.n_anchors > advice.n_anchors:
        lines.append(f"adacur build {source} {index}{queries} -n {saved.n_anchors}{flags} --dry-run")
    if advice.is_judged and advice.depths.kind == "unclear" and plan.n_judged < material.n_judged:
        lines.append(f"{again}{scorer}{cut} --minutes 30")
    if advice.is_judged and advice.depths.kind == "mend" and any((folder / file).is_file() for file in _TRAIN):
        lines.append(f"adacur train cross-encoder {source} {quote(f'{name}-reranker')} --first {parts[0]} --turns 2")
    return tuple(lines)


def _judged(values: FloatArray) -> FloatArray:
    """The values of judged queries: those of others are NaN."""
    return values[~np.isnan(values)]


def _interval(values: FloatArray) -> tuple[float, float, float]:
    """The mean of the judged queries and its 95 % interval."""
    judged = np.round(_judged(values), 9)
    return float(judged.mean()), *bootstrap_interval(judged)


def _change(change: tuple[float, float, float]) -> str:
    mean, low, high = change
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"


def _row(values: list[Any], form: str) -> str:
    return " / ".join(format(value, form) for value in values)


def _rounded(value: float) -> int:
    """To two digits: nothing here is known better."""
    digits = max(0, math.floor(math.log10(max(1.0, value))) - 1)
    return int(round(value / 10**digits) * 10**digits)


def table(advice: Advice) -> Mapping[str, Any]:
    """Every figure behind the answers, for machines."""
    measured, plan = advice.measured, advice.plan
    rows = []
    for name in measured.stages:
        for budget in measured.budgets():
            row: dict[str, Any] = {"first": name, "budget": plan.whole(budget)}
            row["recall"] = _interval(advice.recalls(name, budget))
            if advice.is_judged:
                row[JUDGED] = _interval(measured.reranked(name, budget))
            rows.append(row)
    alone = {name: _interval(measured.alone(name)) for name in measured.stages} if advice.is_judged else {}
    depths = advice.depths if advice.is_judged else None
    return {"rerank": rows, "alone": alone, "saving": advice.saving, "depths": depths}
