"""Searches that step in the loop of their scorer and do not wait for their reader, as a server runs them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from adacur import AnchorIndex, Hits, Query
from adacur.extras.server.shared_loop import stepped
from adacur.search import plan_search


def asearch_iter(
    index: AnchorIndex, query: Query | str, k: int = 10, *, every_round: bool = True, so_far: Any = None, **options: Any
) -> AsyncGenerator[Hits, None]:
    started, plan = time.monotonic(), plan_search(index, k, **options)
    return stepped(index, plan, query, k, started=started, every_round=every_round, so_far=so_far)
