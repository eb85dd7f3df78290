"""The first stages by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adacur.errors import UnknownName
from adacur.first_stages.bm25 import BM25
from adacur.first_stages.dense import Dense
from adacur.first_stages.joined import SEPARATOR
from adacur.first_stages.saved import read_settings
from adacur.protocols import FirstStage
from adacur.spelling import did_you_mean

FIRST_STAGES: dict[str, type[FirstStage]] = {"bm25": BM25, "dense": Dense}


def first_stage_named(name: str) -> type[FirstStage]:
    """The class of a first stage."""
    if name not in FIRST_STAGES:
        parts = name.split(SEPARATOR)
        if len(parts) > 1 and all(part in FIRST_STAGES for part in parts):
            raise UnknownName(
                f"{name!r} joins first stages of an index when it is searched, and is not built. Build each: first="
                f"{parts} (--first {','.join(parts)})."
            )
        raise UnknownName(
            f"There is no first stage {name!r}.{did_you_mean(name, FIRST_STAGES)} Choose {', '.join(FIRST_STAGES)} or "
            "random, or give an object."
        )
    return FIRST_STAGES[name]


def load_first_stage(folder: str | Path, *, encoder: Any = None, allow_code: bool = False) -> FirstStage:
    """Open what a first stage's `save` wrote; `encoder` is for those that need one."""
    kind = read_settings(folder)["kind"]
    if kind not in FIRST_STAGES:
        raise UnknownName(f"{folder} holds a first stage of kind {kind!r}; known: {', '.join(FIRST_STAGES)}.")
    return FIRST_STAGES[kind].load(Path(folder), encoder=encoder, allow_code=allow_code)
