"""Searches over HTTP: the server, and the page that shows a search as it happens."""

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
