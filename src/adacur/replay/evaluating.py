"""One evaluation: every item is scored once for a few queries, then every method is replayed and stored."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.data import JudgedCollection
from adacur.errors import EmptyInput, InputError, WrongScorer
from adacur.first_stages import Dense, first_stage_named
from adacur.first_stages.encoders import encoder as open_encoder
from adacur.first_stages.joined import SEPARATOR
from adacur.protocols import FirstStage, Scorer
from adacur.records import Item, ItemList, Query
from adacur.replay.comparison import ALONE, JUDGED, OWN_ORDER
from adacur.replay.judged_collection import (
    Split,
    choose_sizes,
    digest_of,
    missing_items,
    read_collection,
    sample,
    scoring_cost,
    split,
)
from adacur.replay.known import KnownScores
from adacur.replay.measures import can_judge, kth_best
from adacur.replay.runs import Run
from adacur.replay.searches import Searches, Way
from adacur.requirements import install_command
from adacur.scorers import Cached
from adacur.scorers import scorer as open_scorer
from adacur.search import AnchorIndex
from adacur.search.methods import METHODS, options_of
from adacur.store import AnchorTable, Estimate, build_scores, check_scorer, is_finished
from adacur.store.progress import ScoringBar
from adacur.store.writing import made_whole

DEFAULT_METHODS = ("gaussian", "adacur", "anncur", "rerank", "exact")
_IN_ONE_ORDER = (ALONE, "exact")
_JUDGED_DEPTH = 10
_ENCODER = "bge-small-en-v1.5"


@dataclass(frozen=True, slots=True)
class Start:
    """What is about to be evaluated; `cost` is None where everything is scored already.

    `notes` say, in a sentence each, what does not fit the collection.
    """

    collection: str
    scorer: Scorer
    n_items: int
    n_test: int
    n_anchors: int
    pseudo_anchors: bool
    cost: Estimate | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The runs, the files that hold them, and which failed: settings and the error."""

    runs: tuple[Run, ...]
    files: tuple[Path, ...]
    failed: tuple[tuple[Mapping[str, Any], Exception], ...] = ()


