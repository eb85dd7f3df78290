"""What to evaluate, as a TOML file says it; every key is checked at the door."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adacur.budget import is_whole
from adacur.errors import FileFormatError, InputError
from adacur.spelling import did_you_mean
from adacur_lab.experiments.methods import METHODS, method
from adacur_lab.zeshel import zeshel_worlds

__all__ = ["DEFAULT_SCORER", "AnchorsSpec", "CollectionSpec", "MethodSpec", "ScorerSpec", "Spec", "spec_text"]

DEFAULT_SCORER = "ms-marco-MiniLM-L-12-v2"
_DEFAULT_METHODS = ("gaussian", "adacur", "anncur", "rerank", "exact")


@dataclass(frozen=True, slots=True)
class CollectionSpec:
    """Where a collection comes from: scores, a BEIR folder or a name to fetch, ZeShEL, ir_datasets, or files.

    Beside `scores`, the other sources bring texts and judgements. `zeshel` is a folder of which `world` is taken, its
    mentions marked by `tags` or not; `ir_dataset` is an id. `sample` takes that number of items: those judged for the
    test queries, and others at random.
    """

    name: str
    scores: Path | None = None
    folder: str | None = None
    zeshel: Path | None = None
    world: str | None = None
    tags: bool = True
    ir_dataset: str | None = None
    items: Path | None = None
    queries: Path | None = None
    qrels: tuple[Path, ...] = ()
    sample: int | None = None


@dataclass(frozen=True, slots=True)
class ScorerSpec:
    """What `adacur.scorer` opens."""

    source: str = DEFAULT_SCORER
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnchorsSpec:
    """How many anchor queries (each number is a run of its own), and whence; `seed` splits the queries.

    Unless told otherwise, anchors are `pseudo`-queries where too few queries are left beside the test queries.
    """

    numbers: tuple[int, ...] = ()
    file: Path | None = None
    pseudo: bool | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method and its own settings; a list stands for a run with each of its values."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Spec:
    """Collections × methods × settings, and the folder for what comes out.

    Empty `first` is the collection's best; empty `anchors.numbers` are 50, or all of a folder of scores. `errors`
    measures predictions too, which takes a prediction of every item for every query and run. `token_vectors` is the
    folder for those of a score folder's items, "first" in `output` unless told otherwise.
    """

    collections: tuple[CollectionSpec, ...]
    output: Path
    scorer: ScorerSpec = field(default_factory=ScorerSpec)
    anchors: AnchorsSpec = field(default_factory=AnchorsSpec)
    methods: tuple[MethodSpec, ...] = tuple(MethodSpec(name) for name in _DEFAULT_METHODS)
    budgets: tuple[int, ...] = (25, 50, 100)
    rounds: tuple[int, ...] = (5,)
    ks: tuple[int, ...] = (1, 10)
    seeds: tuple[int, ...] = (0,)
    first: tuple[str, ...] = ()
    pool: int | None = None
    n_queries: int | None = None
    encoder: str | None = None
    errors: bool = False
    token_vectors: Path | None = None

    @classmethod
    def from_file(cls, path: str | Path) -> Spec:
        """Read a TOML file; relative paths in it are relative to it."""
        path = Path(path)
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{path} cannot be read as TOML: {error}") from error
        try:
            return cls.from_tables(tables, relative_to=path.parent)
        except InputError as error:
            raise FileFormatError(f"{path}: {error}") from error

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any], *, relative_to: str | Path = ".") -> Spec:
        """Check what TOML says and fill in the defaults."""
        here = Path(relative_to)
        _known_keys(tables, ("collection", "scorer", "anchors", "search", "method", "output"), "The spec")
        if not (collections := _tables(tables, "collection")):
            raise InputError("A spec names what to evaluate on: give a [collection] table, or several [[collection]].")
        search = _table(tables, "search")
        _known_keys(search, _SEARCH, "[search]")
        output = _table(tables, "output")
        _known_keys(output, ("folder",), "[output]")
        given = {name: read(search[key], f"[search] {key}") for key, (name, read) in _SEARCH.items() if key in search}
        methods = [*map(MethodSpec, given.pop("methods", ())), *map(_method, _tables(tables, "method"))]
        if methods:
            given["methods"] = tuple(methods)
        spec = cls(
            collections=tuple(_collection(table, here) for table in collections),
            output=here / _text(output.get("folder", "results"), "[output] folder"),
            scorer=_scorer(tables, here),
            anchors=_anchors(_table(tables, "anchors"), here),
            **given,
        )
        _check_whole(spec)
        return spec


def spec_text(tables: Mapping[str, Any]) -> str:
    """Tables of plain values as TOML; a list of tables becomes [[name]], an inner table [name.inner]."""
    parts: list[str] = []

    def write(name: str, table: Mapping[str, Any], brackets: str) -> None:
        inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
        lines = [f"{key} = {_value(value)}" for key, value in table.items() if key not in inner and value is not None]
        parts.append("\n".join([brackets.format(name), *lines]))
        for key, value in inner.items():
            write(f"{name}.{key}", value, "[{}]")

    for name, content in tables.items():
        for table in content if isinstance(content, list) else [content]:
            write(name, table, "[[{}]]" if isinstance(content, list) else "[{}]")
    return "\n\n".join(parts) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    # Of texts, numbers and truth values TOML and JSON write the same.
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def _known_keys(table: Mapping[str, Any], known: Sequence[str] | Mapping[str, Any], where: str) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"{where} has no key {key!r}.{did_you_mean(key, known)} It takes: {', '.join(known)}.")


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, Mapping):
        raise InputError(f"[{name}] is a table; got {table!r}.")
    return table


def _tables(tables: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = tables.get(name, [])
    found = found if isinstance(found, list) else [found]
    if not all(isinstance(table, Mapping) for table in found):
        raise InputError(f"[[{name}]] is a table, or several; got {tables[name]!r}.")
    return found


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where} is a text; got {value!r}.")
    return value


def _whole(value: Any, where: str, *, least: int = 1) -> int:
    if isinstance(value, bool) or not is_whole(value) or value < least:
        raise InputError(f"{where} is a whole number of at least {least}; got {value!r}.")
    return int(value)


def _list(value: Any, where: str, one: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    """One value or several; each once, in the order given."""
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        raise InputError(f"{where} is empty. Give at least one value, or leave the key out.")
    return tuple(dict.fromkeys(one(each, where) for each in values))


def _wholes(value: Any, where: str) -> tuple[int, ...]:
    return _list(value, where, _whole)


def _seeds(value: Any, where: str) -> tuple[int, ...]:
    return _list(value, where, lambda each, where: _whole(each, where, least=0))


def _texts(value: Any, where: str) -> tuple[str, ...]:
    return _list(value, where, _text)


def _methods(value: Any, where: str) -> tuple[str, ...]:
    names = _texts(value, where)
    for name in names:
        method(name)
    return names


def _truth(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where} is true or false; got {value!r}.")
    return value


_SEARCH: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "methods": ("methods", _methods),
    "budgets": ("budgets", _wholes),
    "rounds": ("rounds", _wholes),
    "k": ("ks", _wholes),
    "seeds": ("seeds", _seeds),
    "first": ("first", _texts),
    "pool": ("pool", _whole),
    "n_queries": ("n_queries", _whole),
    "encoder": ("encoder", _text),
    "errors": ("errors", _truth),
}


def _path(value: Any, where: str, here: Path) -> Path:
    path = here / _text(value, where)
    if not path.exists():
        raise InputError(f"{where}: there is no {path}. Relative paths are relative to the spec.")
    return path


_ITEM_SOURCES = ("folder", "zeshel", "ir_dataset", "items")


def _collection(table: Mapping[str, Any], here: Path) -> CollectionSpec:
    known = ("name", "scores", *_ITEM_SOURCES, "world", "tags", "queries", "qrels", "sample")
    _known_keys(table, known, "[collection]")
    given = [key for key in _ITEM_SOURCES if key in table]
    if len(given) > 1:
        raise InputError(f"[collection] has its items from one place; got {' and '.join(given)}. Keep one of them.")
    if not given and "scores" not in table:
        raise InputError(
            "[collection] says where its items are: scores = a folder of scores, folder = a BEIR folder, zeshel = a "
            "ZeShEL folder with world = a name, ir_dataset = an id, or items = a file with queries = another."
        )
    paths = {
        key: _path(table[key], f"[collection] {key}", here)
        for key in ("scores", "zeshel", "items", "queries")
        if key in table
    }
    own: dict[str, Any] = {**paths, **_zeshel(table, paths.get("zeshel"))}
    if "sample" in table:
        own["sample"] = _whole(table["sample"], "[collection] sample")
        if "scores" in table:
            raise InputError("[collection] sample saves scoring, and scores = a folder has all scores; leave it out.")
    if "ir_dataset" in table:
        own["ir_dataset"] = _text(table["ir_dataset"], "[collection] ir_dataset")
    folder = None
    if "folder" in table:
        folder = _text(table["folder"], "[collection] folder")
        # What is no folder may still be a name to fetch; whoever opens it knows.
        folder = str(here / folder) if (here / folder).exists() else folder
    if (source := paths.get("scores") or folder or paths.get("items")) is not None:
        default = Path(source).resolve().name.split(".")[0]
    else:
        default = str(own.get("world") or own["ir_dataset"]).replace("/", "-")
    name = _text(table.get("name", default), "[collection] name")
    if name != Path(name).name or name.startswith("."):
        raise InputError(f"[collection] name serves as the name of a folder; got {name!r}.")
    qrels = table.get("qrels", [])
    qrels = qrels if isinstance(qrels, list) else [qrels]
    judged = tuple(_path(each, "[collection] qrels", here) for each in qrels)
    return CollectionSpec(name=name, folder=folder, qrels=judged, **own)


def _zeshel(table: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """What says which part of a ZeShEL folder to take, and how."""
    if folder is None:
        if alone := [key for key in ("world", "tags") if key in table]:
            raise InputError(f"[collection] {alone[0]} belongs to zeshel = a ZeShEL folder, which is not given.")
        return {}
    if "world" not in table:
        raise InputError(f"[collection] zeshel needs world: one of {', '.join(zeshel_worlds(folder))}.")
    world = _text(table["world"], "[collection] world")
    return {"world": world, "tags": _truth(table.get("tags", True), "[collection] tags")}


def _scorer(tables: Mapping[str, Any], here: Path) -> ScorerSpec:
    if "scorer" not in tables:
        return ScorerSpec()
    table = _table(tables, "scorer")
    _known_keys(table, ("source", "options"), "[scorer]")
    if "source" not in table:
        raise InputError("[scorer] needs source: a name of `adacur.data.names()`, a folder, a URL or module:function.")
    source = _text(table["source"], "[scorer] source")
    return ScorerSpec(str(here / source) if (here / source).exists() else source, _table(table, "options"))


def _anchors(table: Mapping[str, Any], here: Path) -> AnchorsSpec:
    _known_keys(table, ("numbers", "file", "pseudo", "seed"), "[anchors]")
    pseudo = _truth(table["pseudo"], "[anchors] pseudo") if "pseudo" in table else None
    if pseudo and "file" in table:
        raise InputError("[anchors] come from a file or are pseudo-queries; got both.")
    return AnchorsSpec(
        numbers=_wholes(table["numbers"], "[anchors] numbers") if "numbers" in table else (),
        file=_path(table["file"], "[anchors] file", here) if "file" in table else None,
        pseudo=pseudo,
        seed=_whole(table.get("seed", 0), "[anchors] seed", least=0),
    )


def _method(table: Mapping[str, Any]) -> MethodSpec:
    if "name" not in table:
        raise InputError(f"[[method]] needs a name: one of {', '.join(METHODS)}.")
    name = _text(table["name"], "[[method]] name")
    takes = method(name).takes
    options = {key: value for key, value in table.items() if key != "name"}
    _known_keys(options, takes, f"[[method]] {name!r}")
    if "budget" in options:
        _wholes(options["budget"], f"[[method]] {name!r} budget")
    return MethodSpec(name, options)


def _check_whole(spec: Spec) -> None:
    """What only shows when all is read."""
    names = [collection.name for collection in spec.collections]
    if len(set(names)) < len(names):
        raise InputError(f"Collections need names of their own, since results are kept by them; got {names}.")
    for collection in spec.collections:
        if collection.scores is None and collection.items is not None and collection.queries is None:
            raise InputError(f"The collection {collection.name!r} has items but no queries; give queries = a file.")
