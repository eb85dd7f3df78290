"""Trainings described by names and plain values, as a command line or a configuration file gives them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adacur.core.errors import InputError, UnknownName, UnknownOption
from adacur.core.extras import require
from adacur.core.protocols import Items
from adacur.core.records import Item, ItemList, Query
from adacur.core.spelling import did_you_mean
from adacur.data import (
    JudgedCollection,
    fetch,
    from_ir_datasets,
    mondo,
    names,
    read_beir,
    read_items,
    read_queries,
    split_queries,
)
from adacur.first_stages import BM25, Dense
from adacur.first_stages.opening import encoder
from adacur.scorers import scorer
from adacur.search import load
from adacur.training import dual_encoder
from adacur.training.cross_encoder import train_cross_encoder
from adacur.training.run_folder import Trained, check_may_write
from adacur.training.settings import TowerOptions, TrainingSettings
from adacur.training.teacher_scores import TeacherScores

__all__ = ["KINDS", "options_of", "train"]

_log = logging.getLogger("adacur.training")

KINDS: dict[str, Callable[..., Trained]] = {
    "cross-encoder": train_cross_encoder,
    "dual-encoder": dual_encoder.train_dual_encoder,
    "distill": dual_encoder.distill,
}
_DEFAULT_BASE = "all-MiniLM-L6-v2"
_DEFAULT_ENCODER = "bge-small-en-v1.5"
_SETTINGS = [field.name for field in fields(TrainingSettings)]
_TOWERS = [field.name for field in fields(TowerOptions)]
_OBJECTS = ("settings", "teachers", "towers", "progress")
_OTHERS = {"cross-encoder": ["teacher"], "dual-encoder": _TOWERS}
_OTHERS["distill"] = [*_TOWERS, "teacher", "first", "queries", "top"]


def options_of(kind: str) -> list[str]:
    """The options that a kind of training takes: those of its function, of its settings, and of the data."""
    parameters = inspect.signature(KINDS[kind]).parameters.values()
    of_function = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.name not in _OBJECTS]
    return [*of_function, *_SETTINGS, *_OTHERS[kind], "split", "number"]


def train(kind: str, data: str, out: Path, options: Mapping[str, Any], *, progress: bool = True) -> Trained:
    """Train a model of a kind in `KINDS` on a collection by name, or distill an index; a killed run continues.

    `data` is a BEIR folder, 'mondo' or irds:ID of ir_datasets; to distill also an index or, with `queries`, any items
    that `adacur.build` takes. `options` are those in `options_of(kind)`: `base` is a name of the catalogue, a folder or
    a hub name; `first` is "bm25", "dense" or a dual encoder's folder or hub name; `teacher` is a scorer's name, or a
    list of them; `split` names the judgements (by default train), and `number` takes that many queries at random.
    """
    if unknown := next((name for name in options if name not in options_of(kind)), None):
        known = options_of(kind)
        raise UnknownOption(
            f"{kind} does not take {unknown!r}.{did_you_mean(unknown, known)} It takes: {', '.join(known)}."
        )
    for module in ("torch", "transformers", "accelerate", "sentence_transformers"):
        # Looked for, not imported: that takes seconds, and something else may be wrong.
        if find_spec(module) is None:
            require(module, extra="training")
    check_may_write(out)
    given = dict(options)
    base = _base(str(given.pop("base", _DEFAULT_BASE)))
    changed = {name: given.pop(name) for name in _SETTINGS if name in given}
    if changed.get("patience") == 0:
        changed["patience"] = None
    source = {name: given.pop(name, None) for name in ("split", "number")}
    seed = changed.get("seed", 0)
    if kind != "cross-encoder":
        given["towers"] = TowerOptions(**{name: given.pop(name) for name in _TOWERS if name in given})
    if kind == "distill":
        teaching = {name: given.pop(name, None) for name in ("teacher", "first", "queries", "top")}
        items, scores = _taught(data, out, **source, **teaching, seed=seed, progress=progress)
        settings = replace(dual_encoder.paper_settings(scores), **changed)
        return dual_encoder.distill(scores, items, out, base=base, settings=settings, progress=progress, **given)
    collection = _collection(data, **source, seed=seed)
    _log.info("%s: %s items, %s judged queries.", data, f"{len(collection.items):,}", f"{len(collection.judged):,}")
    first = given.pop("first", "bm25")
    is_mined = kind == "cross-encoder" or (first != "none" and given.get("negatives") != 0)
    given["first"] = _first_stage(first, collection.items) if is_mined else None
    if kind == "cross-encoder":
        given["teachers"] = [scorer(name) for name in _listed(given.pop("teacher", ()))]
    usual = inspect.signature(KINDS[kind]).parameters["settings"].default
    return KINDS[kind](collection, out, base=base, settings=replace(usual, **changed), progress=progress, **given)


def _taught(
    data: str,
    out: Path,
    *,
    teacher: Any,
    first: str | None,
    queries: str | None,
    top: int | None,
    split: str | None,
    number: int | None,
    seed: int,
    progress: bool,
) -> tuple[Items, TeacherScores]:
    """Items, and the scores to learn from: those of an index, or of teachers that are called now."""
    if (Path(data) / "manifest.json").exists():
        given = {"teacher": teacher, "first": first, "queries": queries, "split": split, "number": number}
        if unused := [name for name, value in given.items() if value]:
            raise InputError(f"{data} is an index: its anchor scores teach. Leave out {', '.join(unused)}.")
        index = load(data, check=False)
        return index.items, TeacherScores.from_index(index, top=min(top or 100, len(index)))
    if not teacher:
        raise InputError(f"{data} is not an index, so its items must be scored: give teacher, a scorer as for build.")
    chosen: Sequence[Query]
    if queries is None:
        collection = _collection(data, split=split, number=number, seed=seed)
        items, chosen = ItemList(collection.items), collection.judged
    else:
        items = ItemList(list(read_items(data)))
        chosen = _sample(list(read_queries(queries)), number, seed=seed)
    cache = out / "training" / "teachers.sqlite"
    cache.parent.mkdir(parents=True, exist_ok=True)
    teachers = [scorer(name) for name in _listed(teacher)]
    stage = _first_stage(first or "bm25", items.at(range(len(items))))
    scores = TeacherScores.from_scorers(
        teachers, chosen, items, first=stage, top=min(top or 100, len(items)), cache=cache, progress=progress
    )
    return items, scores


def _listed(names_given: Any) -> list[str]:
    return [names_given] if isinstance(names_given, str) else list(names_given)


def _base(name: str) -> str:
    """The folder of a model in the catalogue; a folder or a hub name as it is."""
    if name in names():
        folder = fetch(name)
        if not any(folder.glob("*.safetensors")):
            raise InputError(f"{name!r} has no weights that can be trained. Take another, such as {_DEFAULT_BASE!r}.")
        return str(folder)
    if not Path(name).is_dir() and "/" not in name:
        raise UnknownName(
            f"There is no model called {name!r}.{did_you_mean(name, names())} Give a name that `adacur fetch` lists, "
            "the folder of a transformers model, or a hub name 'org/name'."
        )
    return name


def _collection(data: str, *, split: str | None, number: int | None, seed: int) -> JudgedCollection:
    folder = Path(data)
    if split is not None and not folder.is_dir():
        raise InputError(f"split names the judgements of a BEIR folder; {data} is not a folder.")
    if data.startswith("irds:"):
        collection = from_ir_datasets(data.removeprefix("irds:"))
    elif folder.exists():
        # Judgements of a test are learnt from only where there are no others.
        has_train = (folder / "qrels" / "train.tsv").is_file() or (folder / "qrels.train.tsv").is_file()
        collection = read_beir(folder, split=split or ("train" if has_train else None))
        if split is None and not has_train:
            _log.info("%s has no qrels/train.tsv: do not test on the judgements that are trained on here.", folder)
    elif data == "mondo":
        collection = mondo()
    else:
        raise UnknownName(
            f"There is no folder {data}, and no judged collection of that name.{did_you_mean(data, ['mondo'])} "
            "Give a BEIR folder, 'mondo', or irds:ID of ir_datasets."
        )
    if number is None:
        return collection
    chosen = _sample(collection.judged, number, seed=seed)
    return replace(collection, qrels={query.id: collection.qrels[query.id] for query in chosen})


def _sample(queries: Sequence[Query], n: int | None, *, seed: int) -> Sequence[Query]:
    return queries if n is None else split_queries(queries, anchors=0, test=min(n, len(queries)), seed=seed).test


def _first_stage(name: str, items: Sequence[Item]) -> BM25 | Dense:
    if name == "bm25":
        return BM25.build(items)
    if name not in ("dense", *names()) and not Path(name).exists() and "/" not in name:
        raise UnknownName(
            f"There is no first stage {name!r}.{did_you_mean(name, ['bm25', 'dense'])} Choose bm25, dense, or the "
            "folder or hub name of a dual encoder."
        )
    return Dense.build(items, encoder=encoder(_DEFAULT_ENCODER if name == "dense" else name), progress=True)
