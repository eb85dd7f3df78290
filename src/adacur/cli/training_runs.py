"""What `adacur train` does: opens what its options name, trains, and tells what came out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

from rich.table import Table

from adacur.cli.messages import KEPT, duration, log_as_notes, note, print_json, print_table, say, tell
from adacur.cli.opening import DEFAULT_ENCODER, cut_flag, opened_encoder, opened_scorer
from adacur.cli.train import DEFAULT_BASE
from adacur.core.errors import AdacurError, InputError, UnknownName
from adacur.core.extras import require
from adacur.core.protocols import FirstStage, Items
from adacur.core.records import Item, ItemList, Query
from adacur.core.results import Hits
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
    wikivital,
)
from adacur.training import (
    TeacherScores,
    TowerOptions,
    Trained,
    TrainingSettings,
    check_may_write,
    distill,
    model_hash,
    train_cross_encoder,
    train_dual_encoder,
)

__all__ = ["cross_encoder_run", "distill_run", "dual_encoder_run", "in_words_of_the_command"]

_STAGES = ("bm25", "dense")
_IR_DATASETS = "irds:"


@contextmanager
def in_words_of_the_command(asked: Mapping[str, Any]) -> Iterator[None]:
    """Tell what the library logs and warns of, name options as flags in its errors, and say what Ctrl-C leaves."""
    try:
        with log_as_notes("adacur.training"):
            yield
    except AdacurError as error:
        error.args = (_with_flags(str(error), asked),)
        raise
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(_left_in(Path(asked["out"]) / "training")) from error


def _with_flags(message: str, asked: Mapping[str, Any]) -> str:
    # Names of one word read well as they are; what stands in a path is none.
    names = "|".join(name for name in asked if "_" in name)
    return re.sub(rf"(?<![\w/.'-])({names})(?![\w/-]|\.\w)", lambda name: "--" + name[0].replace("_", "-"), message)


def _left_in(state: Path) -> str:
    if (state / "result.json").exists() or any(state.glob("checkpoint-*/whole")):
        return KEPT
    scores = " Scores of teachers are kept." if (state / "teachers.sqlite").exists() else ""
    return (
        f"No check was finished yet, so that the same command begins anew.{scores} More --checks-per-epoch keep more."
    )


def cross_encoder_run(asked: Mapping[str, Any], *, settings: TrainingSettings) -> None:
    """`adacur train cross-encoder`."""
    base = _checked(asked)
    collection = _collection(asked)
    was_finished = _is_finished(asked["out"])
    trained = train_cross_encoder(
        collection,
        asked["out"],
        base=base,
        head=asked["head"],
        add_tags=asked["add_tags"],
        first=_FirstStage(asked["first"], collection.items),
        negatives=asked["negatives"],
        depth=asked["depth"],
        teachers=[opened_scorer(teacher) for teacher in asked["teacher"] or ()],
        settings=settings,
        held_out=asked["held_out"],
        shortlist=asked["shortlist"],
        max_tokens=asked["max_tokens"],
        max_item_tokens=asked["max_item_tokens"],
        device=asked["device"],
        progress=True,
    )
    # A model that learnt from cut items is at its best with them.
    cut = cut_flag(asked["max_item_tokens"])
    then = f"adacur build {_items_of(asked)} INDEX --scorer {quote(str(asked['out']))}{cut}"
    _show(trained, asked, was_finished=was_finished, then=then)


def dual_encoder_run(asked: Mapping[str, Any], *, settings: TrainingSettings) -> None:
    """`adacur train dual-encoder`."""
    base = _checked(asked)
    collection = _collection(asked)
    is_mined = asked["negatives"] > 0 and asked["first"] != "none"
    was_finished = _is_finished(asked["out"])
    trained = train_dual_encoder(
        collection,
        asked["out"],
        base=base,
        first=_FirstStage(asked["first"], collection.items) if is_mined else None,
        negatives=asked["negatives"],
        depth=asked["depth"],
        settings=settings,
        **_of_towers(asked),
    )
    _show(trained, asked, was_finished=was_finished, then=_with_encoder(asked))


def distill_run(asked: Mapping[str, Any], *, settings: TrainingSettings) -> None:
    """`adacur train distill`."""
    base = _checked(asked)
    out = Path(asked["out"])
    if (Path(asked["data"]) / "manifest.json").exists():
        for name in ("teacher", "queries", "number", "split"):
            if asked[name]:
                raise InputError(f"{asked['data']} is an index: its anchor scores teach. Leave --{name} out.")
        items, teacher = _from_index(asked)
    else:
        items, teacher = _from_scorers(asked, cache=out / "training" / "teachers.sqlite")
    was_finished = _is_finished(out)
    options = _of_towers(asked) | {"temperature": asked["temperature"], "settings": settings}
    trained = distill(teacher, items, out, base=base, **options)
    # The scores that it learnt are those of cut items.
    _show(trained, asked, was_finished=was_finished, then=_with_encoder(asked) + cut_flag(asked["max_item_tokens"]))


def _from_index(asked: Mapping[str, Any]) -> tuple[Items, TeacherScores]:
    import adacur

    index = adacur.load(asked["data"], check=False)
    tell(f"{asked['data']}: {len(index):,} items, {len(index.anchor_queries):,} anchor queries. Nothing is scored.")
    return index.items, TeacherScores.from_index(index, top=min(asked["top"], len(index)))


def _from_scorers(asked: Mapping[str, Any], *, cache: Path) -> tuple[Items, TeacherScores]:
    if not asked["teacher"]:
        raise InputError(
            f"{asked['data']} is no index, so that its items are scored: give --teacher, a scorer as for build."
        )
    queries: Sequence[Query]
    if asked["queries"] is None:
        collection = _collection(asked)
        items, queries = ItemList(collection.items), collection.judged
    else:
        items = ItemList(_every_item(str(asked["data"])))
        queries = _some(list(read_queries(asked["queries"])), asked["number"], seed=asked["seed"])
        tell(f"{asked['data']}: {len(items):,} items. {asked['queries']}: {len(queries):,} queries.")
    first = _FirstStage(asked["first"], items.at(range(len(items))))
    scorers = [opened_scorer(teacher) for teacher in asked["teacher"]]
    top = min(asked["top"], len(items))
    tell(f"{len(queries):,} queries × {top} items to score, each pair once: what is known is kept in {cache}.")
    cache.parent.mkdir(parents=True, exist_ok=True)
    taught = TeacherScores.from_scorers(scorers, queries, items, first=first, top=top, cache=cache, progress=True)
    return items, taught


def _of_towers(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Options that both ways of training a dual encoder take."""
    names = [field.name for field in fields(TowerOptions)]
    towers = TowerOptions(**{name: asked[name] for name in names})
    return {"towers": towers, "held_out": asked["held_out"], "device": asked["device"], "progress": True}


