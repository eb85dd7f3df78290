"""The server as an ASGI application: its routes."""

# No postponed annotations here: FastAPI reads those of routes, and the bodies are made for each application.

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any, Literal

import structlog
from fastapi import APIRouter, FastAPI, Query, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from adacur import __version__
from adacur.as_json import as_json
from adacur.errors import AdacurError, InputError, UnknownName
from adacur.extras.server.bodies import Name, find_request, rerank_request, search_request
from adacur.extras.server.concurrency import Turns
from adacur.extras.server.door import Door, notes_of
from adacur.extras.server.failures import ERRORS, Refusal, as_refusal, json_answer
from adacur.extras.server.indexes import (
    SearchRequest,
    Served,
    check_name,
    example_questions,
    find_of,
    named_index,
    plan_of,
)
from adacur.extras.server.metrics import METRICS_TYPE, Metrics
from adacur.extras.server.page import add_page, content_security_policy
from adacur.extras.server.recall import RecallCurves
from adacur.extras.server.scoring import ScorerWatch, ServedScorers, by_model, reranked
from adacur.extras.server.searching import Search, SearchStream, search_all
from adacur.extras.server.server_settings import ServerSettings
from adacur.money import Price
from adacur.replay import replay
from adacur.search import METHODS, AnchorIndex

_DESCRIPTION = (
    "Searches an index of items for those that its scorer, a cross-encoder for example, ranks highest, within a budget "
    "of calls to the scorer. `POST /v1/search` is the main route; the rerank routes score documents that the client "
    'sends. Every answer that is not a success is `{"error": {"code", "message"}, "detail"}`, also at unknown '
    "addresses (404) and for other HTTP methods than those below (405, with `Allow`)."
)
_EVENT = {"type": "object", "properties": {"event": {"enum": ["start", "round", "done", "error"]}, "data": {}}}
# Of a route that may stream.
_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; or, with `stream`, server-sent events: see `docs/serve.md` for the fields of each.",
        "content": {"text/event-stream": {"schema": _EVENT}},
    }
}
_COMPUTING: dict[int | str, dict[str, Any]] = {
    202: {"description": "The points so far: ask again after `Retry-After` seconds."}
}
_COUNTERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "For Prometheus."}
}
# Threads cost little while they wait.
_THREADS = 256


def create_app(
    indexes: Mapping[str, AnchorIndex], *, settings: ServerSettings | None = None, log: Any = None
) -> FastAPI:
    """As `adacur.extras.server.create_app`."""
    if not indexes:
        raise InputError("A server needs at least one index to serve.")
    server = _Server(indexes, settings=settings or ServerSettings(), log=log or _silent_log())
    app = FastAPI(
        title="adacur",
        summary="The items an expensive scorer ranks highest, within a budget of calls to it.",
        description=_DESCRIPTION,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=server.lifespan,
    )
    app.add_middleware(GZipMiddleware, compresslevel=5)
    app.add_middleware(
        Door, settings=server.settings, metrics=server.metrics, log=server.log, policy=content_security_policy()
    )
    for kind in (HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _raise_to_the_door)
    # The door checks keys, at unknown addresses too; these only describe them in OpenAPI.
    keys = (HTTPBearer(auto_error=False), APIKeyHeader(name="X-API-Key", auto_error=False))
    api = APIRouter(
        responses=ERRORS, dependencies=[Security(key) for key in keys] if server.settings.api_keys else None
    )
    server.add_search(api)
    server.add_rerank(api)
    server.add_indexes(api)
    server.add_health(app, api)
    app.include_router(api)
    add_page(app)
    return app


def _silent_log() -> Any:
    """A logger that writes nowhere, for applications that log by themselves."""
    return structlog.wrap_logger(structlog.ReturnLogger(), processors=[], wrapper_class=structlog.BoundLogger)


async def _raise_to_the_door(request: Request, error: Exception) -> Response:
    raise error


