"""One evaluation: every item is scored once for a few queries, then every method is replayed and stored."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.data import pseudo_queries
from adacur.errors import EmptyInput, InputError, WrongScorer
from adacur.first_stages import Dense, first_stage_named
from adacur.first_stages.encoders import encoder as open_encoder
from adacur.first_stages.joined import SEPARATOR
from adacur.protocols import FirstStage, Scorer
from adacur.records import Item, Query
from adacur.replay.comparison import ALONE, JUDGED, OWN_ORDER, Run
from adacur.replay.material import Material, digest_of, plain_text, read_material
from adacur.replay.measures import can_judge
from adacur.replay.searches import KnownScores, Searches, Way
from adacur.scorers import Cached
from adacur.scorers import scorer as open_scorer
from adacur.search import AnchorIndex
from adacur.search.methods import METHODS, options_of
from adacur.store import AnchorTable, Estimate, build_scores, check_scorer, estimate, is_finished
from adacur.store.progress import Progress
from adacur.store.writing import made_whole

DEFAULT_METHODS = ("gaussian", "adacur", "anncur", "rerank", "exact")
_IN_ONE_ORDER = (ALONE, "exact")
_JUDGED_DEPTH = 10
_ENCODER = "bge-small-en-v1.5"
_SAMPLE_ITEMS, _SAMPLE_QUERIES = 512, 32


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
    anchors: int = 100,
    queries: int = 30,
    items: int | None = None,
    seed: int = 0,
    progress: bool = True,
    on_start: Callable[[Start], None] | None = None,
) -> Evaluation:
    """Compare search methods on a collection, by recall of the scorer's own top k and by judgements.

    - folder: as for `try_collection`, such as a BEIR folder.
    - scorer: a scorer, or what `adacur.scorer` opens.
    - output: the folder for scores and runs; the same call goes on with the scores that are there.
    - methods, budgets, first: every combination is a run. A budget above the number of items is that number. Several
      first stages are also joined, which is where searches start by default, and each is a run alone, with 0 calls.
    - fuse: the first stage's weight in the order that is judged; by default as searches have it: 1 for a reranker (.5
      from BM25 alone), 0 for a function, known scores or a judge. Recall is of the scorer's own order.
    - ks: recall at each of these; by default 1 and 10.
    - encoder: the dual encoder of the first stage "dense".
    - anchors, queries, items: how many to score: all items, or a sample of them that has everything judged relevant,
      for each anchor and test query. Test queries are judged ones where there are any; anchor queries are others, or
      pseudo-queries where too few are left.
    - seed: draws queries and items, and seeds the searches.
    - on_start: called before anything is scored.

    What cannot run is refused before anything is scored; a run that fails later stops no other.
    """
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
    for name, size in (("anchors", anchors), ("queries", queries), ("items", items)):
        if size is not None and size < 1:
            raise InputError(f"{name} must be at least 1; got {size}.")
    needs_anchors = any("anchors" in METHODS[name].needs for name in methods)
    material = read_material(folder, most=queries + anchors * needs_anchors, seed=seed)
    test, anchor_queries, is_pseudo = _split(material, queries, anchors * needs_anchors, seed=seed)
    material = material.cut(items or material.n_items, n_queries=len(test))
    name, n_items = material.name, len(material.items)
    if n_items < material.n_items:
        # Runs on a sample are not comparable with runs on all items.
        name += f"-{n_items}-items"
    ks = sorted(set(ks if ks is not None else (1, min(10, n_items))))
    if min(ks) < 1 or max(ks) > n_items:
        raise InputError(f"k must be from 1 to the number of items, {n_items:,}; got {list(ks)}.")
    scorer, output = open_scorer(scorer), Path(output)
    encoder = open_encoder(encoder or _ENCODER) if "dense" in stages_of else None
    scores = output / "scores" / f"{name}-{digest_of(material.items)}-{_card_digest(scorer)}"
    if on_start is not None:
        every = [*test, *anchor_queries]
        parts = [scores / digest_of(part) for part in (test, anchor_queries) if part]
        cost = None if all(map(is_finished, parts)) else _cost(material, every, scorer=uncached(scorer))
        notes = tuple(_notes(material, budgets, is_pseudo=is_pseudo))
        on_start(Start(name, scorer, n_items, len(test), len(anchor_queries), cost, notes))
    exact = _scored(material, test, scorer=scorer, path=scores, progress=progress)
    known = _scored(material, anchor_queries, scorer=scorer, path=scores, progress=progress)
    kept = kept_first_stages(material.items, stages_of, encoder=encoder, folder=output / "first", progress=progress)
    table = AnchorTable(material.items, tuple(anchor_queries), np.ascontiguousarray(known.T))
    index = AnchorIndex(table, first=kept)
    searches = Searches(
        table,
        test,
        k=max(*ks, _JUDGED_DEPTH if material.qrels else 1),
        stages={name: index.first_stage(name) for name in first if name != "random"},
        scorer=KnownScores(test, material.items, exact.T, card=scorer.card),
        qrels=material.qrels,
        seed=seed,
    )
    runs, files, failed = [], [], []
    for settings in _combinations(methods, budgets, first, n_items):
        said = re.sub(r"[^\w.-]+", "_", "-".join(map(str, settings.values())))
        file = output / "runs" / name / f"{said}.json"
        try:
            weight = 0.0
            if settings["method"] not in _IN_ONE_ORDER:
                usual = index.snapshot.usual_fuse(scorer.card, first=settings["first"])
                weight = usual if fuse is None else fuse
            named, measures = _measured(searches, index, settings, fuse=weight, ks=ks)
            made = {"items": n_items, "scorer": str(replace(scorer.card, source=None)), "adacur": version("adacur")}
            made |= {"pseudo_anchors": is_pseudo} if "anchors" in named else {}
            made["at"] = datetime.now(UTC).isoformat(timespec="seconds")
            ids = tuple(query.id for query in test)
            run = Run(name, settings["method"], named | {"seed": seed}, query_ids=ids, measures=measures, made=made)
            run.save(file)
            runs.append(run)
            files.append(file)
        except Exception as error:
            failed.append((settings, error))
    return Evaluation(tuple(runs), tuple(files), tuple(failed))


def _measured(
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


def _split(
    material: Material, n_test: int, n_anchors: int, *, seed: int
) -> tuple[Sequence[Query], Sequence[Query], bool]:
    """Test and anchor queries, and whether these were cut from the items; no text is in both."""
    test = material.queries[: min(n_test, len(material.qrels) or n_test)]
    left = material.queries[len(test) :][:n_anchors]
    if len(left) == n_anchors:
        return test, left, False
    taken = {plain_text(query.text) for query in test}
    try:
        pseudo = pseudo_queries(list(material.items), n_anchors, seed=seed)
    except InputError:
        if not left:
            raise
        return test, left, False
    # An anchor query with the text of a test query would give the answer away.
    return test, [query for query in pseudo if plain_text(query.text) not in taken], True


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


def _notes(material: Material, budgets: Sequence[int], *, is_pseudo: bool) -> Iterator[str]:
    n_items = len(material.items)
    yield from material.notes
    if is_pseudo:
        yield "The anchor queries are pseudo-queries, cut from the items. Real queries usually give higher recall."
    if n_items < material.n_items:
        yield (
            f"This is a sample of {n_items:,} of the {material.n_items:,} items, which is easier to search: "
            "expect lower numbers, and larger differences between methods, on the whole collection."
        )
    if not material.qrels:
        yield f"No test query is judged (qrels/test.tsv), so {JUDGED} is left out."
    if max(budgets) > n_items:
        yield f"Budgets above the {n_items:,} items are taken as {n_items:,}."


def _cost(material: Material, queries: Sequence[Query], *, scorer: Scorer) -> Estimate:
    """What it costs to score all items for these queries; takes seconds of scoring."""
    items, size = list(material.items), len(material.items) * len(queries)
    return estimate(
        items[:_SAMPLE_ITEMS],
        queries[:_SAMPLE_QUERIES],
        scorer=scorer,
        n_items=len(items),
        n_anchors=len(queries),
        most_calls=max(16, size // 100),
    )


def _scored(material: Material, queries: Sequence[Query], *, scorer: Scorer, path: Path, progress: bool) -> FloatArray:
    """Scores of shape (queries, items), from the folder that keeps them; other queries have another folder."""
    if not queries:
        return np.empty((0, len(material.items)), dtype=np.float32)
    target = path / digest_of(queries)
    target.parent.mkdir(parents=True, exist_ok=True)
    was_finished = is_finished(target)
    try:
        with Progress(progress and not was_finished) as show:
            folder = build_scores(material.items, queries, scorer=scorer, path=target, progress=show)
        if was_finished:
            check_scorer(folder, scorer)
    except WrongScorer as error:
        raise WrongScorer(f"{error} Each scorer needs a folder for its results: choose another output (-o).") from error
    return np.ascontiguousarray(folder.matrix.T)


def kept_first_stages(
    items: Iterable[Item], names: Iterable[str], *, encoder: Any, folder: Path, progress: bool
) -> dict[str, FirstStage]:
    """The first stages by name; vectors are kept in the folder, since encoding takes long."""
    items = list(items)
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
