"""`adacur train`: a cross-encoder for a collection."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from typer import Argument, Option

from adacur.cli import arguments as opt
from adacur.cli.messages import KEPT, log_as_notes, rows_table, show
from adacur.data import JudgedCollection, fetch, mondo, names, read_beir, split_queries
from adacur.errors import InputError, UnknownName
from adacur.extras.train.cross_encoder import train_cross_encoder
from adacur.extras.train.run_folder import Trained, TrainingSettings, check_installed, check_may_write
from adacur.first_stages import BM25, Dense
from adacur.first_stages.encoders import encoder
from adacur.records import Item
from adacur.spelling import did_you_mean
from adacur.units import duration

_log = logging.getLogger("adacur.extras.train")
_DEFAULT_BASE, _DEFAULT_ENCODER = "all-MiniLM-L6-v2", "bge-small-en-v1.5"
_SETTINGS = [field.name for field in fields(TrainingSettings)]
_DATA = ("split", "number")
_GIVEN = ("collection", "folder", "settings", "progress")
# What --set takes: options of the function, of its settings, and of the data.
OPTIONS = [
    *(name for name in inspect.signature(train_cross_encoder).parameters if name not in _GIVEN),
    *_SETTINGS,
    *_DATA,
]


def train(
    data: Annotated[str, Argument(metavar="DATA", help="Judged queries and items: a BEIR folder, or 'mondo'.")],
    out: Annotated[Path, Argument(metavar="OUT", help="The folder to write; an interrupted run in it continues.")],
    base: Annotated[str | None, Option(help="The model to start from: a known name, a folder, or a hub name.")] = None,
    first: Annotated[
        str | None, Option(help="Finds near misses: bm25 (default), dense, or a dual encoder's path.")
    ] = None,
    epochs: Annotated[int | None, Option(help="The number of times that every query is seen.")] = None,
    turns: Annotated[
        int | None,
        Option(
            help="Divide the epochs into this many turns; before each but the first, searches with the model find what "
            "it wrongly likes (default: 2, or 1 with one epoch)."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any option of the training, such as learning_rate=2e-5 or negatives=15; may be repeated. A wrong "
            "name lists them all.",
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Train a cross-encoder that can be searched, on judged queries.

    Negatives are near misses, random items, and what searches with the model itself find.
    An interrupted training continues with the same command.

    Example: adacur train my-beir-folder my-reranker --epochs 2 --set mixture=near=1,random=1,found=1
    """
    options = opt.settings_given(settings, takes=OPTIONS)
    flags = {"base": base, "first": first, "epochs": epochs, "turns": turns}
    options |= {name: value for name, value in flags.items() if value is not None}
    check_installed()
    was_finished = (out / "training" / "result.json").exists()
    try:
        with log_as_notes("adacur.extras.train"):
            trained = _trained(data, out, **options)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(KEPT) from error
    facts = {name: value for name, value in asdict(trained).items() if name not in ("folder", "log")}
    rows = [(name, f"{trained.before[name]:.3f}", f"{value:.3f}") for name, value in trained.best.items()]
    why = ", stopped early" if trained.stopped_early else ""
    useless = "No check was better than before the training. Try another learning rate, or more queries."
    # A model that was trained on cut items is at its best with them.
    cut = f" --max-item-tokens {options['max_item_tokens']}" if options.get("max_item_tokens") else ""
    show(
        {"model": str(out), **facts, "was_finished": was_finished},
        rows_table(("held-out queries", "before", "after"), rows),
        f"{out}: the model after {trained.best_update} of {trained.updates} updates{why}. "
        f"{duration(trained.seconds)}, {trained.queries / max(trained.seconds, 1e-9):,.1f} queries/s.",
        hints=(
            "" if trained.best_update else useless,
            "It was finished before: nothing was trained." if was_finished else "",
            f"Next: adacur build ITEMS INDEX --scorer {quote(str(out))}{cut}",
        ),
        as_json=as_json,
    )


def _trained(data: str, out: Path, *, base: str = _DEFAULT_BASE, first: str = "bm25", **options: Any) -> Trained:
    """Train on a collection by name: a BEIR folder or 'mondo'.

    `base` is a name of the catalogue, a folder or a hub name; `first` is "bm25", "dense" or a dual encoder's folder or
    hub name; `split` names the judgements (by default train), and `number` takes that many queries at random.
    """
    check_may_write(out)
    changed = {name: options.pop(name) for name in _SETTINGS if name in options}
    # TOML has no None.
    settings = TrainingSettings(**changed | ({"patience": None} if changed.get("patience") == 0 else {}))
    collection = _collection(data, **{name: options.pop(name) for name in _DATA if name in options}, seed=settings.seed)
    _log.info("%s: %s items, %s judged queries.", data, f"{len(collection.items):,}", f"{len(collection.judged):,}")
    found_by = _first_stage(first, collection.items)
    return train_cross_encoder(
        collection, out, base=_base(base), first=found_by, settings=settings, progress=True, **options
    )


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
