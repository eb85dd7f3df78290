"""What the numbers say, in plain words, also where they say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from adacur.evaluation import PairedDifference, Run, holm
from adacur.report.differences import difference, is_bound, rival_of
from adacur.report.lines import Panel, estimate, labels, setting, without_sweeps
from adacur.report.measures import JUDGED, number, recall_k, recall_measures

__all__ = ["summary"]

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
    names = labels(panel.runs, given=["budget"])
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
        f"({_interval(found, measure)}).{_verdict(found)}"
    ]
    if len(contest) > 1:
        parts.append(f"It was picked as the best of {len(contest)} on these same queries, which flatters it a little.")
    parts.append(_judged(best, against, names))
    parts.append(_everywhere(best, names, panel, rival=rival, measures=recalls))
    return " ".join(part for part in parts if part)


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


def _finds(run: Run, name: str, measure: str, budget: int) -> str:
    mean = number(_mean(run, measure), measure)
    return f"At {budget:,} calls {name} finds {mean} of the scorer's top {recall_k(measure)}"


def _judged(best: Run, against: Run, names: dict[Run, str]) -> str:
    found = difference(best, against, JUDGED)
    if found is None:
        return f"{JUDGED} was not measured, so whether people would like the difference is open."
    return (
        f"{JUDGED} on {found.n_queries:,} judged queries: {number(found.left, JUDGED)} against "
        f"{number(found.right, JUDGED)} ({_interval(found, JUDGED)}).{_verdict(found)}"
    )


def _everywhere(best: Run, names: dict[Run, str], panel: Panel, *, rival: str, measures: Sequence[str]) -> str:
    """How often the method is ahead and behind, at all budgets and k, with chance findings guarded against."""
    compared = [
        found
        for run in panel.runs
        if names[run] == names[best] and (other := rival_of(run, panel.runs, rival)) is not None
        for measure in measures
        if (found := difference(run, other, measure)) is not None
    ]
    if len(compared) < 2:
        return ""
    certain = holm([found.p_value for found in compared]) < 0.05
    ahead = sum(bool(sure) and found.difference > 0 for sure, found in zip(certain, compared, strict=True))
    behind = sum(bool(sure) and found.difference < 0 for sure, found in zip(certain, compared, strict=True))
    return (
        f"Over all {len(compared)} pairs of budget and k it is ahead in {ahead}, behind in {behind} and within noise "
        f"in {len(compared) - ahead - behind} (sign-flip test, Holm's correction, 5 %)."
    )


def _interval(found: PairedDifference, measure: str) -> str:
    low, high = number(found.low, measure), number(found.high, measure)
    return f"difference {number(found.difference, measure)}, 95 % {low} to {high}"


def _verdict(found: PairedDifference) -> str:
    if found.low <= 0 <= found.high:
        return " That is within noise: these queries do not tell the two apart."
    return "" if found.difference > 0 else " It is the worse of the two."


def _mean(run: Run, measure: str) -> float:
    found = estimate(run, measure)
    return found.mean if found else 0.0