class _Server:
    """What the routes of one application share."""

    def __init__(self, indexes: Mapping[str, AnchorIndex], *, settings: ServerSettings, log: Any) -> None:
        self.settings = settings
        self.log = log
        self.metrics = Metrics()
        self.turns = Turns(concurrency=settings.concurrency, queue=settings.queue)
        self.curves = RecallCurves(settings, is_idle=lambda: not (self.turns.running or self.turns.waiting))
        price = None if settings.price is None else Price.of(settings.price)
        scorers = ServedScorers(metrics=self.metrics, price=price)
        for name in indexes:
            check_name(name)
        self.served = {name: Served(name, index.with_scorer(scorers.of)) for name, index in indexes.items()}
        self.watch = ScorerWatch(self.served, settings=settings, metrics=self.metrics, log=log)
        self.is_ready = False
        self.metrics.in_flight.set_function(lambda: self.turns.running)
        self.metrics.waiting.set_function(lambda: self.turns.waiting)

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Open everything in the background, and stop the background work in the end."""
        # A request holds a thread while an engine does not answer, longer than its client waits: asyncio's default of a
        # dozen or two would soon be used up, and with it every other index.
        threads = _Threads(_THREADS, thread_name_prefix="adacur-serve")
        asyncio.get_running_loop().set_default_executor(threads)
        tasks = [asyncio.ensure_future(self._open()), asyncio.ensure_future(self.watch.run())]
        try:
            yield
        finally:
            self.curves.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _open(self) -> None:
        """Open everything before the first search needs it; until then the server is not ready."""
        try:
            for one in self.served.values():
                await asyncio.to_thread(_warm, one)
                self.log.info("index", index=one.name, items=len(one.index), version=one.index.version)
        except Exception as error:
            # Searches that need it will fail in the same way; /readyz stays at 503.
            self.log.error("not ready", exc_info=error)
        else:
            self.is_ready = True

    def add_search(self, api: APIRouter) -> None:
        """POST /v1/search and /v1/find."""
        SearchBody, FindBody = search_request(self.settings), find_request(self.settings)

        @api.post("/v1/search", tags=["search"], summary="Search", responses=_STREAMED)
        async def search(request: Request, body: SearchBody) -> Response:  # type: ignore[valid-type]
            """Find the best k items of an index for a query, exactly scored, within a budget of scorer calls.

            With `"stream": true` or `Accept: text/event-stream` the answer is a stream of server-sent events:
            `start`, a `round` after each round, and `done` or `error`. A client that hangs up ends the search.
            """
            return await self._answered(request, body, plan_of)

        @api.post("/v1/find", tags=["search"], summary="Find all", responses=_STREAMED)
        async def find(request: Request, body: FindBody) -> Response:  # type: ignore[valid-type]
            """Find all items that score `above` or higher, at a recall that is certified.

            The first request for a line waits for a replay of the anchor queries. Streams are those of `/v1/search`.
            """
            return await self._answered(request, body, find_of)

    async def _answered(self, request: Request, body: Any, read: Callable[..., SearchRequest]) -> Response:
        """The answer to the searches that `read` makes of a body."""
        started, given = time.monotonic(), body.model_dump(exclude_unset=True)
        asked = read(self.served, given, settings=self.settings)
        self.watch.refuse_if_changed(asked.served)
        notes = {"index": asked.served.name, "k": asked.k, "queries": len(asked.queries), "method": asked.method}
        if self.settings.log_queries:
            notes["query"] = [query.text for query in asked.queries]
        notes_of(request.scope).update(notes)
        # Equal queries are searched once.
        distinct = tuple(dict.fromkeys(asked.queries))
        searches = [Search(asked, query, started=started, seconds=self.settings.seconds) for query in distinct]
        if given.get("stream") or "text/event-stream" in request.headers.get("accept", ""):
            if given.get("query") is None:
                raise Refusal(422, "invalid_request", "A stream answers one query: give query, not queries.")
            return SearchStream(searches[0], turns=self.turns, ended=partial(self._count, request, searches))
        try:
            work = partial(search_all, searches)
            results = await self.turns.run(work, receive=request.receive, seconds=self.settings.seconds)
        finally:
            self._count(request, searches)
        of = dict(zip(distinct, results, strict=True))
        return json_answer({"index": asked.served.name, "results": [of[query] for query in asked.queries]})

    def _count(self, request: Request, searches: list[Search], error: Exception | None = None) -> None:
        """Count the calls of searches; `error` ended a stream after its status had been sent."""
        notes = notes_of(request.scope)
        notes["calls"] = sum(search.calls for search in searches)
        for search in searches:
            if search.stopped not in (None, "refused"):
                of = search.request
                self.metrics.count_search(of.served.name, of.method, search.last, stopped=search.stopped)
        if error is not None:
            refusal = as_refusal(error)
            notes["error"] = refusal.code
            if refusal.status >= 500:
                notes["failure"] = error

    def add_rerank(self, api: APIRouter) -> None:
        """POST /v1/rerank, and /rerank for clients that write no version."""
        RerankRequest = rerank_request(self.settings)

        @api.post("/rerank", include_in_schema=False)
        @api.post("/v1/rerank", tags=["rerank"], summary="Re-rank documents")
        async def rerank(request: Request, body: RerankRequest) -> Response:  # type: ignore[valid-type]
            """Score the given documents exactly, all of them, for clients of Jina and for `adacur.scorer(URL)`."""
            given = body.model_dump()  # type: ignore[attr-defined]
            served = by_model(self.served, given["model"])
            notes_of(request.scope).update({"index": served.name, "documents": len(given["documents"])})
            if self.settings.log_queries:
                notes_of(request.scope)["query"] = given["query"]
            seconds = self.settings.seconds
            try:
                async with asyncio.timeout(seconds):
                    work = partial(reranked, served, given)
                    return json_answer(await self.turns.run(work, receive=request.receive, seconds=seconds))
            except TimeoutError as error:
                late = f"Scoring took more than {seconds:g} s. Send fewer documents at a time."
                raise Refusal(504, "out_of_time", late) from error

        @api.get("/v1/models", tags=["rerank"], summary="Names for `model`")
        async def list_models() -> Response:
            """The indexes, as clients of OpenAI list models."""
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "adacur"} for name in self.served]
            return json_answer({"object": "list", "data": models})

    def add_indexes(self, api: APIRouter) -> None:
        """Facts about the indexes, and their recall."""
        Method = Literal[*(name for name in METHODS if name != "exact")]  # type: ignore[valid-type]

        @api.get("/v1/indexes", tags=["indexes"], summary="What is served")
        async def list_indexes() -> Response:
            """The indexes, what each can do, and the limits of a request."""
            facts = await asyncio.to_thread(lambda: [self._facts(one) for one in self.served.values()])
            return json_answer({"indexes": facts, "default": next(iter(self.served))})

        @api.get("/v1/indexes/{name}/recall", tags=["indexes"], summary="Recall against budget", responses=_COMPUTING)
        async def recall(
            name: str,
            k: Annotated[int, Query(ge=1, le=self.settings.max_k, description="Recall of the best k.")] = 10,
            method: Annotated[Method, Query(description="The search method.")] = "gaussian",  # type: ignore[valid-type]
            first: Annotated[Name | None, Query(description="The first stage to start from.")] = None,
        ) -> Response:
            """The expected recall, measured on anchor queries as if they were new; no scorer is called."""
            one = named_index(self.served, name)
            curve = self.curves.curve(one.name, one.index, k=k, method=method, first=first)
            if "state" in curve:
                return json_answer(curve, status=202, headers={"Retry-After": "2"})
            return json_answer(curve)

    def _facts(self, one: Served) -> dict[str, Any]:
        index, snapshot = one.index, one.index.snapshot
        return {
            "name": one.name,
            "n_items": len(index),
            "n_anchors": len(index.anchor_queries),
            "version": index.version,
            "scorer": one.scorer_name,
            "first_stages": list(index.first_stages),
            "default_first": snapshot.chosen_first(**self.settings.defaults(), method=snapshot.default_method),
            "methods": list(snapshot.methods),
            "examples": example_questions(index),
            "tunings": as_json(index.tunings),
            "limits": self.settings.limits(),
        }

    def add_health(self, app: FastAPI, api: APIRouter) -> None:
        """For operators; counters need a key, the rest does not."""

        @api.get("/metrics", tags=["health"], summary="Counters", response_class=Response, responses=_COUNTERS)
        async def metrics() -> Response:
            """Requests, scorer calls, endings of searches, waiting and refused requests, in Prometheus' text format."""
            return Response(self.metrics.text(), headers={"Content-Type": METRICS_TYPE})

        @app.get("/healthz", tags=["health"], summary="Alive")
        async def health() -> Response:
            """Whether the process answers at all."""
            return json_answer({"status": "ok"})

        @app.get(
            "/readyz", tags=["health"], summary="Ready", responses={503: {"description": "Models are being opened."}}
        )
        async def ready() -> Response:
            """Whether everything is open, so that searches are answered without delay."""
            if not self.is_ready:
                return json_answer({"status": "starting"}, status=503, headers={"Retry-After": "1"})
            return json_answer({"status": "ready"})


class _Threads(ThreadPoolExecutor):
    """Threads where an exit or interrupt that other people's code raises ends its request, and not the event loop."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """As for any executor."""
        return super().submit(_as_error, work, *args, **options)


def _as_error(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return work(*args, **options)
    except Exception:
        raise
    except BaseException as stop:
        raise RuntimeError(f"A scorer, encoder or first stage raised {type(stop).__name__}: {stop}") from stop


def _warm(one: Served) -> None:
    index = one.index
    _ = index.scorer
    # A search that names no first stage may start from any that a tuning chose.
    for first in {index.snapshot.default_first, *(tuning.first for tuning in index.tunings)} - {None, "random"}:
        # A tuning may name a stage that the folder has no longer.
        with suppress(UnknownName):
            index.snapshot.stage(first)
    if index.anchor_queries and index.snapshot.in_memory:
        # Features are made from the scores once, which takes seconds where there are many.
        # Warnings are not silenced: this runs in a thread, and filters belong to the whole process.
        with suppress(AdacurError):
            replay(index, [index.anchor_queries[0]], 1, budget=1)
