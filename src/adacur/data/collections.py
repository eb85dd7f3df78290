"""Real collections that every machine can fetch."""

from __future__ import annotations

import json
from pathlib import Path

from adacur.core.records import Item
from adacur.data.catalogue import fetch

__all__ = ["wikivital"]


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