def _with_encoder(asked: Mapping[str, Any]) -> str:
    return f"adacur build {_items_of(asked)} INDEX --first bm25,dense --encoder {quote(str(asked['out']))}"


def _checked(asked: Mapping[str, Any]) -> str:
    """The base model, once nothing is missing that would be missed only after much was read, fetched or scored."""
    for module in ("torch", "transformers", "accelerate", "sentence_transformers"):
        # Looked for, not imported: that takes seconds, and something else may be wrong.
        if find_spec(module) is None:
            require(module, extra="training")
    check_may_write(Path(asked["out"]))
    return _model(asked["base"])


def _model(name: str) -> str:
    """A folder or a hub name."""
    if name in names():
        with note.status(f"fetching {name} …"):
            folder = fetch(name)
        if not any(folder.glob("*.safetensors")):
            raise InputError(f"{name!r} holds no weights that can be trained. Take another, such as {DEFAULT_BASE!r}.")
        return str(folder)
    if not Path(name).is_dir() and "/" not in name:
        raise UnknownName(
            f"There is no model called {name!r}.{did_you_mean(name, names())} Give a name that `adacur fetch` lists, "
            "the folder of a transformers model, or a hub name 'org/name'."
        )
    return name


def _collection(asked: Mapping[str, Any]) -> JudgedCollection:
    data, split = str(asked["data"]), asked["split"]
    if split is not None and not Path(data).is_dir():
        raise InputError(f"--split belongs to a BEIR folder; {data} is none.")
    if data.startswith(_IR_DATASETS):
        collection = from_ir_datasets(data.removeprefix(_IR_DATASETS))
    elif Path(data).exists():
        collection = _beir(Path(data), split)
    elif data == "mondo":
        with note.status("fetching mondo …"):
            collection = mondo()
    else:
        raise UnknownName(
            f"There is no folder {data}, and no judged collection of that name.{did_you_mean(data, ['mondo'])} "
            "Give a BEIR folder, 'mondo', or irds:ID of ir_datasets."
        )
    if asked["number"] is not None:
        kept = _some(collection.judged, asked["number"], seed=asked["seed"])
        collection = replace(collection, qrels={query.id: collection.qrels[query.id] for query in kept})
    tell(f"{collection.name}: {len(collection.items):,} items, {len(collection.judged):,} judged queries.")
    return collection


