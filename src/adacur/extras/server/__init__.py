"""Searches over HTTP: the server, and the page that shows a search as it happens.

Where to change what, in the order in which a request meets it:

- the process: `commands`, `running` (socket, log, end), `open_indexes`, `server_settings` (limits, keys);
- every request: `door` (host, key, size, log line), `bodies` (its fields and limits), `failures` (errors as answers),
  `concurrency` (how many at a time), `metrics`;
- routes: `application`, which calls `indexes` (from a body to the options of a search), `searching` (answers and
  streams), `recall` (curves);
- calls of scorers: `shared_loop` steps all searches of a scorer, `sharing` divides each call among them, `scoring`
  counts calls, re-ranks, and checks that scorers are still the same;
- the page: `page` and the folder `page/` (`/`);
- afterwards: `explain` (why an item is a hit), `search_log`, and `refresh`, which makes anchor queries of the log.

Methods and their options come from the table `adacur.search.METHODS`: a new method needs no line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adacur.extras.server.explain import AnchorEvidence, Explanation, FirstStageEvidence
from adacur.extras.server.refresh import Refreshed, refresh
from adacur.extras.server.search_log import SearchLog, SearchLogWarning
from adacur.extras.server.server_settings import ServerSettings
from adacur.requirements import require
from adacur.search import AnchorIndex

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = [
    "AnchorEvidence",
    "Explanation",
    "FirstStageEvidence",
    "Refreshed",
    "SearchLog",
    "SearchLogWarning",
    "ServerSettings",
    "create_app",
    "refresh",
]


def create_app(
    indexes: Mapping[str, AnchorIndex], *, settings: ServerSettings | None = None, log: Any = None
) -> FastAPI:
    """A server of these indexes as an ASGI application.

    Scorers and first stages are opened when the application starts. Indexes with the same scorer object share its
    calls.

    - `indexes`: by the names that clients use; the first is the default;
    - `settings`: limits, keys and switches;
    - `log`: a structlog logger with a line for every request; by default nothing is logged.
    """
    for module in ("fastapi", "prometheus_client", "structlog"):
        require(module, extra="serving")
    from adacur.extras.server import application as app

    return app.create_app(indexes, settings=settings, log=log)