def evaluate(
    folder: str | Path,
    *,
    scorer: Any,
    output: str | Path,
    methods: Sequence[str] = DEFAULT_METHODS,
    budgets: Sequence[int] = (25, 50, 100),
    ks: Sequence[int] | None = None,
    first: Sequence[str] = ("bm25",),
    fuse: float | None = None,
    encoder: Any = None,
    anchors: int | None = None,
    queries: int | None = None,
    items: int | None = None,
    minutes: float = 5.0,
    seed: int = 0,
    progress: bool = True,
    on_start: Callable[[Start], None] | None = None,
) -> Evaluation:
    """Compare search methods on a BEIR folder, by recall of the scorer's own top k and by judgements.

    - scorer: a scorer, or what `adacur.scorer` opens.
    - output: the folder for scores and runs; the same call goes on with the scores that are there.
    - methods, budgets, first: every combination is a run. A budget above the number of items is that number. Several
      first stages are also joined, which is where searches start by default, and each is a run alone, with 0 calls.
    - fuse: the first stage's weight in the order that is judged; by default as searches have it: 1 for a reranker (.5
      beside BM25 alone), 0 for a function, known scores or a judge. Recall is of the scorer's own order.
    - ks: recall at each of these; by default 1 and 10.
    - encoder: the dual encoder of the first stage "dense".
    - anchors, queries, items: sizes; those that are not given follow from `minutes`, the time that scoring may take.
    - seed: splits the queries, draws the sample of items, and seeds the searches.
    - on_start: called before anything is scored.

    What cannot run is refused before anything is scored; a run that fails later stops no other.
    """
    collection = read_collection(folder)
    if not methods or not first or not budgets:
        raise EmptyInput(f"Give at least one method ({', '.join(METHODS)}), first stage and budget.")
    for name in methods:
        options_of(name)
    first = _with_joined(first)
    # "bm25+dense" joins two, each of which is built once.
    stages_of = dict.fromkeys(part for name in first for part in name.split(SEPARATOR))
    for name in stages_of:
        if name != "random":
            first_stage_named(name)
    scorer = open_scorer(scorer)
    encoder = open_encoder(encoder or _ENCODER) if "dense" in stages_of else None
    output = Path(output)
    given = {"anchors": anchors, "queries": queries, "items": items}
    sizes = choose_sizes(collection, folder, output / "sizes.json", scorer=uncached(scorer), minutes=minutes, **given)
    n_all = len(collection.items)
    collection = sample(collection, sizes.items, n_test=sizes.queries, seed=seed)
    n_anchors = sizes.anchors if any("anchors" in METHODS[name].needs for name in methods) else 0
    queries_of = split(collection, n_anchors=n_anchors, n_test=sizes.queries, seed=seed)
    ks = sorted(set(ks if ks is not None else (1, min(10, len(collection.items)))))
    if min(ks) < 1 or max(ks) > len(collection.items):
        raise InputError(f"k must be from 1 to the number of items, {len(collection.items):,}; got {list(ks)}.")
    scores = output / "scores" / f"{collection.name}-{digest_of(collection.items)}-{_card_digest(scorer)}"
    if on_start is not None:
        notes = _notes(collection, queries_of.test, budgets, n_all)
        on_start(_start(collection, queries_of, scorer, scores, notes))
    output.mkdir(parents=True, exist_ok=True)
    # An interrupted evaluation goes on with the same queries.
    (output / "sizes.json").write_text(json.dumps(asdict(sizes)) + "\n", encoding="utf-8")
    exact = _scored(collection, queries_of.test, scorer=scorer, path=scores, progress=progress)
    known = _scored(collection, queries_of.anchors, scorer=scorer, path=scores, progress=progress)
    stages = kept_first_stages(collection.items, stages_of, encoder=encoder, folder=output / "first", progress=progress)
    held = ItemList(collection.items)
    table = AnchorTable(held, tuple(queries_of.anchors), np.ascontiguousarray(known.T))
    index = AnchorIndex(table, first=stages)
    judged = {query.id: grades for query in queries_of.test if (grades := collection.qrels.get(query.id))}
    searches = Searches(
        table,
        queries_of.test,
        k=max(*ks, _JUDGED_DEPTH if judged else 1),
        stages={name: index.first_stage(name) for name in first if name != "random"},
        scorer=KnownScores(queries_of.test, held, exact.T),
        least=lambda k: kth_best(exact, k),
        qrels=judged,
        seed=seed,
    )
    made = {
        "items": len(collection.items),
        "scorer": str(replace(scorer.card, source=None)),
        "pseudo_anchors": queries_of.pseudo,
    }
    runs, files, failed = [], [], []
    for settings in _combinations(methods, budgets, first, len(collection.items)):
        name = re.sub(r"[^\w.-]+", "_", "-".join(map(str, settings.values())))
        file = output / "runs" / collection.name / f"{name}.json"
        try:
            weight = 0.0
            if settings["method"] not in _IN_ONE_ORDER:
                usual = index.snapshot.usual_fuse(scorer.card, first=settings["first"])
                weight = usual if fuse is None else fuse
            named, measures = _run(searches, index, settings, fuse=weight, ks=ks)
            run = Run(
                collection=collection.name,
                method=settings["method"],
                settings=named | {"seed": seed},
                query_ids=tuple(query.id for query in queries_of.test),
                measures=measures,
                made=made | {"adacur": version("adacur"), "at": datetime.now(UTC).isoformat(timespec="seconds")},
            )
            run.save(file)
            runs.append(run)
            files.append(file)
        except Exception as error:
            failed.append((settings, error))
    return Evaluation(tuple(runs), tuple(files), tuple(failed))


def _run(
    searches: Searches, index: AnchorIndex, settings: Mapping[str, Any], *, fuse: float, ks: Sequence[int]
) -> tuple[dict[str, Any], dict[str, FloatArray]]:
    """What these settings come to, and the measures of the test queries searched with them."""
    way = Way(settings["method"], settings.get("first"), settings.get("budget", 0), fuse)
    hits = searches.scored(way)
    paid = len(index.anchor_queries) if "anchors" in METHODS[settings["method"]].needs else 0
    measures = {f"recall@{k}": searches.recalls(way, k) for k in ks}
    if searches.qrels and can_judge():
        measures[JUDGED] = searches.quality(way)
        measures |= {} if way.method == ALONE else {OWN_ORDER: searches.quality(way._replace(fuse=0.0))}
    measures["calls"] = np.array([float(one.trace.calls) for one in hits])
    measures["index_calls"] = np.full(len(hits), float(paid * len(index)))
    rounds = max(len(one.trace.rounds) for one in hits)
    return {**settings, "rounds": rounds, **({"anchors": paid} if paid else {}), "fuse": fuse}, measures


