"""What the numbers say, in plain words, also where they say nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from adacur.evaluation import PairedDifference, Run, bootstrap_interval
from adacur.report.differences import difference, is_ahead, is_behind, is_bound, rival_of
from adacur.report.lines import Panel, estimate, labels, setting, without_sweeps
from adacur.report.measures import JUDGED, number, recall_k, recall_measures

__all__ = ["FEWEST_TO_TELL", "summary", "worth"]

# Fewer queries tell no usual difference from none.
FEWEST_TO_TELL = 20
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
    budget, measure, there = _told_of(panel, budgets)
    contest = [run for run in there if run.method != rival and not is_bound(run.method)]
    names = {run: _in_prose(name) for run, name in labels(panel.runs).items()}
    if not contest:
        return _alone(there, names, measure, budget)
    best = _best(contest, measure)
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
    strongest = _best([run for run in there if run.method == rival], measure)
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
    parts += [
        _everywhere(run, names, panel, rival=rival, measures=[*recalls, JUDGED], again=run is not best)
        for run in (best, *usual[:1])
    ]
    return " ".join(part for part in parts if part)


def worth(panel: Panel, *, rival: str = "rerank") -> str:
    """Whether an index found more than the strongest rival, in a sentence or two; nothing where none was run.

    The line that finds most is compared with the rival's that finds most, over all budgets and k together.
    """
    panel = replace(panel, runs=tuple(without_sweeps(panel.runs)))
    measures = recall_measures(panel.runs)
    names = {run: _in_prose(name) for run, name in labels(panel.runs).items()}
    lines: dict[str, dict[int, Run]] = {}
    for run in panel.runs:
        budget = setting(run, "budget")
        if budget is not None and not is_bound(run.method) and any(estimate(run, measure) for measure in measures):
            lines.setdefault(names[run], {})[budget] = run
    rivals = {name: line for name, line in lines.items() if _method(line) == rival}
    contest = {name: line for name, line in lines.items() if name not in rivals}
    budgets = {budget for line in rivals.values() for budget in line}
    budgets &= {budget for line in contest.values() for budget in line}
    if not budgets:
        return ""

    def finds(name: str) -> tuple[int, float, bool]:
        own = [run for budget, run in lines[name].items() if budget in budgets]
        mean = np.mean([_mean(run, measure) for run in own for measure in measures]) if own else 0.0
        return len(own), round(float(mean), 9), _method(lines[name]) == _DEFAULT_METHOD

    best, strongest = max(contest, key=finds), max(rivals, key=finds)
    pairs = [
        (lines[best][budget], lines[strongest][budget])
        for budget in sorted(budgets)
        if budget in lines[best] and budget in lines[strongest]
    ]
    found = [one for pair in pairs for measure in measures if (one := difference(*pair, measure)) is not None]
    together = _together(pairs, measures)
    if together is None:
        return ""
    mean, low, high, n_queries = together
    asked = "Is an index worth it?"
    if n_queries < FEWEST_TO_TELL:
        return f"{asked} {n_queries} queries cannot tell; use at least {FEWEST_TO_TELL} (--queries)."
    ahead, behind = sum(map(is_ahead, found)), sum(map(is_behind, found))
    seen = (
        f"{best} against {strongest}, the strongest {rival}, finds {number(mean, 'recall', signed=True)} "
        f"({_edge(low, 'recall')} to {_edge(high, 'recall')}) of the top k, the mean over {len(found)} pairs of budget "
        f"and k on {n_queries} queries"
    )
    all_budgets = sorted({budget for line in lines.values() for budget in line})
    surely = low > 0 and not behind and 2 * ahead > len(found)
    if surely and _is_ahead_where_told(panel, all_budgets, rival):
        said = f"{asked} Yes, by recall: {seen}."
    elif high <= 0:
        said = f"{asked} No: {rival} finds as much or more. {seen}."
    elif ahead or behind:
        said = f"{asked} It depends on budget and k: ahead in {ahead}, behind in {behind} of {len(found)}. {seen}."
    else:
        said = f"{asked} {n_queries} queries cannot tell; use more (--queries). {seen}."
    judged = _together(pairs, [JUDGED])
    if judged is None:
        return said
    mean, low, high, n_queries = judged
    moves = (
        "rises" if low > 0 else "falls" if high < 0 else "does not rise for certain" if mean > 0 else "does not rise"
    )
    return (
        f"{said} {JUDGED} {moves}: {number(mean, JUDGED, signed=True)} ({_edge(low, JUDGED)} to {_edge(high, JUDGED)}) "
        f"on {n_queries} judged queries."
    )


def _method(line: Mapping[int, Run]) -> str:
    return next(iter(line.values())).method


def _together(pairs: Sequence[tuple[Run, Run]], measures: Sequence[str]) -> tuple[float, float, float, int] | None:
    """The mean difference over all pairs and measures, its 95 % interval, and the queries: one value of each query."""
    by_query: dict[str, list[float]] = {}
    for left, right in pairs:
        for measure in measures:
            if measure not in left.measures or measure not in right.measures:
                continue
            theirs = dict(zip(right.query_ids, right.measures[measure], strict=True))
            for id_, value in zip(left.query_ids, left.measures[measure], strict=True):
                by_query.setdefault(id_, []).append(float(value - theirs.get(id_, np.nan)))
    values = np.array([np.mean(own) for own in by_query.values()])
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    low, high = bootstrap_interval(values)
    # What is zero but for the last bits of a sum must not lie above or below it.
    return round(float(values.mean()), 9), round(low, 9), round(high, 9), len(values)


def _told_of(panel: Panel, budgets: Sequence[int]) -> tuple[int, str, list[Run]]:
    """The budget and the recall that the words are about, and the runs that have both."""
    budget = _telling_budget(panel, budgets)
    measure = min(recall_measures(panel.runs), key=lambda name: abs((recall_k(name) or 0) - _USUAL_K))
    return budget, measure, [r for r in panel.runs if setting(r, "budget") == budget and estimate(r, measure)]


def _best(runs: Sequence[Run], measure: str) -> Run:
    """The run that finds most; equal means are told of the default method."""
    return max(runs, key=lambda run: (round(_mean(run, measure), 9), run.method == _DEFAULT_METHOD))


def _is_ahead_where_told(panel: Panel, budgets: Sequence[int], rival: str) -> bool:
    """Whether the best is ahead of the strongest rival at the budget that the summary is about."""
    _, measure, there = _told_of(panel, budgets)
    rivals = [run for run in there if run.method == rival]
    contest = [run for run in there if run.method != rival and not is_bound(run.method)]
    if not rivals or not contest:
        return True
    found = difference(_best(contest, measure), _best(rivals, measure), measure)
    return found is None or is_ahead(found)


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


def _everywhere(
    best: Run, names: dict[Run, str], panel: Panel, *, rival: str, measures: Sequence[str], again: bool
) -> str:
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
        f"{names[best]} is ahead of {against} in {ahead}, behind in {len(behind)} and not told apart in "
        f"{len(compared) - ahead - len(behind)}"
    )
    said = f"{said}." if again else f"Over all {len(compared)} comparisons (each budget by {_listed(measures)}) {said}."
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
    if found.low == found.high == 0:
        return "no difference"
    low, high = _edge(found.low, measure), _edge(found.high, measure)
    return f"difference {number(found.difference, measure)}, 95 % {low} to {high}"


def _edge(value: float, measure: str) -> str:
    """A bound; where its digits say 0 and it is not, the verdict rests on the side."""
    shown = number(value, measure)
    if value == 0 or shown != number(0, measure):
        return shown
    return "just above 0" if value > 0 else "just below 0"


def _verdict(found: PairedDifference, name: str) -> str:
    if found.low == found.high == 0:
        return ""
    if not is_ahead(found) and not is_behind(found):
        return " That is within noise."
    return "" if found.difference > 0 else f" {name} is the worse of the two."


def _mean(run: Run, measure: str) -> float:
    found = estimate(run, measure)
    return found.mean if found else 0.0
