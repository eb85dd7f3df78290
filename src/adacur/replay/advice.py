"""What a trial advises: a choice, the reason in a sentence, its certainty, and the commands to go on with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.data import cache_folder, names
from adacur.first_stages.joined import SEPARATOR
from adacur.protocols import ScorerCard
from adacur.replay.chosen_settings import best_stage
from adacur.replay.comparison import JUDGED
from adacur.replay.judged_tuning import is_gain
from adacur.replay.measures import FEWEST_QUERIES, MATTERS, can_judge, gains, mean_of
from adacur.replay.measuring import Measured
from adacur.replay.searches import Way
from adacur.scorers.consent import why_consent
from adacur.search.finish import weight_beside
from adacur.search.tuned import Mean

# Signs drawn at random, and the share of them that may do as well as those that are seen.
_FLIPS, _CHANCE = 4000, 0.01
_TRAIN = ("qrels/train.tsv", "qrels.train.tsv")
_DEFAULT_SCORER, _DEFAULT_ENCODER = "ms-marco-MiniLM-L-12-v2", "bge-small-en-v1.5"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question: `choice` is what to do, `words` say why.

    `mean` is the figure that decides, with its interval; None where nothing was measured.
    """

    question: str
    choice: Any
    words: str
    mean: Mean | None = None


