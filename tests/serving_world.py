"""Small indexes to serve, scorers that count and fail on demand, and a real server on loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import uvicorn

from adacur import BM25, AnchorIndex, Item, Query
from adacur.extras.server.running import listening
from adacur.protocols import ScorerCard
from adacur.records import Pair
from tests.rerank_servers import logit_of

__all__ = ["TextScorer", "serving", "world_index", "world_items"]

N_ITEMS = 150
N_ANCHORS = 24
_WORDS = ("river", "mountain", "ship", "novel", "bird", "island", "battle", "comet", "engine", "painter", "bridge")


class TextScorer:
    """Scores that follow from the texts; counts calls and pairs, may take its time, and may fail from some call on."""

    can_batch_callers = True

    def __init__(self, *, seconds: float = 0.0, fails_after: int | None = None, name: str = "texts") -> None:
        self.card = ScorerCard(name=name, backend="function")
        self.seconds = seconds
        self.fails_after = fails_after
        self.calls: list[int] = []
        self.began = threading.Event()
        self._lock = threading.Lock()

    @property
    def pairs(self) -> int:
        return sum(self.calls)

    def score(self, pairs: Sequence[Pair]) -> Any:
        with self._lock:
            self.calls.append(len(pairs))
            number = len(self.calls)
        self.began.set()
        if self.fails_after is not None and number > self.fails_after:
            raise RuntimeError("the secret address 10.0.0.1 is down")
        time.sleep(self.seconds)
        return np.array([logit_of(query.text, item.text) for query, item in pairs])


def world_items(n_items: int = N_ITEMS) -> list[Item]:
    """Items with titles, and with metadata to filter by."""
    return [
        Item(
            f"i{at}",
            f"The {_WORDS[at % 11]} of {_WORDS[at * 7 % 11]} number {at}",
            {"title": f"Title {at}", "even": at % 2 == 0, "group": at % 3, "tags": [_WORDS[at % 11], "all"]},
        )
        for at in range(n_items)
    ]


def world_index(scorer: Any = None, *, n_items: int = N_ITEMS) -> AnchorIndex:
    """An index whose anchor scores are those of `TextScorer`."""
    items = world_items(n_items)
    anchors = [Query(f"a{at}", f"anchor about a {_WORDS[at % 11]} and {at}") for at in range(N_ANCHORS)]
    scores = np.array([[logit_of(anchor.text, item.text) for item in items] for anchor in anchors])
    return AnchorIndex.from_arrays(
        items=items,
        anchor_queries=anchors,
        scores=scores,
        scorer=TextScorer() if scorer is None else scorer,
        first={"bm25": BM25.build(items)},
    )


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The URL of this application on loopback, until the end of the block."""
    at = listening("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [at]}, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the server did not start")
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{at.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        at.close()
