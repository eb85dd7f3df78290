"""The paper's experiments, each by one name: computed from folders of exact scores, drawn from what is stored.

An experiment is a folder: spec.toml (what is run, less where the collections are), results/ (one file per run, or the
arrays of a scatter), the figures, and a README that puts the paper's claim beside what was measured.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from adacur.data import cache_folder
from adacur.errors import EmptyInput, FileFormatError, InputError, UnknownName
from adacur.records import Item, Query
from adacur.replay import Run
from adacur.requirements import require
from adacur.scorers.cross_encoders.checkpoints import json_in
from adacur.spelling import did_you_mean
from adacur_lab.experiments.methods import Asked, method
from adacur_lab.experiments.runner import Failure, evaluate, measured_run
from adacur_lab.experiments.sources import open_testbed, read_records
from adacur_lab.experiments.spec import Spec
from adacur_lab.experiments.testbed import Testbed
from adacur_lab.measures import Spectrum, first_stage_ceiling, predictions, spectrum
from adacur_lab.report import (
    ScatterPanel,
    collection_table,
    cost_table,
    curves,
    decay,
    error_bars,
    latency,
    measure_table,
    panels,
    read_runs,
    save,
    scatter,
)
from adacur_lab.report.measures import JUDGED, error_measures, recall_measures

__all__ = ["EXPERIMENTS", "Experiment", "Reproduced", "Sources", "experiment_names", "reproduce"]

_RESULTS = "results"
_ITEMS_AT_ONCE = 65_536
# The scorer's own seconds are left out: here a look-up takes its place.
_OVERHEAD = tuple(f"seconds.{step}" for step in ("first", "choose", "solve", "predict"))


@dataclass(frozen=True, slots=True)
class Sources:
    """Where exact scores, texts and judgements are: in each a folder per collection."""

    scores: Path
    data: Path

    def collection(self, name: str) -> dict[str, Any] | None:
        """The collection as a spec names it; None where it has no scores.

        Where a second scorer scored the same texts, its folder's meta.json names theirs as "texts".
        """
        scores = (self.scores / name).resolve()
        if not scores.is_dir():
            return None
        data = (self.data / str(json_in(scores, "meta.json").get("texts", name))).resolve()
        texts = {kind: next(iter(sorted(data.glob(f"{file}.jsonl*"))), None) for kind, file in _TEXTS.items()}
        if missing := [_TEXTS[kind] for kind, file in texts.items() if file is None]:
            raise InputError(f"{data} should hold the texts of {name!r}; it lacks {', '.join(missing)}.jsonl.")
        files = {"scores": str(scores)} | {kind: str(file) for kind, file in texts.items()}
        return {"name": name, **files, "qrels": [str(file) for file in sorted(data.glob("qrels*.tsv"))]}


_TEXTS = {"items": "corpus", "queries": "queries"}


@dataclass(frozen=True, slots=True)
class Computed:
    """How many results were made, how many were there before, and which could not be made, in words."""

    made: int = 0
    found: int = 0
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment of the paper: its claim in our words, how it is computed and how it is drawn."""

    claim: str
    compute: Callable[[Path, Sources, bool], Computed]
    draw: Callable[[Path], list[Path]]


@dataclass(frozen=True, slots=True)
class Reproduced:
    """What became of an experiment: the files drawn, the results made and found, and those that could not be made."""

    name: str
    claim: str
    files: tuple[Path, ...]
    made: int = 0
    found: int = 0
    failed: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"files": [str(file) for file in self.files]}


def experiment_names(name: str) -> list[str]:
    """The experiments that a name stands for: "all", or one."""
    if name == "all":
        return list(EXPERIMENTS)
    if name not in EXPERIMENTS:
        known = ["all", *EXPERIMENTS]
        raise UnknownName(f"There is no experiment {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}.")
    return [name]