class Advice:
    """The answers that follow from what was measured, each worked out once."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.plan = measured.plan
        self.is_judged = measured.is_judged

    def answers(self, above: float | None = None) -> Iterator[Answer]:
        """In the order in which one would ask. Where no call is worth it, nothing is said of how to spend calls.

        `above` asks for all items that score so high, which makes the scorer the truth.
        """
        yield self._scorer()
        yield self._first()
        if self.way.budget:
            yield self._budget()
            yield self._method()
        if above is not None:
            yield self._finding(above)

    @cached_property
    def alone(self) -> Way:
        """What any scorer must be better than: all first stages joined, or a single one that is visibly better."""
        joined, *single = reversed(self.measured.stages)
        if not self.is_judged:
            return Way("first", joined)
        ways = {name: Way("first", name) for name in (joined, *single)}
        return ways[str(best_stage({name: _judged(self.quality(way)) for name, way in ways.items()}))]

    @cached_property
    def first(self) -> str:
        """The first stage to spend calls on: all joined, unless a single one is visibly better to re-rank."""
        joined, *single = reversed(self.measured.stages)
        if self.is_judged:
            least = self.measured.budgets()[0]
            values = {name: self.quality(_rerank(name, least, weight_beside(name))) for name in (joined, *single)}
            return str(best_stage({name: _judged(of) for name, of in values.items()}))
        return str(best_stage({name: self.recalls(name, self.plan.budget) for name in (joined, *single)}))

    @cached_property
    def way(self) -> Way:
        """What is advised: no call, unless they are proved to be worth it.

        Blending is tried first, then the scorer's own order, then searching: each takes the place of what stands
        before it only where its gain over no call is certain, and over that visible. What is certain is said of the
        fewest calls, for which most queries speak; more calls are advised where they gain visibly over these.
        """
        most = self.plan.budget
        if not self.is_judged:
            # Nobody measured the order: it is as searches have it by default.
            first, method = (self.measured.stages[-1], "gaussian") if self.searches else (self.first, "rerank")
            index = self.measured.index
            return Way(method, first, most, index.snapshot.usual_fuse(index.scorer.card, first=first))
        best = self.alone
        for fuse in (weight_beside(self.first), 0.0):
            found, *deeper = (_rerank(self.first, n, fuse) for n in self.measured.budgets())
            if not self._is_proved(found):
                continue
            for way in deeper:
                found = way if self._is_visible(way, found) and self._is_proved(way) else found
            if not best.budget or self._is_visible(found, best):
                best = found
        search = self.measured.searched()._replace(fuse=best.fuse)
        if best.budget and self.measured.predicts and self._is_visible(search, best) and self._is_proved(search):
            best = search
        return best

    def gain(self, way: Way, over: Way | None = None) -> Mean:
        """What a way gains in judged quality over no call, or over another way."""
        return mean_of(self.quality(way) - self.quality(over or self.alone))

    def _is_proved(self, way: Way) -> bool:
        """Whether a gain over no call is certain: the signs of its differences by query are not those of chance.

        A bootstrap of few queries is too sure where most do not change and the others happen to rise.
        """
        gain = _judged(self.quality(way) - self.quality(self.alone))
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(_FLIPS, len(gain)))
        by_chance = np.count_nonzero((signs * gain).mean(axis=1) >= gain.mean() - 1e-9)
        return bool(gain.mean() >= MATTERS and (1 + by_chance) / (1 + _FLIPS) <= _CHANCE)

    def _is_visible(self, way: Way, over: Way) -> bool:
        return is_gain(_judged(self.quality(way) - self.quality(over)))

    @cached_property
    def search_gains(self) -> tuple[FloatArray, FloatArray | None]:
        """What a search without anchor queries gains over re-ranking: recall, and judged quality where it is known."""
        search = self.measured.searched()
        rerank = search._replace(method="rerank")
        recall = self.measured.recalls(search) - self.measured.recalls(rerank)
        if not self.is_judged:
            return recall, None
        search, rerank = (one._replace(fuse=self.way.fuse) for one in (search, rerank))
        return recall, self.quality(search) - self.quality(rerank)

    @cached_property
    def searches(self) -> bool:
        """Whether a search finds visibly more than re-ranking at equal calls."""
        return self.measured.predicts and gains(self.search_gains[0])

    def recalls(self, first: str | None, budget: int) -> FloatArray:
        """Estimated recall of re-ranking."""
        return self.measured.recalls(_rerank(first, budget))

    def quality(self, way: Way) -> FloatArray:
        """Judged quality of searching so."""
        return self.measured.quality(way)

    def _why_unjudged(self) -> str:
        qrels = self.measured.material.qrels
        if not qrels:
            return "without judgements (qrels/test.tsv)"
        if not can_judge():
            return "without ir_measures, which is not installed"
        n_judged = sum(query.id in qrels for query in self.measured.asked)
        return f"from {n_judged} of {len(self.measured.asked)} queries that are judged: it takes {FEWEST_QUERIES}"

    @cached_property
    def choice(self) -> str:
        """What to do with the scorer."""
        return str(self._scorer().choice)

    def _scorer(self) -> Answer:
        if not self.is_judged:
            words = (
                f"Whether it is worth its calls is unknown {self._why_unjudged()}. Everything below is about "
                "scoring what it likes best."
            )
            return Answer("scorer", "unknown", words)
        way, least = self.way, self.measured.budgets()[0]
        blended, own = (_rerank(self.first, least, fuse) for fuse in (weight_beside(self.first), 0.0))
        if way.budget:
            choice = "search" if way.method == "gaussian" else "blend" if way.fuse else "rerank"
            words, rival = f"{_ADVISED[choice]} {self._against_none(way)}", own if way.fuse else blended
        else:
            way, rival = sorted((blended, own), key=lambda one: -self.gain(one).value)
            choice = "no" if self.gain(way).high < 2 * MATTERS else "unproven"
            words = f"{_ADVISED[choice]} {self._against_none(way)}"
        words += f" {_sentence(self._as_said(rival))}: {self.gain(rival).change()}."
        return Answer("scorer", choice, words, self.gain(way))

    def _against_none(self, way: Way) -> str:
        """A way against no call at all, in figures of the same queries."""
        n, quality, plain = self.figures(way)
        return (
            f"{JUDGED} {plain:.3f} by {self.alone.first} alone, 0 calls; {quality:.3f} by {self._as_said(way)}: "
            f"{self.gain(way).change()} on {n} judged queries."
        )

    def figures(self, way: Way) -> tuple[int, float, float]:
        """How many judged queries were searched so, their quality, and their quality without a call."""
        both = self.quality(way), self.quality(self.alone)
        n = int(np.count_nonzero(~np.isnan(both[0])))
        return n, float(np.nanmean(both[0])), float(both[1][~np.isnan(both[0])].mean())

    def _as_said(self, way: Way) -> str:
        does = "searching from" if way.method == "gaussian" else "re-ranking"
        order = f"fuse {way.fuse:g}" if way.fuse else "in the scorer's own order"
        return f"{does} {way.first} with {self.plan.whole(way.budget)} calls, {order}"

    def _first(self) -> Answer:
        alone = {name: self.quality(Way("first", name)) for name in self.measured.stages} if self.is_judged else {}
        figures = ", ".join(f"{name} {np.nanmean(of):.3f}" for name, of in alone.items())
        without = f" Alone, 0 calls: {JUDGED} {figures}." if alone else ""
        if not self.way.budget:
            return Answer("first stage", self.alone.first, f"{self.alone.first}.{without}")
        first, largest = self.way.first, self.plan.budget
        recalls = {name: mean_of(self.recalls(name, largest)) for name in self.measured.stages}
        found = recalls[str(first)]
        others = ", ".join(f"{name} {of.value:.2f}" for name, of in recalls.items() if name != first)
        more = f"; {others}" if others else ""
        if len(recalls) == 1:
            return Answer("first stage", first, f"{first}.{without}", found)
        words = (
            f"{first}: its best {self.plan.whole(largest)} have {found.value:.2f} ({found.low:.2f} to "
            f"{found.high:.2f}) of the best {self.plan.whole(self.plan.k)} that any way found{more}.{without}"
        )
        return Answer("first stage", first, words, found)

    def _budget(self) -> Answer:
        steps, way = self.measured.budgets(), self.way
        recalls = [float(self.recalls(way.first, n).mean()) for n in steps]
        figures = f"recall {_row(recalls, '.2f')}"
        spend, lost = self.plan.whole(way.budget), None
        words = f"{spend} calls a question"
        if self.is_judged:
            ways = [_rerank(way.first, n, way.fuse) for n in steps]
            # Of the queries that were scored so deep.
            deep = ~np.isnan(self.quality(ways[-1]))
            qualities = [float(np.mean(self.quality(one)[deep])) for one in ways]
            figures = f"{JUDGED} {_row(qualities, '.3f')}; {figures}"
            lost = self.gain(way, ways[-1])
            if way.budget < self.plan.budget:
                words += f": the judges see no loss against {self.plan.whole(self.plan.budget)}, {lost.change()}"
        words += f". Re-ranking {_row([self.plan.whole(n) for n in steps], 'd')}: {figures}."
        return Answer("budget", spend, words, lost)

    def _method(self) -> Answer:
        if not self.measured.predicts:
            words = "Re-ranking: without dense vectors or anchor queries there is nothing to predict from."
            return Answer("method", "rerank", words)
        recall, quality = self.search_gains
        more = mean_of(recall)
        by_judges = "" if quality is None else f", {JUDGED} {mean_of(quality).change()}"
        name = "Searching (predict, score, predict)" if self.way.method == "gaussian" else "Re-ranking"
        words = (
            f"{name}: at {self.plan.whole(self.plan.budget)} calls and without anchor queries, searching changes "
            f"recall by {more.change()}{by_judges}."
        )
        return Answer("method", self.way.method, words, more)

    def _finding(self, line: float) -> Answer:
        totals, steps = self.measured.above(line), self.measured.budgets()
        some = totals[totals > 0]
        words = f"{len(some)} of {len(totals)} queries have scored items at {line:g} or higher"
        if not len(some):
            return Answer("find", None, f"{words}. Nothing can be said of finding all.")
        ways = [_rerank(self.first, n) for n in steps]
        ways += [self.measured.searched()] if self.measured.predicts else []
        recalls = [mean_of(self.measured.recalls_above(way, line)) for way in ways]
        searched = f", searching with the most {recalls[-1].value:.2f}" if self.measured.predicts else ""
        words += (
            f", {np.median(some):.0f} by the median. Of these, re-ranking {self.first} with "
            f"{_row([self.plan.whole(n) for n in steps], 'd')} calls finds "
            f"{_row([one.value for one in recalls[: len(steps)]], '.2f')}{searched}. What was not scored does not "
            f"count: of an index with anchor queries, `adacur tune INDEX --above {line:g}` says what a promise costs."
        )
        best = max(range(len(ways)), key=lambda at: recalls[at].value)
        return Answer("find", self.plan.whole(ways[best].budget), words, recalls[best])


_ADVISED = {
    "blend": "Worth its calls, blended with the first stage (--fuse).",
    "rerank": "Worth its calls, in its own order (--fuse 0).",
    "search": "Worth its calls, and searching finds more than re-ranking.",
    "no": "Use none here: its calls gain nothing that matters.",
    "unproven": "Use none here: too few judged queries to prove that its calls gain anything.",
}


def commands(advice: Advice, *, card: ScorerCard, encoder: str | None, folder: Path) -> tuple[str, ...]:
    """The command lines that do what was measured: for the way that is advised, and what it would take to know more."""
    material, plan, way = advice.measured.material, advice.plan, advice.way
    source = quote(str(material.source))
    typed = typed_source(card.source) or "SCORER"
    scorer = "" if typed == _DEFAULT_SCORER else f" --scorer {typed}"
    cut = f" --max-item-tokens {card.max_item_tokens}" if card.max_item_tokens else ""
    fields = "".join(f" --text-field {quote(name)}" for name in material.text_fields or ())
    fields += f" --id-field {quote(material.id_field)}" if material.id_field else ""
    parts = str(way.first).split(SEPARATOR)
    encoded = typed_source(encoder) or ("ENCODER" if "dense" in plan.first else "none")
    encoded = "" if encoded == _DEFAULT_ENCODER else f" --encoder {encoded}"
    flags = f"{fields}{scorer}{cut} --first {','.join(parts)}{encoded if 'dense' in parts else ''}"
    # An index alone is not trusted to name a function or a service.
    named = "" if card.source and why_consent(card.source, folder=None) is None else f" --scorer {typed}"
    how = f"--method first --first {way.first}"
    if way.budget:
        flags += f" --fuse {way.fuse:g}"
        how = f"--budget {plan.whole(way.budget)} --method {way.method} --first {way.first} --fuse {way.fuse:g}{named}"
    name = material.name.partition(".")[0]
    # Other builds have other names, and the same one goes on.
    digest = hashlib.blake2b(f"{material.source.resolve()}{flags}".encode(), digest_size=3).hexdigest()
    index = quote(f"{name}-{digest}.adacur")
    lines = [f"adacur build {source} {index} -n 0{flags}", f"adacur search {index} 'your question' {how}"]
    choice = advice.choice
    n_judged = sum(query.id in material.qrels for query in advice.measured.asked)
    if choice == "unproven" and n_judged < material.n_judged:
        lines.append(f"adacur try {quote(str(folder))}{fields}{scorer}{cut}{encoded} --minutes 30")
    if choice == "no" and any((folder / file).is_file() for file in _TRAIN):
        lines.append(f"adacur train {source} {quote(f'{name}-reranker')} --first {parts[0]} --turns 2")
    return tuple(lines)


def typed_source(source: str | None) -> str:
    """How a user would name a model: by its name in the catalogue, where it was fetched from there."""
    if source and Path(source).is_relative_to(cache_folder()):
        name = next(iter(Path(source).relative_to(cache_folder()).parts), "")
        source = name if name in names() else source
    return quote(source) if source else ""


def _rerank(first: str | None, budget: int, fuse: float = 0.0) -> Way:
    return Way("rerank", first, budget, fuse)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _judged(values: FloatArray) -> FloatArray:
    """The values of judged queries: those of others are NaN."""
    return values[~np.isnan(values)]


def _row(values: list[Any], form: str) -> str:
    return " / ".join(format(value, form) for value in values)


def table(advice: Advice) -> Mapping[str, Any]:
    """Every figure behind the answers, for machines; with judged quality those of the first stages alone."""
    measured, plan = advice.measured, advice.plan
    rows = []
    for name in measured.stages:
        for budget in measured.budgets():
            row: dict[str, Any] = {"first": name, "budget": plan.whole(budget)}
            row["recall"] = mean_of(advice.recalls(name, budget))
            if advice.is_judged:
                row[JUDGED] = mean_of(measured.quality(_rerank(name, budget)))
                row[f"{JUDGED} fused"] = mean_of(measured.quality(_rerank(name, budget, weight_beside(name))))
            rows.append(row)
    alone = (
        {name: mean_of(measured.quality(Way("first", name))) for name in measured.stages} if advice.is_judged else {}
    )
    way: dict[str, Any] = advice.way._asdict() | {"budget": plan.whole(advice.way.budget)}
    if advice.is_judged:
        way |= zip(("queries", JUDGED, f"{JUDGED} without calls"), advice.figures(advice.way), strict=True)
    return {"rerank": rows, "alone": alone, "way": way}
