"""The server as an ASGI application."""

from __future__ import annotations

import asyncio
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from adacur.core.errors import AdacurError, InputError
from adacur.search import AnchorIndex
from adacur.serving import shapes
from adacur.serving.description import DESCRIPTION, EVENT, TAGS, described, errors, json_body
from adacur.serving.door import Door, noted
from adacur.serving.failures import Refusal, as_refusal, json_answer
from adacur.serving.indexes import Asked, Served, asked_of, check_name, chosen
from adacur.serving.logs import silent_log
from adacur.serving.metrics import METRICS_TYPE, Metrics
from adacur.serving.page import page_router, policy
from adacur.serving.recall import RecallCurves, tunings_of
from adacur.serving.reference import reference_page
from adacur.serving.requests import body_of, in_words, unless_gone
from adacur.serving.reranking import Documents, documents_of
from adacur.serving.scoring import ServedScorers
from adacur.serving.searching import EventStream, Search, search_all
from adacur.serving.settings import ServerSettings
from adacur.serving.turns import Turns

__all__ = ["create_app"]

_SECONDS_UNTIL_RECALL = 2


def create_app(
    indexes: Mapping[str, AnchorIndex], *, settings: ServerSettings | None = None, log: Any = None
) -> FastAPI:
    """A server of these indexes, by the names that clients are to use; the first is the default.

    Scorers and first stages are opened when the application starts. Indexes with the same scorer object share its
    calls. `log` is a structlog logger, told of every request; by default nobody is.
    """
    if not indexes:
        raise InputError("A server needs at least one index to serve.")
    server = _Server(indexes, settings=settings or ServerSettings(), log=silent_log() if log is None else log)
    return server.application()


