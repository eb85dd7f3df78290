"""What the numbers say, in plain words, also where they say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from adacur.evaluation import PairedDifference, Run
from adacur.report.differences import difference, is_ahead, is_behind, is_bound, rival_of
from adacur.report.lines import Panel, estimate, labels, setting, without_sweeps
from adacur.report.measures import JUDGED, number, recall_k, recall_measures

__all__ = ["summary", "worth"]

_USUAL_BUDGET = 100
_USUAL_K = 10
_DEFAULT_METHOD = "gaussian"


def summary(panel: Panel, *, rival: str = "rerank") -> str:
    """A paragraph on one panel: the best method against a rival at a middle budget, then all budgets and k together."""
    panel = replace(panel, runs=tuple(without_sweeps(panel.runs)))
    recalls = recall_measures(panel.runs)
    budgets = sorted({budget for run in panel.runs if (budget := setting(run, "budget")) is not None})
    if not recalls or not budgets:
        return "These runs hold no recall at a budget of scorer calls, so there is nothing to compare."
    budget = _telling_budget(panel, budgets)
    measure = min(recalls, key=lambda name: abs((recall_k(name) or 0) - _USUAL_K))
    there = [run for run in panel.runs if setting(run, "budget") == budget and estimate(run, measure)]
    contest = [run for run in there if run.method != rival and not is_bound(run.method)]
    names = {run: _in_prose(name) for run, name in labels(panel.runs).items()}
    if not contest:
        return _alone(there, names, measure, budget)
    # Equal means are told of the default method.
    best = max(contest, key=lambda run: (round(_mean(run, measure), 9), run.method == _DEFAULT_METHOD))
    against = rival_of(best, panel.runs, rival)
    found = difference(best, against, measure) if against is not None else None
    if against is None or found is None:
        return (
            f"{_finds(best, names[best], measure, budget)}: the best of {len(contest)} here. There is no {rival} run "
            "to compare it with."
        )
    parts = [
        f"{_finds(best, names[best], measure, budget)}, {names[against]} {number(found.right, measure)} "
        f"({_interval(found, measure)}).{_verdict(found, names[best])}"
    ]
    strongest = max((run for run in there if run.method == rival), key=lambda run: _mean(run, measure))
    if _mean(strongest, measure) > _mean(against, measure) and (stronger := difference(best, strongest, measure)):
        parts.append(
            f"Of its rivals {names[strongest]} is the strongest: {number(stronger.right, measure)} "
            f"({_interval(stronger, measure)}).{_verdict(stronger, names[best])}"
        )
    if len(contest) > 1:
        parts.append(
            f"Mind that {names[best]} was picked as the best of {len(contest)} on these same queries, which flatters "
            "it a little."
        )
    parts.append(_judged(best, against, names))
    if len(budgets) > 1:
        parts.append(
            f"{budget:,} calls are the middle of the budgets that leave at least half of the items unscored; the "
            "tables have the others."
        )
    # The default method has its say even where another came out best.
    usual = [run for run in contest if run.method == _DEFAULT_METHOD and names[run] != names[best]]
    parts += [_everywhere(run, names, panel, rival=rival, measures=[*recalls, JUDGED]) for run in (best, *usual[:1])]
    return " ".join(part for part in parts if part)


def worth(panel: Panel, *, rival: str = "rerank") -> str:
    """Whether the default search found more than the rival, in a sentence; nothing where they were not both run."""
    measures = recall_measures(panel.runs)
    found = [
        one
        for run in without_sweeps(panel.runs)
        if run.method == _DEFAULT_METHOD and (other := rival_of(run, panel.runs, rival)) is not None
        for measure in measures
        if (one := difference(run, other, measure)) is not None
    ]
    if not found:
        return ""
    ahead, behind = sum(map(is_ahead, found)), sum(map(is_behind, found))
    n_queries = max(one.n_queries for one in found)
    if ahead and not behind:
        return f"Is an index worth it? Yes, by recall on these {n_queries} queries."
    if behind and not ahead:
        return f"Is an index worth it? No: by recall on these {n_queries} queries, {rival} finds as much or more."
    if ahead:
        return (
            f"Is an index worth it? It depends on budget and k: ahead in {ahead}, behind in {behind} of {len(found)}."
        )
    return f"Is an index worth it? {n_queries} queries cannot tell; evaluate with more (--queries)."


def _telling_budget(panel: Panel, budgets: Sequence[int]) -> int:
    """The middle one of the budgets that leave at least half of the items unscored: beyond, all methods are alike."""
    n_items = max((run.made.get("items", 0) for run in panel.runs), default=0)
    small = [budget for budget in budgets if 2 * budget <= n_items] if n_items else budgets
    middle = small[(len(small) - 1) // 2 : len(small) // 2 + 1] or budgets[:1]
    return min(middle, key=lambda budget: abs(budget - _USUAL_BUDGET))


def _alone(there: Sequence[Run], names: dict[Run, str], measure: str, budget: int) -> str:
    real = [run for run in there if not is_bound(run.method)] or there
    best = max(real, key=lambda run: _mean(run, measure), default=None)
    if best is None:
        return ""
    alone = "nothing else was run" if len(there) == 1 else "beside it only bounds were run"
    return f"{_finds(best, names[best], measure, budget)}; {alone}."


def _in_prose(name: str) -> str:
    """ "rerank, dense first" as "rerank (dense first)": in a sentence commas are busy."""
    method, comma, settings = name.partition(", ")
    return f"{method} ({settings})" if comma else method


def _finds(run: Run, name: str, measure: str, budget: int) -> str:
    mean = number(_mean(run, measure), measure)
    return f"At {budget:,} calls {name} finds {mean} of the scorer's top {recall_k(measure)}"


def _judged(best: Run, against: Run, names: dict[Run, str]) -> str:
    found = difference(best, against, JUDGED)
    if found is None:
        return f"{JUDGED} was not measured, so whether people would like the difference is open."
    return (
        f"{JUDGED} on {found.n_queries:,} judged queries: {names[best]} {number(found.left, JUDGED)}, {names[against]} "
        f"{number(found.right, JUDGED)} ({_interval(found, JUDGED)}).{_verdict(found, names[best])}"
    )


def _everywhere(best: Run, names: dict[Run, str], panel: Panel, *, rival: str, measures: Sequence[str]) -> str:
    """How often the method is ahead and behind at all budgets, by the intervals that the tables show, and where."""
    compared = [
        (run, other, found)
        for run in panel.runs
        if names[run] == names[best] and (other := rival_of(run, panel.runs, rival)) is not None
        for measure in measures
        if (found := difference(run, other, measure)) is not None
    ]
    if len(compared) < 2:
        return ""
    ahead = sum(is_ahead(found) for *_, found in compared)
    behind = [(run, found) for run, _, found in compared if is_behind(found)]
    rivals = {names[other] for _, other, _ in compared}
    against = rivals.pop() if len(rivals) == 1 else f"the best {rival}"
    said = (
        f"Over all {len(compared)} comparisons (each budget by each of {_listed(measures)}) {names[best]} is ahead of "
        f"{against} in {ahead}, behind in {len(behind)} and not told apart in {len(compared) - ahead - len(behind)}, "
        "by the 95 % intervals of the table of differences; of 20 intervals one misses by chance."
    )
    if behind:
        where = [
            f"{found.measure} at {setting(run, 'budget'):,} calls ({number(found.difference, found.measure)})"
            for run, found in behind
        ]
        said += f" Behind: {', '.join(where)}."
    return said


def _listed(measures: Sequence[str]) -> str:
    return ", ".join(measures[:-1]) + f" and {measures[-1]}" if len(measures) > 1 else measures[0]


def _interval(found: PairedDifference, measure: str) -> str:
    low, high = _edge(found.low, measure), _edge(found.high, measure)
    return f"difference {number(found.difference, measure)}, 95 % {low} to {high}"


def _edge(value: float, measure: str) -> str:
    """A bound; where its digits say 0 and it is not, the verdict rests on the side."""
    shown = number(value, measure)
    if value == 0 or shown != number(0, measure):
        return shown
    return "just above 0" if value > 0 else "just below 0"


def _verdict(found: PairedDifference, name: str) -> str:
    if not is_ahead(found) and not is_behind(found):
        return " That is within noise: these queries do not tell the two apart."
    return "" if found.difference > 0 else f" {name} is the worse of the two."


def _mean(run: Run, measure: str) -> float:
    found = estimate(run, measure)
    return found.mean if found else 0.0