def reproduce(name: str, folder: str | Path, *, sources: Sources | None = None, progress: bool = True) -> Reproduced:
    """Draw the experiment in `folder`/`name` from its results; with `sources`, make those first that are missing."""
    (name,) = experiment_names(name)
    experiment, here = EXPERIMENTS[name], Path(folder) / name
    computed = Computed() if sources is None else experiment.compute(here, sources, progress)
    return Reproduced(name, experiment.claim, tuple(experiment.draw(here)), **asdict(computed))


def _tables(folder: Path) -> dict[str, Any]:
    file = folder / "spec.toml"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileFormatError(
            f"There is no {file}. Experiments live in the folder lab/reproduction/ of adacur's repository; give "
            "its path: --folder PATH."
        ) from error
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{file} cannot be read: {error}.") from error


def _specs(folder: Path, sources: Sources) -> Iterator[tuple[Spec, dict[str, Any]]]:
    """The spec of each collection that there are scores for, and what spec.toml says beyond it; names the others."""
    tables = _tables(folder)
    names = tables.pop("collections")
    beyond = {key: tables.pop(key) for key in ("panel",) if key in tables}
    found = [collection for name in names if (collection := sources.collection(name))]
    if not found:
        raise EmptyInput(f"{sources.scores} holds the scores of none of {', '.join(names)}.")
    if absent := [name for name in names if name not in {collection["name"] for collection in found}]:
        warnings.warn(
            f"{folder.name}: {sources.scores} holds no scores of {', '.join(absent)}; what is stored of it is kept.",
            stacklevel=2,
        )
    methods = tables.pop("method", [])
    for collection in found:
        # `only` names the collections that a method is run on, where all would take too long.
        own = [
            {key: value for key, value in table.items() if key != "only"}
            for table in methods
            if collection["name"] in table.get("only", names)
        ]
        spec = Spec.from_tables({**tables, "method": own, "collection": collection})
        # Token vectors take gigabytes, so they are kept where models are, and not with the results.
        yield replace(spec, output=folder / _RESULTS, token_vectors=cache_folder() / "token-vectors"), beyond


def _compute_runs(folder: Path, sources: Sources, progress: bool, *, keep: Sequence[str]) -> Computed:
    """Make the runs that are missing; of their measures only those that begin with one of `keep` are stored."""
    total, found = 0, 0
    failed: list[str] = []
    for spec, _ in _specs(folder, sources):
        outcome = evaluate(spec, progress=progress)
        total, found = total + len(outcome.runs), found + outcome.found
        failed += map(_in_words, outcome.failed)
        for stored in outcome.runs:
            kept = {name: values for name, values in stored.run.measures.items() if name.startswith(tuple(keep))}
            if len(kept) < len(stored.run.measures):
                replace(stored.run, measures=kept).save(stored.file)
    return Computed(total - found, found, tuple(failed))


def _in_words(failure: Failure) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in failure.settings.items())
    return f"{failure.collection}, {settings}: {type(failure.error).__name__}: {failure.error}"


def _runs(folder: Path) -> list[Run]:
    order = _tables(folder)["collections"]
    runs, _ = read_runs(folder / _RESULTS)
    return sorted(runs, key=lambda run: order.index(run.collection))


def _draw_runs(folder: Path, *, figures: Mapping[str, Callable[[list[Run]], Any]]) -> list[Path]:
    """The figures by the names of their files, and one table of everything."""
    runs = _runs(folder)
    files = [_save(draw(runs), folder / f"{name}.png") for name, draw in figures.items()]
    recalls = recall_measures(runs)
    measures = [*recalls, JUDGED] if recalls else error_measures(runs)
    tables = [measure_table(panel, measures=measures).to_markdown() for panel in panels(runs)]
    return [*files, _write(folder / "table.md", "\n".join(tables))]


