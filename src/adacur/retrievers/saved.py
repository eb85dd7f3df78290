"""First stages at rest: a folder with `retriever.json`, `ids.json` and what the kind adds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adacur.core.errors import NewerFormat, NotAnIndex, UnknownName

if TYPE_CHECKING:
    from adacur.retrievers.bm25 import BM25
    from adacur.retrievers.dense import Dense
    from adacur.retrievers.multi_vector import MultiVector
    from adacur.retrievers.tfidf import TfIdf

__all__ = ["load_retriever", "read_ids", "read_settings", "write_settings"]

_FORMAT = 1


def load_retriever(folder: str | Path, **options: Any) -> BM25 | Dense | MultiVector | TfIdf:
    """Open what a retriever's `save` wrote; `options` go to its `load`."""
    kind = read_settings(folder)["kind"]
    if kind == "bm25":
        from adacur.retrievers.bm25 import BM25

        return BM25.load(folder, **options)
    if kind == "dense":
        from adacur.retrievers.dense import Dense

        return Dense.load(folder, **options)
    if kind == "multi-vector":
        from adacur.retrievers.multi_vector import MultiVector

        return MultiVector.load(folder, **options)
    if kind == "tfidf":
        from adacur.retrievers.tfidf import TfIdf

        return TfIdf.load(folder, **options)
    raise UnknownName(
        f"{folder} holds a retriever of kind {kind!r}; known kinds: 'bm25', 'dense', 'multi-vector', 'tfidf'."
    )


def write_settings(folder: Path, *, kind: str, ids: Iterable[str], settings: dict[str, Any]) -> None:
    """Write ids and settings; called last, so that a folder without `retriever.json` is unfinished."""
    (folder / "ids.json").write_text(json.dumps(list(ids), ensure_ascii=False), encoding="utf-8")
    content = {"kind": kind, "format": _FORMAT} | settings
    (folder / "retriever.json").write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


def read_settings(folder: str | Path) -> dict[str, Any]:
    """The content of `retriever.json`."""
    path = Path(folder) / "retriever.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NotAnIndex(f"{folder} holds no saved retriever: {path.name} cannot be read ({error}).") from error
    if not isinstance(content, dict) or "kind" not in content or not isinstance(content.get("format"), int):
        raise NotAnIndex(f"{path} does not describe a retriever: it needs 'kind' and 'format'.")
    if content["format"] > _FORMAT:
        raise NewerFormat(
            f"{folder} has format {content['format']}; this adacur reads up to {_FORMAT}. Upgrade adacur."
        )
    return content


def read_ids(folder: str | Path) -> tuple[str, ...]:
    """The item ids, in the order of the rows."""
    return tuple(json.loads((Path(folder) / "ids.json").read_text(encoding="utf-8")))
