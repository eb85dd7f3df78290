"""A training described by names and plain values, as a command line gives them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from adacur.data import JudgedCollection, fetch, mondo, names, read_beir, split_queries
from adacur.errors import InputError, UnknownName
from adacur.extras.train.cross_encoder import train_cross_encoder
from adacur.extras.train.run_folder import Trained, check_may_write
from adacur.extras.train.training_settings import TrainingSettings, check_installed
from adacur.first_stages import BM25, Dense
from adacur.first_stages.encoders import encoder
from adacur.records import Item
from adacur.spelling import did_you_mean

_log = logging.getLogger("adacur.extras.train")

_DEFAULT_BASE, _DEFAULT_ENCODER = "all-MiniLM-L6-v2", "bge-small-en-v1.5"
_SETTINGS = [field.name for field in fields(TrainingSettings)]
_DATA = ("split", "number")
_PARAMETERS = inspect.signature(train_cross_encoder).parameters.values()
_OF_FUNCTION = [one.name for one in _PARAMETERS if one.kind is one.KEYWORD_ONLY]
# The options of the function, of its settings, and of the data.
OPTIONS = [
    *(name for name in _OF_FUNCTION if name not in ("settings", "progress")),
    *_SETTINGS,
    *_DATA,
]


def train(data: str, out: Path, options: Mapping[str, Any]) -> Trained:
    """Train a cross-encoder on a collection by name; a killed run continues.

    `data` is a BEIR folder or 'mondo'. `options` are among `OPTIONS`: `base` is a name of the catalogue, a folder or a
    hub name; `first` is "bm25", "dense" or a dual encoder's folder or hub name; `split` names the judgements (by
    default train), and `number` takes that many queries at random.
    """
    check_installed()
    check_may_write(out)
    rest = dict(options)
    changed = {name: rest.pop(name) for name in _SETTINGS if name in rest}
    if changed.get("patience") == 0:
        changed["patience"] = None
    settings = TrainingSettings(**changed)
    base = _base(str(rest.pop("base", _DEFAULT_BASE)))
    collection = _collection(data, **{name: rest.pop(name) for name in _DATA if name in rest}, seed=settings.seed)
    _log.info("%s: %s items, %s judged queries.", data, f"{len(collection.items):,}", f"{len(collection.judged):,}")
    first = _first_stage(rest.pop("first", "bm25"), collection.items)
    return train_cross_encoder(collection, out, base=base, first=first, settings=settings, progress=True, **rest)


def _base(name: str) -> str:
    """The folder of a model in the catalogue; a folder or a hub name as it is."""
    if name in names():
        folder = fetch(name)
        if not any(folder.glob("*.safetensors")):
            raise InputError(f"{name!r} has no weights that can be trained. Take another, such as {_DEFAULT_BASE!r}.")
        return str(folder)
    if not Path(name).is_dir() and "/" not in name:
        raise UnknownName(
            f"There is no model called {name!r}.{did_you_mean(name, names())} Give a name of `adacur.data.names()`, "
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
