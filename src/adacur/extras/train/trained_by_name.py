"""Trainings described by names and plain values, as a command line gives them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from adacur.data import (
    JudgedCollection,
    fetch,
    mondo,
    names,
    read_beir,
    read_qrels,
    split_queries,
)
from adacur.errors import InputError, UnknownName, UnknownOption
from adacur.extras.train.cross_encoder import train_cross_encoder
from adacur.extras.train.distillation import distill
from adacur.extras.train.dual_encoder import train_dual_encoder
from adacur.extras.train.judged_queries import warn_of_leaks
from adacur.extras.train.run_folder import Trained, check_may_write
from adacur.extras.train.training_settings import TowerOptions, TrainingSettings, check_installed
from adacur.first_stages import BM25, Dense
from adacur.first_stages.encoders import encoder
from adacur.records import Item
from adacur.scorers import scorer
from adacur.search import load
from adacur.spelling import did_you_mean

_log = logging.getLogger("adacur.extras.train")

KINDS: dict[str, Callable[..., Trained]] = {
    "cross-encoder": train_cross_encoder,
    "dual-encoder": train_dual_encoder,
    "distill": distill,
}
_TOP = 100
_DEFAULT_BASE, _DEFAULT_ENCODER = "all-MiniLM-L6-v2", "bge-small-en-v1.5"
_SETTINGS = [field.name for field in fields(TrainingSettings)]
_TOWERS = [field.name for field in fields(TowerOptions)]
_DATA = ["split", "number"]
# Options of the functions that are objects, and the plain values that they are made from.
_MADE_FROM = {"settings": _SETTINGS, "towers": _TOWERS, "teachers": ["teacher"], "progress": []}


def options_of(kind: str) -> list[str]:
    """The options that a kind of training takes: those of its function, of its settings, and of the data."""
    parameters = inspect.signature(KINDS[kind]).parameters.values()
    of_function = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    plain = [name for option in of_function for name in _MADE_FROM.get(option, [option])]
    return [*plain, *(_DATA if kind != "distill" else [])]


def train(kind: str, data: str, out: Path, options: Mapping[str, Any], *, progress: bool = True) -> Trained:
    """Train a model of a kind in `KINDS` on a collection by name, or distill an index; a killed run continues.

    `data` is a BEIR folder or 'mondo', and to distill an index. `options` are those in
    `options_of(kind)`: `base` is a name of the catalogue, a folder or a hub name; `first` is "bm25", "dense" or a dual
    encoder's folder or hub name; `teacher` is a scorer's name, or a list of them; `split` names the judgements (by
    default train), and `number` takes that many queries at random.
    """
    known = options_of(kind)
    if unknown := next((name for name in options if name not in known), None):
        raise UnknownOption(
            f"{kind} does not take {unknown!r}.{did_you_mean(unknown, known)} It takes: {', '.join(known)}."
        )
    check_installed()
    check_may_write(out)
    rest = dict(options)

    def taken(chosen: Sequence[str]) -> dict[str, Any]:
        return {name: rest.pop(name) for name in chosen if name in rest}

    changed = taken(_SETTINGS)
    if changed.get("patience") == 0:
        changed["patience"] = None
    usual: TrainingSettings = inspect.signature(KINDS[kind]).parameters["settings"].default
    settings = replace(usual, **changed)
    given: dict[str, Any] = {"settings": settings, "progress": progress}
    given["base"] = _base(str(rest.pop("base", _DEFAULT_BASE)))
    if kind != "cross-encoder":
        given["towers"] = TowerOptions(**taken(_TOWERS))
    if kind == "distill":
        if not (Path(data) / "manifest.json").exists():
            raise InputError(f"A dual encoder is distilled from an index; {data} is none. Build one: adacur build.")
        with load(data, check=False) as index:
            return distill(index, out, **{"top": min(_TOP, len(index))} | given | rest)
    collection = _collection(data, **taken(_DATA), seed=settings.seed)
    _log.info("%s: %s items, %s judged queries.", data, f"{len(collection.items):,}", f"{len(collection.judged):,}")
    first = rest.pop("first", "bm25")
    is_mined = kind == "cross-encoder" or (first != "none" and rest.get("negatives") != 0)
    given["first"] = _first_stage(first, collection.items) if is_mined else None
    if kind == "cross-encoder":
        given["teachers"] = _scorers(rest.pop("teacher", ()))
    return KINDS[kind](collection, out, **given, **rest)


def _scorers(given: Any) -> list[Any]:
    return [scorer(name) for name in ([given] if isinstance(given, str) else given)]


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


def _collection(data: str, *, split: str | None = None, number: int | None = None, seed: int) -> JudgedCollection:
    folder = Path(data)
    if split is not None and not folder.is_dir():
        raise InputError(f"split names the judgements of a BEIR folder; {data} is not a folder.")
    if data == "mondo" and not folder.exists():
        collection = mondo()
    else:
        # Judgements of a test are learnt from only where there are no others.
        has_train = (folder / "qrels" / "train.tsv").is_file() or (folder / "qrels.train.tsv").is_file()
        collection = read_beir(folder, split=split or ("train" if has_train else None))
        is_test = (folder / "qrels" / "test.tsv").is_file() or (folder / "qrels.test.tsv").is_file()
        if is_test and (has_train if split is None else split != "test"):
            warn_of_leaks(collection, replace(collection, qrels=read_qrels(folder, split="test")))
        if split is None and not has_train:
            _log.info("%s has no qrels/train.tsv: do not test on the judgements that are trained on here.", folder)
    if number is None:
        return collection
    chosen = split_queries(collection.judged, anchors=0, test=min(number, len(collection.judged)), seed=seed).test
    return replace(collection, qrels={query.id: collection.qrels[query.id] for query in chosen})


def _first_stage(name: str, items: Sequence[Item]) -> BM25 | Dense:
    """BM25, or a dense stage with the encoder of this name."""
    if name == "bm25":
        return BM25.build(items)
    return Dense.build(items, encoder=encoder(_DEFAULT_ENCODER if name == "dense" else name), progress=True)