class _Server:
    """What the routes of one application share."""

    def __init__(self, indexes: Mapping[str, AnchorIndex], *, settings: ServerSettings, log: Any) -> None:
        self.settings = settings
        self.log = log
        self.metrics = Metrics()
        self.turns = Turns(concurrency=settings.concurrency, queue=settings.queue)
        self.curves = RecallCurves(
            queries=settings.recall_queries,
            max_budget=settings.max_budget,
            is_idle=lambda: not (self.turns.running or self.turns.waiting),
        )
        scorers = ServedScorers(metrics=self.metrics, shared=settings.shared_batches)
        for name in indexes:
            check_name(name)
        self.served = {name: Served(name, index.with_scorer(scorers.of)) for name, index in indexes.items()}
        self.is_ready = False
        self.metrics.in_flight.set_function(lambda: self.turns.running)
        self.metrics.waiting.set_function(lambda: self.turns.waiting)

    def application(self) -> FastAPI:
        """The routes behind the door."""
        app = FastAPI(
            title="adacur",
            summary="The items an expensive scorer likes best, within a budget of calls to it.",
            description=DESCRIPTION,
            version=_version(),
            openapi_tags=TAGS,
            docs_url=None,
            redoc_url=None,
            lifespan=self._lifespan,
        )
        app.state.turns = self.turns
        app.add_middleware(Door, settings=self.settings, metrics=self.metrics, log=self.log, policy=policy())
        app.add_exception_handler(HTTPException, _by_the_router)
        app.add_exception_handler(RequestValidationError, _bad_parameter)
        self._add_searches(app)
        self._add_facts(app)
        self._add_health(app)
        describe = app.openapi
        stages = dict.fromkeys(name for one in self.served.values() for name in one.index.first_stages)
        app.openapi = lambda: described(  # type: ignore[method-assign]
            describe(), settings=self.settings, indexes=list(self.served), first_stages=list(stages)
        )
        app.include_router(page_router())
        return app

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        opening = asyncio.ensure_future(self._open())
        try:
            yield
        finally:
            self.turns.stop()
            self.curves.stop()
            opening.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await opening

    async def _open(self) -> None:
        """Open everything before the first search needs it; until then the server is not ready."""
        try:
            for one in self.served.values():
                await asyncio.to_thread(_warm, one)
                self.metrics.tell_tunings(one.name, one.index.tunings)
                self.log.info("index", index=one.name, items=len(one.index), version=one.index.version)
        except Exception as error:
            # Searches that need it will say the same; /readyz stays at 503.
            self.log.error("not ready", exc_info=error)
        else:
            self.is_ready = True

    def _add_searches(self, app: FastAPI) -> None:
        @app.post(
            "/v1/search",
            tags=["search"],
            summary="Search",
            responses={
                200: {
                    "model": shapes.SearchAnswer,
                    "description": "The best k items of each query; or, with `stream`, an event per round.",
                    "content": {"text/event-stream": {"schema": EVENT}},
                },
                502: {"model": shapes.FailedSearch, "description": "The scorer failed; what was found by then."},
                **errors(400, 401, 404, 408, 413, 415, 422, 429, 500, 503, 504),
            },
            openapi_extra=json_body(shapes.SearchRequest),
        )
        async def search(request: Request) -> Response:
            """Find the best k items of an index for a query, exactly scored, within a budget of scorer calls.

            With `"stream": true` or `Accept: text/event-stream` the answer is a stream of server-sent events:
            `start`, a `round` after each round, and `done` or `error`. A client that hangs up ends the search.
            """
            started = time.monotonic()
            body = await body_of(request, shapes.SearchRequest, settings=self.settings)
            asked = asked_of(self.served, body, settings=self.settings)
            self._note_search(request, asked)
            searches = [Search(asked, one, started=started, seconds=self.settings.seconds) for one in asked.queries]
            if body.stream or "text/event-stream" in request.headers.get("accept", ""):
                if body.queries is not None:
                    raise Refusal(422, "invalid_request", "A stream answers one query: give query, not queries.")
                self.turns.check()
                planned = await asyncio.to_thread(asked.served.index.explain, asked.k, **asked.options)
                return EventStream(
                    searches[0],
                    turns=self.turns,
                    settings=planned,
                    ended=lambda error: self._ended(request, searches, error),
                )

            async def in_turn() -> list[dict[str, Any]]:
                async with self.turns.one(within=self.settings.seconds):
                    return await search_all(searches)

            try:
                results = await unless_gone(request, in_turn())
            finally:
                self._ended(request, searches)
            return json_answer({"index": asked.served.name, "results": results})

        @app.post(
            "/v1/rerank",
            tags=["rerank"],
            summary="Re-rank documents (Jina, vLLM)",
            responses={
                200: {"model": shapes.RerankAnswer, "description": "The documents, best first."},
                **errors(400, 401, 404, 408, 413, 415, 422, 429, 500, 502, 503, 504),
            },
            openapi_extra=json_body(shapes.RerankRequest),
        )
        async def rerank(request: Request) -> Response:
            """Score the given documents exactly, all of them, in the shape that Jina's and vLLM's clients know."""
            body = await body_of(request, shapes.RerankRequest, settings=self.settings)
            documents, ranked = await self._reranked(request, body)
            with_texts = body.return_documents is not False
            return json_answer(
                {
                    "id": str(uuid.uuid4()),
                    "model": documents.served.scorer.card.name,
                    "results": [
                        {"index": at, "relevance_score": score}
                        | ({"document": {"text": documents.texts[at]}} if with_texts else {})
                        for at, score in ranked
                    ],
                    "usage": {"total_tokens": documents.n_words, "scored_pairs": len(documents.texts)},
                }
            )

        @app.post(
            "/v2/rerank",
            tags=["rerank"],
            summary="Re-rank documents (Cohere)",
            responses={
                200: {"model": shapes.CohereRerankAnswer, "description": "The documents, best first."},
                **errors(400, 401, 404, 408, 413, 415, 422, 429, 500, 502, 503, 504),
            },
            openapi_extra=json_body(shapes.CohereRerankRequest),
        )
        async def cohere_rerank(request: Request) -> Response:
            """Score the given documents exactly, all of them, in the shape that Cohere's clients know."""
            _, ranked = await self._reranked(
                request, await body_of(request, shapes.CohereRerankRequest, settings=self.settings)
            )
            return json_answer(
                {
                    "id": str(uuid.uuid4()),
                    "results": [{"index": at, "relevance_score": score} for at, score in ranked],
                    "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
                }
            )

    def _add_facts(self, app: FastAPI) -> None:
        @app.get(
            "/v1/indexes",
            tags=["indexes"],
            summary="What is served",
            responses={200: {"model": shapes.Indexes}, **errors(401, 500)},
        )
        async def list_indexes() -> Response:
            """The indexes, what each can be asked for, and the limits of a request."""
            facts = await asyncio.to_thread(lambda: [self._facts(one) for one in self.served.values()])
            return json_answer({"indexes": facts, "default": next(iter(self.served))})

        @app.get(
            "/v1/indexes/{name}/recall",
            tags=["indexes"],
            summary="Recall against budget",
            responses={
                200: {"model": shapes.RecallCurve, "description": "The expected recall at several budgets."},
                202: {"model": shapes.Computing, "description": "It is being computed: ask again."},
                **errors(401, 404, 422, 429, 500),
            },
        )
        async def recall(
            name: str,
            k: Annotated[int, Query(ge=1, description="Recall of the best k.")] = 10,
            method: Literal["gaussian", "adacur", "anncur", "axn", "rerank"] = "gaussian",
            first: Annotated[
                str | None, Query(max_length=1000, description="The first stage that searches start from.")
            ] = None,
        ) -> Response:
            """The recall to expect, measured on anchor queries as if they were new; no scorer is called."""
            one = chosen(self.served, name)
            if k > self.settings.max_k:
                raise Refusal(422, "k_over_limit", f"k may be at most {self.settings.max_k} here; got {k}.")
            curve = self.curves.curve(one.name, one.index, k=k, method=method, first=first)
            if curve is None:
                return json_answer(
                    {"state": "computing"}, status=202, headers={"Retry-After": str(_SECONDS_UNTIL_RECALL)}
                )
            return json_answer(curve)

    def _add_health(self, app: FastAPI) -> None:
        @app.get("/healthz", tags=["health"], summary="Alive", responses={200: {"model": shapes.Ready}})
        async def health() -> Response:
            """Whether the process answers at all."""
            return json_answer({"status": "ok"})

        @app.get(
            "/readyz",
            tags=["health"],
            summary="Ready",
            responses={
                200: {"model": shapes.Ready},
                503: {"model": shapes.Ready, "description": "Models are being opened, or the server is stopping."},
            },
        )
        async def ready() -> Response:
            """Whether searches are taken and can be answered at once."""
            if self.turns.is_stopping:
                return json_answer({"status": "stopping"}, status=503, headers={"Retry-After": "5"})
            if not self.is_ready:
                return json_answer({"status": "starting"}, status=503, headers={"Retry-After": "1"})
            return json_answer({"status": "ready"})

        @app.get(
            "/metrics",
            tags=["health"],
            summary="Counters",
            response_class=Response,
            responses={
                200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "For Prometheus."},
                **errors(401, 500),
            },
        )
        async def metrics() -> Response:
            """Requests, scorer calls, seconds per step, what waits and what was refused, in Prometheus' text format."""
            return Response(self.metrics.text(), headers={"Content-Type": METRICS_TYPE})

        @app.get("/docs", include_in_schema=False)
        async def docs() -> Response:
            return Response(reference_page(app.openapi()), media_type="text/html")

    async def _reranked(
        self, request: Request, body: shapes.RerankRequest | shapes.CohereRerankRequest
    ) -> tuple[Documents, list[tuple[int, float]]]:
        documents = documents_of(self.served, body, settings=self.settings)
        notes = noted(request.scope)
        notes |= {"index": documents.served.name, "documents": len(documents.texts)}
        if self.settings.log_queries:
            notes["query"] = documents.query

        async def in_turn() -> list[tuple[int, float]]:
            async with self.turns.one(within=self.settings.seconds):
                await asyncio.to_thread(lambda: documents.served.scorer)
                return await documents.scored()

        try:
            async with asyncio.timeout(self.settings.seconds):
                return documents, await unless_gone(request, in_turn())
        except TimeoutError as error:
            raise Refusal(
                504, "out_of_time", f"It took more than {self.settings.seconds:g} s. Send fewer documents at a time."
            ) from error

    def _note_search(self, request: Request, asked: Asked) -> None:
        notes = {"index": asked.served.name, "k": asked.k, "queries": len(asked.queries)}
        notes |= {name: asked.options[name] for name in ("method", "budget") if name in asked.options}
        if self.settings.log_queries:
            notes["query"] = [query.text for query in asked.queries]
        noted(request.scope).update(notes)

    def _ended(self, request: Request, searches: list[Search], error: Exception | None = None) -> None:
        """Count what was spent; `error` is what a stream told after its status had been sent."""
        notes = noted(request.scope)
        notes["calls"] = sum(search.calls for search in searches)
        for search in searches:
            if search.stopped not in (None, "refused"):
                asked = search.asked
                self.metrics.count_search(
                    asked.served.name, asked.options["method"], search.last, stopped=search.stopped
                )
        if error is not None:
            refusal = as_refusal(error)
            notes["error"] = refusal.code
            if refusal.status >= 500:
                notes["failure"] = error

    def _facts(self, one: Served) -> dict[str, Any]:
        index = one.index
        return {
            "name": one.name,
            "n_items": len(index),
            "n_anchors": len(index.anchor_queries),
            "version": index.version,
            "scorer": one.scorer_name,
            "first_stages": list(index.first_stages),
            "default_first": index.default_first,
            "methods": list(one.methods),
            "tunings": tunings_of(index),
            "limits": self.settings.limits(),
        }


def _warm(one: Served) -> None:
    index = one.index
    _ = one.scorer
    if index.default_first != "random":
        index.first_stage(index.default_first)
    if index.anchor_queries:
        # Features are made from the scores once, which takes seconds where there are many.
        with warnings.catch_warnings(), suppress(AdacurError):
            warnings.simplefilter("ignore")
            index.replay([index.anchor_queries[0]], 1, budget=1)


async def _by_the_router(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    words = {
        404: "There is nothing at this address. /docs lists what there is.",
        405: f"This address does not take {request.method[:20]}. /docs says what it takes.",
    }
    status = error.status_code
    code = codes.get(status, "refused")
    noted(request.scope)["error"] = code
    return Refusal(status, code, words.get(status, str(error.detail)), headers=error.headers).response()


async def _bad_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [{**fault, "loc": fault["loc"][1:]} for fault in error.errors()]
    noted(request.scope)["error"] = "invalid_request"
    return Refusal(422, "invalid_request", in_words(faults)).response()


def _version() -> str:
    from adacur import __version__

    return __version__
