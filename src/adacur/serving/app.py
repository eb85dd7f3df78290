"""The server as an ASGI application."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from adacur.search import AnchorIndex
from adacur.serving.failures import Refusal, json_answer
from adacur.serving.indexes import Served, asked_of
from adacur.serving.requests import body_of, unless_gone
from adacur.serving.searching import EventStream, Search, search_all
from adacur.serving.settings import ServerSettings
from adacur.serving.shapes import SearchRequest
from adacur.serving.turns import Turns

__all__ = ["create_app"]


def create_app(indexes: Mapping[str, AnchorIndex], *, settings: ServerSettings | None = None) -> FastAPI:
    """A server of these indexes, by the names that clients are to use; the first is the default."""
    settings = settings or ServerSettings()
    served = {name: Served(name, index) for name, index in indexes.items()}
    turns = Turns(concurrency=settings.concurrency, queue=settings.queue)
    app = FastAPI(title="adacur", docs_url=None, redoc_url=None)

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def refused_by_the_router(request: Request, error: HTTPException) -> Response:
        return Refusal(error.status_code, "not_found", str(error.detail)).response()

    @app.post("/v1/search")
    async def search(request: Request) -> Response:
        started = time.monotonic()
        body = await body_of(request, SearchRequest)
        asked = asked_of(served, body, settings=settings)
        searches = [Search(asked, query, started=started, seconds=settings.seconds) for query in asked.queries]
        if body.stream or "text/event-stream" in request.headers.get("accept", ""):
            if body.queries is not None:
                raise Refusal(422, "invalid_request", "A stream answers one query; give query, not queries.")
            planned = await asyncio.to_thread(asked.served.index.explain, asked.k, **asked.options)
            return EventStream(searches[0], turns=turns, settings=planned, ended=lambda *_: None)
        async with turns.one():
            results = await unless_gone(request, search_all(searches))
        return json_answer({"index": asked.served.name, "results": results})

    @app.get("/v1/indexes")
    async def list_indexes() -> Response:
        return json_answer({"indexes": [facts(one) for one in served.values()], "default": next(iter(served))})

    def facts(one: Served) -> dict[str, Any]:
        index = one.index
        return {
            "name": one.name,
            "n_items": len(index),
            "n_anchors": len(index.anchor_queries),
            "version": index.version,
            "scorer": index.card.name if index.card else None,
            "first_stages": list(index.first_stages),
            "default_first": index.default_first,
            "methods": list(one.methods),
            "tunings": [],
            "limits": settings.limits(),
        }

    if importlib.util.find_spec("adacur.serving.page"):
        page = importlib.import_module("adacur.serving.page")
        if hasattr(page, "page_router"):
            app.include_router(page.page_router())
    return app