def _some(queries: Sequence[Query], n: int | None, *, seed: int) -> Sequence[Query]:
    return queries if n is None else split_queries(queries, anchors=0, test=min(n, len(queries)), seed=seed).test


def _every_item(source: str) -> Sequence[Item]:
    """As `adacur build` reads them."""
    if not Path(source).exists() and source in ("mondo", "wikivital"):
        return wikivital() if source == "wikivital" else mondo().items
    return list(read_items(source))


def _beir(folder: Path, split: str | None) -> JudgedCollection:
    """The judgements to learn from, unless told: never those of a test where others are there."""
    has_train = (folder / "qrels" / "train.tsv").is_file() or (folder / "qrels.train.tsv").is_file()
    collection = read_beir(folder, split=split or ("train" if has_train else None))
    if split is None and not has_train:
        tell(f"{folder} has no qrels/train.tsv: what is trained on its other judgements must not be tested on them.")
    return collection


def _items_of(asked: Mapping[str, Any]) -> str:
    """The data as `adacur build` takes it, where it does."""
    data = str(asked["data"])
    return quote(data) if data in ("mondo", "wikivital") or any(Path(data).glob("corpus.jsonl*")) else "ITEMS"


class _FirstStage:
    """A first stage over items, built when it is first asked: a run that is finished never asks."""

    def __init__(self, name: str, items: Sequence[Item]) -> None:
        if name not in _STAGES and name not in names() and not Path(name).exists() and "/" not in name:
            raise UnknownName(
                f"There is no first stage {name!r}.{did_you_mean(name, _STAGES)} Choose {', '.join(_STAGES)}, or give "
                "the folder or hub name of a dual encoder."
            )
        # The same encoder, however its path is written.
        is_folder = name not in (*_STAGES, *names()) and Path(name).exists()
        self.name = str(Path(name).resolve()) if is_folder else name
        self.weights = model_hash(Path(name)) if is_folder else None
        self._items = items
        self._built: FirstStage | None = None

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        from adacur.first_stages import as_hits

        if self._built is None:
            self._built = self._build()
        return as_hits(queries, self._built.search(queries, k), self._built.ids)

    def _build(self) -> FirstStage:
        from adacur.first_stages import FIRST_STAGES, Dense

        if self.name in _STAGES and not FIRST_STAGES[self.name].needs_encoder:
            return FIRST_STAGES[self.name].build(self._items)
        encoder = opened_encoder(DEFAULT_ENCODER if self.name == "dense" else self.name)
        return Dense.build(self._items, encoder=encoder, progress=True)


def _is_finished(out: str | Path) -> bool:
    return (Path(out) / "training" / "result.json").exists()


def _show(trained: Trained, asked: Mapping[str, Any], *, was_finished: bool, then: str) -> None:
    if asked["as_json"]:
        print_json({"model": str(asked["out"]), **_facts(trained), "was_finished": was_finished})
        return
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("held-out queries")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for name, value in trained.best.items():
        table.add_row(name, f"{trained.before[name]:.3f}", f"{value:.3f}")
    print_table(table)
    why = ", when no check had been better for long enough" if trained.stopped_early else ""
    say(
        f"{asked['out']}: the model after {trained.best_update} of {trained.updates} updates{why}. "
        f"{duration(trained.seconds)}, {trained.queries / max(trained.seconds, 1e-9):,.1f} queries/s."
    )
    if was_finished:
        tell("It was finished before: nothing was trained.")
    if not any(_is_better(name, value, than=trained.before[name]) for name, value in trained.best.items()):
        tell("Nothing was better than before the training. Try another learning rate, or more queries.")
    tell(f"Next: {then}")


def _facts(trained: Trained) -> dict[str, Any]:
    return {name: value for name, value in asdict(trained).items() if name not in ("folder", "log")}


def _is_better(measure: str, value: float, *, than: float) -> bool:
    return value < than if measure.endswith(("loss", "error")) else value > than