def _with_joined(first: Sequence[str]) -> list[str]:
    """First stages, and all that are named one by one joined."""
    single = [name for name in dict.fromkeys(first) if name != "random" and SEPARATOR not in name]
    is_there = any(sorted(name.split(SEPARATOR)) == sorted(single) for name in first)
    return [*dict.fromkeys(first), *([] if is_there or len(single) < 2 else [SEPARATOR.join(single)])]


def _combinations(
    methods: Sequence[str], budgets: Sequence[int], first: Sequence[str], n_items: int
) -> Iterator[dict[str, Any]]:
    affordable = sorted({min(budget, n_items) for budget in budgets})
    # What nothing is paid for stands first, asked for or not: every other run must be better.
    yield from ({"method": ALONE, "budget": 0, "first": stage} for stage in dict.fromkeys(first) if stage != "random")
    for budget, method, stage in product(affordable, dict.fromkeys(methods), dict.fromkeys(first)):
        if method not in _IN_ONE_ORDER:
            yield {"method": method, "budget": budget, "first": stage}
    if "exact" in methods:
        yield {"method": "exact"}


def _start(
    collection: JudgedCollection, queries_of: Split, scorer: Scorer, scores: Path, notes: Iterable[str]
) -> Start:
    every = [*queries_of.test, *queries_of.anchors]
    parts = (queries_of.test, queries_of.anchors)
    scored = all(is_finished(scores / digest_of(queries)) for queries in parts if queries)
    return Start(
        collection=collection.name,
        scorer=scorer,
        n_items=len(collection.items),
        n_test=len(queries_of.test),
        n_anchors=len(queries_of.anchors),
        pseudo_anchors=queries_of.pseudo,
        cost=None if scored else scoring_cost(collection, every, scorer=uncached(scorer), n_queries=len(every)),
        notes=tuple(notes),
    )


def _notes(collection: JudgedCollection, test: Sequence[Query], budgets: Sequence[int], n_all: int) -> Iterator[str]:
    n_items = len(collection.items)
    if n_items < n_all:
        yield (
            f"This is a sample of {n_items:,} of the {n_all:,} items, which is easier to search: "
            "expect lower numbers, and larger differences between methods, on the whole collection."
        )
    if not any(collection.qrels.get(query.id) for query in test):
        yield f"No test query is judged (qrels/test.tsv), so {JUDGED} is left out."
    elif not can_judge():
        yield f"ir_measures is not installed, so {JUDGED} is left out. To have it: {install_command('evaluation')}"
    if missing := missing_items(collection):
        yield f"{len(missing):,} judged items cannot be found (e.g. {missing[0]!r}): not in the corpus, or no text."
    if max(budgets) > n_items:
        yield f"Budgets above the {n_items:,} items are taken as {n_items:,}."


def _scored(
    collection: JudgedCollection, queries: Sequence[Query], *, scorer: Scorer, path: Path, progress: bool
) -> FloatArray:
    """Scores of shape (queries, items), from the folder that keeps them; other queries have another folder."""
    if not queries:
        return np.empty((0, len(collection.items)), dtype=np.float32)
    target = path / digest_of(queries)
    target.parent.mkdir(parents=True, exist_ok=True)
    was_finished = is_finished(target)
    try:
        with ScoringBar(progress and not was_finished) as show:
            folder = build_scores(collection.items, queries, scorer=scorer, path=target, progress=show)
        if was_finished:
            check_scorer(folder, scorer)
    except WrongScorer as error:
        raise WrongScorer(f"{error} Each scorer needs a folder for its results: choose another output (-o).") from error
    return np.ascontiguousarray(folder.matrix.T)


def kept_first_stages(
    items: Sequence[Item], names: Iterable[str], *, encoder: Any, folder: Path, progress: bool
) -> dict[str, FirstStage]:
    """The first stages by name; vectors are kept in the folder, since encoding takes long."""
    stages: dict[str, FirstStage] = {
        name: first_stage_named(name).build(items) for name in names if name not in ("dense", "random")
    }
    if "dense" in names:
        target = folder / f"dense-{digest_of(items)}-{_card_digest(encoder)}"
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with made_whole(target) as unfinished:
                Dense.build(items, encoder=encoder, progress=progress).save(unfinished)
        stages["dense"] = Dense.load(target, encoder=encoder)
    return stages


def uncached(scorer: Scorer) -> Scorer:
    """The scorer to be timed: what a cache knows would look fast."""
    return scorer.scorer if isinstance(scorer, Cached) else scorer


def _card_digest(model: Any) -> str:
    return hashlib.blake2b(repr(replace(model.card, source=None)).encode(), digest_size=4).hexdigest()
