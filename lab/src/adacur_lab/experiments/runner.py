"""From a spec to runs: every combination once, each stored as soon as it is measured, none run twice."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from adacur import __version__
from adacur.arrays import FloatArray
from adacur.errors import InputError
from adacur.replay import Run, judged_quality, top_k_recall
from adacur.requirements import install_command, require
from adacur_lab.experiments.methods import Answers, Asked, method
from adacur_lab.experiments.sources import OnCost, OnStart, prepared, scored_testbed
from adacur_lab.experiments.spec import MethodSpec, Spec
from adacur_lab.experiments.store import run_name
from adacur_lab.experiments.testbed import Testbed
from adacur_lab.experiments.trec import write_trec
from adacur_lab.measures import (
    approximation_error,
    first_stage_ceiling,
    phantom_share,
    predictions,
    search_cost,
    strict_recall,
)

__all__ = ["Failure", "Outcome", "StoredRun", "evaluate", "measured_run", "run_settings"]

_JUDGED = ("nDCG@10",)
_JUDGED_DEPTH = 10
# An item among the first stage's best hundred has a second witness beside the scorer.
_VOUCHED_DEPTH = 100


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run and the file it is kept in."""

    file: Path
    run: Run


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that could not be made, and why."""

    collection: str
    settings: Mapping[str, Any]
    error: Exception


@dataclass(frozen=True, slots=True)
class Outcome:
    """All runs of a spec, in its order; `found` of them were taken as they were stored.

    `searched_again` were stored too, but without the hits that a TREC file takes.
    """

    runs: tuple[StoredRun, ...]
    failed: tuple[Failure, ...]
    found: int
    searched_again: int = 0


def evaluate(
    spec: Spec,
    *,
    trec: bool = False,
    progress: bool = True,
    on_start: OnStart | None = None,
    on_cost: OnCost | None = None,
) -> Outcome:
    """Make the runs of a spec that are not stored yet, one file each; a failing run does not stop the others.

    What a spec asks for and cannot have is refused before anything is scored. With `trec` each run's hits are kept
    too, as trec/COLLECTION/NAME.run. `on_start` is told with what a collection is evaluated, `on_cost` what scoring it
    will cost, before it begins.
    """
    from tqdm import tqdm

    runs: list[StoredRun] = []
    failed: list[Failure] = []
    found = searched_again = 0
    asked = Asked(spec.ks, predictions=spec.errors, judged=find_spec("ir_measures") is not None)
    sources = prepared(spec)
    if not asked.judged and any(source.records.qrels for source in sources):
        warnings.warn(
            f"There are judgements, but ir_measures is not installed, so {', '.join(_JUDGED)} is left out. Install it "
            f"with: {install_command('evaluation')}",
            stacklevel=2,
        )
    for source in sources:
        testbed = scored_testbed(source, spec, on_start=on_start, on_cost=on_cost, progress=progress)
        combinations = list(run_settings(spec, testbed))
        for settings in tqdm(combinations, desc=testbed.name, unit=" runs", disable=not progress):
            first = settings.get("first", settings["method"])
            name = run_name(settings, fingerprint=testbed.fingerprint_with(first), measures=_wanted(asked))
            file = spec.output / "runs" / testbed.name / f"{name}.json"
            hits_file = spec.output / "trec" / testbed.name / f"{name}.run"
            if (kept := _kept(file, asked)) is not None and (hits_file.exists() or not trec):
                runs.append(StoredRun(file, kept))
                found += 1
                continue
            try:
                run, answers = measured_run(testbed, settings, asked=asked)
                if trec:
                    write_trec(hits_file, answers.deepest, tag=name)
                # The record comes last: a run that is there is whole.
                run.save(file)
                runs.append(StoredRun(file, Run.load(file)))
                searched_again += kept is not None
            except Exception as error:
                failed.append(Failure(testbed.name, settings, error))
    return Outcome(tuple(runs), tuple(failed), found, searched_again)


def _kept(file: Path, asked: Asked) -> Run | None:
    """A stored run; None where there is none, or where it lacks what can be measured by now."""
    if not file.exists():
        return None
    run = Run.load(file)
    return None if asked.judged and run.made.get("left_out") else run


def run_settings(spec: Spec, testbed: Testbed) -> Iterator[dict[str, Any]]:
    """The settings of every run of a spec on a testbed, each once, sorted by number of anchors.

    Settings that do not matter to a method are left out: re-ranking, say, is run once for all numbers of anchors. More
    calls than items are as many as items.
    """
    most = len(testbed.anchor_queries)
    common: dict[str, Sequence[Any]] = {
        "anchors": sorted({min(n, most) for n in spec.anchors.numbers or (most,)}),
        "budget": spec.budgets,
        "rounds": spec.rounds,
        "first": spec.first or testbed.first_stages[:1],
        "pool": (spec.pool,),
        "seed": spec.seeds,
    }
    depth = max(*spec.ks, _JUDGED_DEPTH if testbed.qrels else 1)
    every: dict[str, dict[str, Any]] = {}
    for own in spec.methods:
        for settings in _combinations(own, common, depth=depth, most_anchors=most, n_items=len(testbed.items)):
            every.setdefault(repr(settings), settings)
    # An index is made per number of anchors.
    return iter(sorted(every.values(), key=lambda settings: settings.get("anchors", 0)))


def measured_run(testbed: Testbed, settings: Mapping[str, Any], *, asked: Asked) -> tuple[Run, Answers]:
    """Search with these settings and measure all there is to measure."""
    started = time.perf_counter()
    answers = method(settings["method"]).search(testbed, settings, asked)
    seconds = time.perf_counter() - started
    run = Run(
        collection=testbed.name,
        method=settings["method"],
        settings=settings,
        query_ids=tuple(query.id for query in testbed.test_queries),
        measures=_measures(testbed, settings, answers, asked=asked),
        made={
            "adacur": __version__,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "items": len(testbed.items),
            "scorer": testbed.scored_by,
            "embeddings": testbed.item_embeddings is not None,
            **_about_anchors(testbed, settings),
            **({"left_out": list(_JUDGED)} if testbed.qrels and not asked.judged else {}),
            **answers.chosen,
        },
    )
    return run, answers


def _about_anchors(testbed: Testbed, settings: Mapping[str, Any]) -> dict[str, Any]:
    has_any = "anchors" in settings and testbed.pseudo_anchors is not None
    return {"pseudo_anchors": testbed.pseudo_anchors} if has_any else {}


def _combinations(
    own: MethodSpec, common: Mapping[str, Sequence[Any]], *, depth: int, most_anchors: int, n_items: int
) -> Iterator[dict[str, Any]]:
    what = method(own.name)
    choices = dict(common) | {name: (value,) for name, value in what.presets.items()}
    choices |= {name: value if isinstance(value, list) else (value,) for name, value in own.options.items()}
    names = [name for name in what.takes if name in choices]
    for values in itertools.product(*(choices[name] for name in names)):
        settings: dict[str, Any] = {"method": own.name}
        settings |= {name: value for name, value in zip(names, values, strict=True) if value is not None}
        if "budget" in settings:
            settings["budget"] = min(settings["budget"], n_items)
        budget = settings.get("budget", depth)
        if "rounds" in settings:
            settings["rounds"] = min(settings["rounds"], budget)
        if "anchors" in settings:
            settings["anchors"] = min(settings["anchors"], most_anchors)
        yield settings | {"k_max": min(depth, budget)}


def _wanted(asked: Asked) -> list[str]:
    names = [f"{name}@{k}" for name in ("recall", "strict_recall", "ceiling", "phantom") for k in asked.ks]
    return [*names, *_JUDGED, *(["error"] if asked.predictions else [])]


def _measures(
    testbed: Testbed, settings: Mapping[str, Any], answers: Answers, *, asked: Asked
) -> dict[str, FloatArray]:
    calls_scorer = method(settings["method"]).calls_scorer
    measures: dict[str, FloatArray] = {}
    ids = [item.id for item in testbed.items]
    exact = testbed.exact_scores
    first = settings.get("first", settings["method"] if not calls_scorer else None)
    judged = testbed.qrels if any((testbed.qrels or {}).get(query.id) for query in testbed.test_queries) else None
    if not calls_scorer and judged is None:
        raise InputError(f"{settings['method']!r} calls no scorer, so it is measured by judgements; give qrels.")
    if not calls_scorer:
        require("ir_measures", extra="evaluation")
    for k, hits in answers.by_k.items():
        if calls_scorer:
            measures[f"recall@{k}"] = top_k_recall(hits, exact, k=k)
            measures[f"strict_recall@{k}"] = strict_recall(hits, exact, k=k, ids=ids)
        if first is not None and first != "random":
            n = settings.get("pool") or settings.get("budget") or settings["k_max"]
            reached = testbed.first_hits(first, max(n, _VOUCHED_DEPTH))
            measures[f"ceiling@{k}"] = first_stage_ceiling(reached, exact, item_ids=ids, k=k, n=n)
        # One witness for all methods, whatever they start from.
        witness = testbed.first_stages[0]
        if judged is not None and witness != "random":
            reached = testbed.first_hits(witness, _VOUCHED_DEPTH)
            measures[f"phantom@{k}"] = phantom_share(hits, reached, judged, k=k, n=_VOUCHED_DEPTH)
    if judged is not None and asked.judged:
        at_ten = answers.by_k.get(_JUDGED_DEPTH, answers.deepest)
        measures |= judged_quality(at_ten, judged, measures=_JUDGED)
    if any(hits.trace.approximate_scores is not None for hits in answers.deepest):
        measures |= approximation_error(predictions(answers.deepest), exact, top=tuple(answers.by_k))
    index_calls = settings.get("anchors", 0) * len(testbed.items)
    measures |= search_cost(answers.deepest, index_calls=index_calls)
    return {name: np.asarray(values, dtype=np.float64) for name, values in measures.items()}