def _save(figure: Any, file: Path) -> Path:
    """A PNG of 256 colours: a third of what matplotlib writes, and looks the same. Figures are most of what is kept."""
    image = require("PIL.Image", extra="report")
    with TemporaryDirectory() as draft:
        (png,) = save(figure, Path(draft) / "figure", kinds=["png"])
        with image.open(png) as drawn:
            drawn.convert("RGB").quantize(256, dither=image.Dither.NONE).save(file, optimize=True)
    return file


def _write(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def _with(runs: Sequence[Run], **wanted: Any) -> list[Run]:
    """The runs that have these settings, or lack them."""
    return [run for run in runs if all(run.settings.get(name, value) == value for name, value in wanted.items())]


def _by_budget(runs: list[Run], **wanted: Any) -> Any:
    chosen = _with(runs, **wanted)
    return curves(chosen, measures=[*recall_measures(chosen), JUDGED])


def _compute_scatter(folder: Path, sources: Sources, progress: bool) -> Computed:
    """Per collection: predictions of all items for its first test query, a row per panel."""
    made = found = 0
    for spec, beyond in _specs(folder, sources):
        (collection,) = spec.collections
        file = folder / _RESULTS / f"{collection.name}.npz"
        testbed = open_testbed(collection, replace(spec, n_queries=1), progress=progress)
        asked = [(panel["title"], _panel_settings(panel)) for panel in beyond["panel"]]
        key = _scatter_key(testbed, asked)
        if file.exists() and _arrays(file).get("key") == key:
            found += 1
            continue
        # Not rounded, as the approximations are: the scorer's top k are told by these.
        exact = testbed.exact_scores[0].astype(np.float32)
        arrays: dict[str, Any] = {"key": key, "exact": exact, "titles": [title for title, _ in asked]}
        for place, (_, settings) in enumerate(asked):
            answers = method(settings["method"]).search(testbed, settings, Asked((1,), predictions=True))
            (hits,) = answers.deepest
            arrays[f"approximate{place}"] = _small(predictions([hits])[0])
            arrays[f"anchors{place}"] = np.concatenate([one.positions for one in hits.trace.rounds]).astype(np.int32)
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(file, **arrays)
        made += 1
    return Computed(made, found)


def _panel_settings(panel: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in panel.items() if name != "title"}
    return {"seed": 0, "k_max": 1, **method(own["method"]).presets, **own}


def _scatter_key(testbed: Testbed, asked: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """A hash of all that the panels depend on: titles, settings, texts and scores."""
    fingerprints = [testbed.fingerprint_with(settings.get("first", "")) for _, settings in asked]
    return hashlib.blake2b(json.dumps([fingerprints, asked], sort_keys=True).encode(), digest_size=8).hexdigest()


def _small(scores: Any) -> Any:
    # A tenth of a logit is finer than a dot and packs well; what float16 cannot hold is drawn on the edge anyway.
    return np.clip(scores, -60_000, 60_000).round(1).astype(np.float16)


def _arrays(file: Path) -> dict[str, Any]:
    try:
        with np.load(file) as stored:
            return dict(stored)
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{file} cannot be read: {error}. Make it anew with --scores and --data.") from error


def _draw_scatter(folder: Path, *, columns: int, one_figure: bool = True) -> list[Path]:
    """A row of panels per collection in one figure, or a figure per collection."""
    tables = _tables(folder)
    shown: dict[str, list[ScatterPanel]] = {}
    for name in tables["collections"]:
        file = folder / _RESULTS / f"{name}.npz"
        if file.exists():
            arrays = _arrays(file)
            shown[name] = [
                ScatterPanel(
                    f"{name}: {title}" if one_figure else str(title),
                    arrays["exact"],
                    arrays[f"approximate{place}"].astype(np.float32),
                    arrays[f"anchors{place}"],
                )
                for place, title in enumerate(arrays["titles"])
            ]
    if not shown:
        raise EmptyInput(f"{folder / _RESULTS} holds no scatter yet. Make it with --scores and --data.")
    if one_figure:
        return [_save(scatter([one for own in shown.values() for one in own], columns=columns), folder / "figure.png")]
    named = [(f"figure-{name}" if place else "figure", own) for place, (name, own) in enumerate(shown.items())]
    return [_save(scatter(own, columns=columns), folder / f"{name}.png") for name, own in named]


def _compute_latency(folder: Path, sources: Sources, progress: bool) -> Computed:
    """Seconds per step on made-up scores of any number of items; looking them up stands in for the scorer."""
    from tqdm import tqdm

    asked = _tables(folder)["latency"]
    made = found = 0
    common = {"method": "adacur", "budget": asked["budget"], "anchors": asked["anchors"], "first": "random"}
    common |= {"first_share": 0.0, "seed": 0, "k_max": 10}
    for n_items in asked["items"]:
        every = {
            folder / _RESULTS / f"{n_items}-items" / f"R{rounds}.json": common | {"rounds": rounds}
            for rounds in asked["rounds"]
        }
        missing = {file: own for file, own in every.items() if not _is_timed(file, own, asked["queries"])}
        found += len(every) - len(missing)
        testbed = _made_up(n_items, asked["anchors"], asked["queries"]) if missing else None
        for file, settings in tqdm(missing.items(), desc=f"{n_items:,} items", unit=" runs", disable=not progress):
            assert testbed is not None
            run, _ = measured_run(testbed, settings, asked=Asked((10,)))
            steps = {name: values for name, values in run.measures.items() if name in _OVERHEAD}
            replace(run, measures=steps).save(file)
            made += 1
    return Computed(made, found)


def _is_timed(file: Path, settings: Mapping[str, Any], n_queries: int) -> bool:
    # Made-up scores follow from their numbers, so that settings and queries say all that a fingerprint would.
    if not file.exists():
        return False
    run = Run.load(file)
    return run.settings == settings and len(run.query_ids) == n_queries


def _made_up(n_items: int, n_anchors: int, n_queries: int, *, rank: int = 64) -> Testbed:
    """Scores of this rank and some noise, kept item by item as an index keeps them: an index of them copies none."""
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((rank, n_anchors + n_queries), dtype=np.float32)
    of_anchors = np.empty((n_items, n_anchors), dtype=np.float32)
    of_tests = np.empty((n_items, n_queries), dtype=np.float32)
    for start in range(0, n_items, _ITEMS_AT_ONCE):
        block = slice(start, min(start + _ITEMS_AT_ONCE, n_items))
        scores = rng.standard_normal((block.stop - start, rank), dtype=np.float32) @ queries
        scores += rng.standard_normal(scores.shape, dtype=np.float32)
        of_anchors[block], of_tests[block] = scores[:, :n_anchors], scores[:, n_anchors:]
    return Testbed(
        name=f"{n_items:,} items",
        items=[Item(str(place), "") for place in range(n_items)],
        anchor_queries=[Query(f"a{place}", "made up") for place in range(n_anchors)],
        test_queries=[Query(f"t{place}", "made up") for place in range(n_queries)],
        anchor_scores=of_anchors.T,
        exact_scores=of_tests.T,
    )


def _draw_latency(folder: Path) -> list[Path]:
    runs, _ = read_runs(folder / _RESULTS)
    runs.sort(key=lambda run: (run.made["items"], run.settings["rounds"]))
    tables = [table.to_markdown() for panel in panels(runs) if (table := cost_table(panel))]
    return [_save(latency(runs), folder / "figure.png"), _write(folder / "table.md", "\n".join(tables))]


def _compute_collections(folder: Path, sources: Sources, progress: bool) -> Computed:
    rows: dict[str, dict[str, Any]] = {}
    for spec, _ in _specs(folder, sources):
        (collection,) = spec.collections
        records, testbed = read_records(collection), open_testbed(collection, spec, progress=progress)
        reached = testbed.first_hits("dense", 100)
        ids, exact = [item.id for item in testbed.items], testbed.exact_scores
        ceiling = first_stage_ceiling(reached, exact, item_ids=ids, k=10, n=100)
        rows[collection.name] = {
            "collection": collection.name,
            "items": len(testbed.items),
            "words per item": int(np.median([len(item.text.split()) for item in testbed.items])),
            "queries": len(records.queries),
            "anchor queries": len(testbed.anchor_queries),
            "test queries": len(testbed.test_queries),
            "judged test queries": sum(query.id in (testbed.qrels or {}) for query in testbed.test_queries),
            "median score": round(float(np.median(exact)), 1),
            "median 10th best": round(float(np.median(np.partition(exact, -10, axis=1)[:, -10])), 1),
            "top 10 within dense 100": round(float(ceiling.mean()), 3),
        }
    file = folder / _RESULTS / "collections.json"
    every = {row["collection"]: row for row in (_rows(file) if file.exists() else [])} | rows
    file.parent.mkdir(exist_ok=True)
    ordered = [every[name] for name in _tables(folder)["collections"] if name in every]
    _write(file, json.dumps(ordered, indent=1) + "\n")
    return Computed(len(rows), 0)


def _compute_spectra(folder: Path, sources: Sources, progress: bool) -> Computed:
    """Singular values of every collection's anchor scores, each item's mean over the queries taken out."""
    file = folder / _RESULTS / "spectra.json"
    every = {row["collection"]: row for row in (_rows(file) if file.exists() else [])}
    made = 0
    for spec, _ in _specs(folder, sources):
        (collection,) = spec.collections
        testbed = open_testbed(collection, spec, progress=progress)
        if every.get(collection.name, {}).get("made_from") == testbed.fingerprint:
            continue
        own = spectrum(testbed.anchor_scores.T, centred=True)
        every[collection.name] = {
            "collection": collection.name,
            "scorer": testbed.scored_by,
            "made_from": testbed.fingerprint,
            "singular_values": [float(f"{value:.4g}") for value in own.singular_values],
        }
        made += 1
    file.parent.mkdir(exist_ok=True)
    ordered = [every[name] for name in _tables(folder)["collections"] if name in every]
    _write(file, json.dumps(ordered) + "\n")
    return Computed(made, len(ordered) - made)


def _draw_spectra(folder: Path) -> list[Path]:
    tables = _tables(folder)
    rows = {row["collection"]: row for row in _rows(folder / _RESULTS / "spectra.json")}
    spectra = {name: Spectrum(np.array(row["singular_values"])) for name, row in rows.items()}
    shown = {
        panel["title"]: {label: spectra[name].singular_values for name, label in panel["lines"].items() if name in rows}
        for panel in tables["panel"]
    }
    table = [
        {
            "scores": name,
            "scorer": rows[name]["scorer"] or "",
            "effective rank": round(own.effective_rank),
            **{f"rank for {share:.0%}": own.rank_for(share) for share in (0.5, 0.9, 0.99)},
        }
        for name, own in spectra.items()
    ]
    figure = _save(decay({title: lines for title, lines in shown.items() if lines}), folder / "figure.png")
    return [
        figure,
        _write(folder / "table.md", collection_table(table, title="Spectra of the anchor scores").to_markdown()),
    ]


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{file} cannot be read: {error}. Make it anew with --scores and --data.") from error
    return rows


def _draw_collections(folder: Path) -> list[Path]:
    rows = _rows(folder / _RESULTS / "collections.json")
    return [_write(folder / "table.md", collection_table(rows).to_markdown())]


EXPERIMENTS: dict[str, Experiment] = {
    "recall-vs-budget": Experiment(
        "At every budget adaptive search finds more of the scorer's best items than one-shot ANNCUR and than "
        "re-ranking the dual encoder that it starts from.",
        partial(_compute_runs, keep=("recall@", JUDGED)),
        partial(
            _draw_runs,
            figures={
                "figure": partial(_by_budget, anchors=500),
                "figure-100-anchors": lambda runs: curves(_with(runs, anchors=100)),
            },
        ),
    ),
    "emb-recall-vs-budget": Experiment(
        "With [EMB] cross-encoders, adaptive search finds more at every budget than one-shot ANNCUR from the same "
        "start, and that more than re-ranking the dual encoder; started from a dual encoder it finds more than "
        "re-ranking one that was distilled from the scorer.",
        partial(_compute_runs, keep=("recall@", JUDGED)),
        partial(_draw_runs, figures={"figure": partial(_by_budget, anchors=500)}),
    ),
    "anchor-scatter": Experiment(
        "With 50 random anchor items the scores of the best items are badly approximated; with 50 anchor items drawn "
        "by their exact scores they are approximated well.",
        _compute_scatter,
        partial(_draw_scatter, columns=3),
    ),
    "approximation-error": Experiment(
        "Anchor items found adaptively, or by an oracle, bring the error on the scorer's best items far below that of "
        "random anchor items, though not the error over all items.",
        partial(_compute_runs, keep=("error.",)),
        partial(_draw_runs, figures={"figure": error_bars}),
    ),
    "recall-vs-rounds": Experiment(
        "Recall grows with the number of rounds and levels off after 5 to 10.",
        partial(_compute_runs, keep=("recall@", JUDGED)),
        partial(_draw_runs, figures={"figure": partial(curves, along="rounds")}),
    ),
    "rounds-scatter": Experiment(
        "The approximation of the best items improves from round to round, and far more than by drawing 200 instead "
        "of 50 anchor items at random.",
        _compute_scatter,
        partial(_draw_scatter, columns=3, one_figure=False),
    ),
    "oracles": Experiment(
        "Anchor items chosen by exact scores find nearly all of the top k, but only because the top k are among them; "
        "some random anchor items beside them help, TopK more than SoftMax.",
        partial(_compute_runs, keep=("recall@", JUDGED)),
        partial(
            _draw_runs,
            figures={
                "figure": lambda runs: curves(_with(runs, epsilon=0.0)),
                "figure-epsilon": lambda runs: curves(_with(runs, budget=200), along="epsilon"),
            },
        ),
    ),
    "oracle-scatter": Experiment(
        "Anchor items by exact scores alone make the scorer's poor items look good; 75 % random ones mend that. With "
        "the top 100 masked, the best items are badly approximated.",
        _compute_scatter,
        partial(_draw_scatter, columns=3, one_figure=False),
    ),
    "topk-vs-softmax": Experiment(
        "Taking the best predicted items in each round finds more than drawing them by softmax.",
        partial(_compute_runs, keep=("recall@", JUDGED)),
        partial(_draw_runs, figures={"figure": curves}),
    ),
    "tfidf": Experiment(
        "From TF-IDF too, adaptive search finds more than ANNCUR from the same anchors, and that more than re-ranking.",
        partial(_compute_runs, keep=("recall@", JUDGED)),
        partial(_draw_runs, figures={"figure": curves}),
    ),
    "multi-vector": Experiment(
        "Re-ranking a multi-vector model can find more than re-ranking the dual encoder; adaptive search from the dual "
        "encoder finds more than both.",
        partial(_compute_runs, keep=("recall@", JUDGED)),
        partial(_draw_runs, figures={"figure": curves}),
    ),
    "latency-vs-rounds": Experiment(
        "The time beside the scorer grows with the number of rounds, and stays small against it up to 100 rounds; the "
        "pseudo-inverse takes most of it.",
        _compute_latency,
        _draw_latency,
    ),
    "spectrum": Experiment(
        "Predicting scores from a few rows and columns rests on their matrix being nearly of low rank; how near it "
        "is, the paper does not say.",
        _compute_spectra,
        _draw_spectra,
    ),
    "collections": Experiment(
        "What the experiments run on: items, anchor queries and test queries of each domain.",
        _compute_collections,
        _draw_collections,
    ),
}
