"""Real collections that every machine can fetch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adacur.core.errors import FileFormatError
from adacur.core.records import Item, Query
from adacur.data.catalogue import fetch
from adacur.data.judged_collection import JudgedCollection

_MONDO = "MONDO-ontology-v2026-05-05.json.zst"


def wikivital(*, cache: str | Path | None = None) -> list[Item]:
    """Introductions of 10,033 Wikipedia articles (CC BY-SA 4.0), fetched once; metadata: title, description, topic."""
    path = fetch("wikivital", cache=cache) / "summaries_en-us.json"
    articles = json.loads(path.read_text(encoding="utf-8"))
    # Ids are row numbers in the order of titles, which the published scores and judgements refer to.
    return [
        Item(
            id=f"w{row}",
            text=f"{title}. {article['extract']}",
            metadata={"title": title, "description": article["description"], "topic": article["topic"]},
        )
        for row, (title, article) in enumerate(sorted(articles.items()))
    ]


def mondo(*, cache: str | Path | None = None) -> JudgedCollection:
    """27,990 diseases (name and definition) and 60,025 synonyms that ask for them (CC BY 4.0), fetched once.

    The queries of a disease are its synonyms, less those that differ from its name in upper and lower case alone.
    """
    diseases = {
        id_: disease
        for id_, disease in sorted(_unpacked(fetch("mondo", cache=cache) / _MONDO).items())
        if not disease["deprecated"]
    }
    synonyms = {
        Query(f"{id_}#{place}", synonym): id_
        for id_, disease in diseases.items()
        for place, synonym in enumerate(disease.get("synonyms", ()))
        if synonym.casefold() != disease["label"].casefold()
    }
    return JudgedCollection(
        name="mondo",
        items=[
            Item(
                id=id_,
                text=". ".join(filter(None, (disease["label"], disease.get("description")))),
                metadata={"title": disease["label"]},
            )
            for id_, disease in diseases.items()
        ],
        queries=list(synonyms),
        qrels={query.id: {id_: 1} for query, id_ in synonyms.items()},
    )


def _unpacked(file: Path) -> dict[str, Any]:
    # Zstandard is in the standard library from Python 3.14 on; zarr brings numcodecs to all of ours.
    from numcodecs import Zstd  # type: ignore[import-untyped]

    try:
        content: dict[str, Any] = json.loads(bytes(Zstd().decode(file.read_bytes())))
    except (RuntimeError, ValueError) as error:
        raise FileFormatError(
            f"{file} is damaged ({error}). Remove the folder {file.parent}, and it is fetched anew."
        ) from error
    return content
