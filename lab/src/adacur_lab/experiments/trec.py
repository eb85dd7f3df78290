"""Run files as TREC has them, for whatever reads those."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adacur.errors import InputError
from adacur.results import Hits

__all__ = ["write_trec"]


def write_trec(path: str | Path, found: Sequence[Hits], *, tag: str) -> None:
    """Write `qid Q0 docno rank score tag` per hit, ranks from 1, in one step.

    Readers of run files sort by score, so it is what the hits were ranked by: the fused value where there is one.
    """
    for id_ in (tag, *(hits.query.id for hits in found), *(id_ for hits in found for id_ in hits.ids)):
        if not id_ or len(id_.split()) != 1:
            raise InputError(f"A TREC run separates its columns by spaces, so no id may hold one; got {id_!r}.")
    lines = [
        f"{hits.query.id} Q0 {hit.id} {hit.rank} {(hit.score if hit.fused is None else hit.fused)!r} {tag}\n"
        for hits in found
        for hit in hits
    ]
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    partial.write_text("".join(lines), encoding="utf-8")
    partial.replace(target)
