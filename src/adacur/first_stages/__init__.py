"""First stages: the cheap search that says where an expensive one starts. Each speaks `protocols.FirstStage`.

Where to change what:

- `bm25`, `dense`, `matrix`: one first stage each; `saved` has the files that all share (settings and ids). "random"
  names none: a search then starts from a random draw. `joined`: several as one, as in first="bm25+dense".
- `FIRST_STAGES`: the names. To add a first stage: write its file here, add one line to the table, and one to the
  makers of tests/contracts/test_first_stages.py. The command line, `adacur.build`, edits and loading read the table.
- `placing`: a first stage in an index: its positions, or the ids that a search engine answers with, as the index's.
- `encoders`: what turns texts into vectors, how it is opened, and the card by which it is recognised.
- search/index_stages.py keeps them in index folders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adacur.errors import UnknownName
from adacur.first_stages.bm25 import BM25
from adacur.first_stages.dense import Dense
from adacur.first_stages.encoders import Encoder, EncoderCard, OnnxEncoder, SentenceTransformerEncoder, bge_small
from adacur.first_stages.joined import SEPARATOR, Joined
from adacur.first_stages.matrix import Matrix
from adacur.first_stages.placing import AnyStage, Placed, Retriever, as_hits, placed
from adacur.first_stages.saved import read_settings
from adacur.protocols import FirstStage
from adacur.spelling import did_you_mean

__all__ = [
    "BM25",
    "FIRST_STAGES",
    "AnyStage",
    "Dense",
    "Encoder",
    "EncoderCard",
    "Joined",
    "Matrix",
    "OnnxEncoder",
    "Placed",
    "Retriever",
    "SentenceTransformerEncoder",
    "as_hits",
    "bge_small",
    "first_stage_named",
    "load_first_stage",
    "placed",
]

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
