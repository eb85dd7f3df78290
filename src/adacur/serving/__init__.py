"""Searches over HTTP: the server, and the page that shows a search as it happens.

Where to change what, in the order in which a request meets it:

- the process: `running` (socket, signals, end), `opening` (folders to indexes), `settings` (limits, keys), `logs`;
- every request: `door` (key, size, log line), `requests` (its body), `shapes` (fields of bodies and answers),
  `failures` (what becomes of an error), `turns` (how many at a time), `metrics`;
- routes: `app`, which calls `indexes` (what a search may ask), `searching` (answers and streams), `answers` (their
  JSON), `reranking`, `recall` (curves); `scoring` is where requests share a scorer;
- documents: `description` (OpenAPI), `reference` (`/docs`), `page` and the folder `page/` (`/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adacur.core.extras import require
from adacur.search import AnchorIndex
from adacur.serving.settings import ServerSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["ServerSettings", "create_app"]


def create_app(
    indexes: Mapping[str, AnchorIndex], *, settings: ServerSettings | None = None, log: Any = None
) -> FastAPI:
    """A server of these indexes as an ASGI application, by the names that clients are to use; the first is the default.

    Scorers and first stages are opened when the application starts. Indexes with the same scorer object share its
    calls. `log` is a structlog logger, told of every request; by default nobody is.
    """
    for module in ("fastapi", "prometheus_client", "structlog"):
        require(module, extra="serving")
    from adacur.serving import app

    return app.create_app(indexes, settings=settings, log=log)
