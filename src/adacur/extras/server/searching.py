"""A search for a client: as one answer, or as an event per round; it is cancelled when the client disconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import accumulate
from typing import Any

import numpy as np
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Receive, Scope, Send

from adacur.as_json import as_json, certified, hit_rows, spent
from adacur.errors import AdacurError, EmptyInput
from adacur.extras.server.concurrency import Turns
from adacur.extras.server.failures import ClientGone, Refusal, as_refusal, json_text
from adacur.extras.server.indexes import SearchRequest
from adacur.extras.server.shared_loop import stepped
from adacur.protocols import Items
from adacur.records import Query
from adacur.results import Hits, Round, Trace
from adacur.search.plan import Plan

_SECONDS_TO_READ = 30.0
_TITLE_CHARS = 80


class Search:
    """The search of one query; `last` holds its hits so far."""

    def __init__(self, request: SearchRequest, query: Query, *, started: float, seconds: float) -> None:
        self.request = request
        self.query = query
        self.last: Hits | None = None
        # What ended it, once it has begun: as its answer says, or "failed", "refused", "unfinished".
        self.stopped: str | None = None
        self._started = started
        self.seconds = seconds

    @property
    def calls(self) -> int:
        """Scorer calls whose scores have arrived."""
        return 0 if self.last is None else self.last.trace.calls

    @property
    def seconds_left(self) -> float:
        """Seconds left to its request."""
        return max(0.0, self.seconds - (time.monotonic() - self._started))

    async def planned(self) -> Plan:
        """What this search does; that of a find may take a replay of the anchor queries."""
        async with asyncio.timeout(self.seconds_left):
            return await asyncio.to_thread(self.request.plan)

    def too_late(self) -> Refusal:
        """The error of a request whose time is over before anything was scored."""
        message = f"Nothing was scored within {self.seconds:g} s. Ask for less, or try again later."
        return Refusal(504, "out_of_time", message)

    async def rounds(self, *, every_round: bool = True) -> AsyncGenerator[Hits]:
        """Search to the end, or until the time of the request is over: the hits after each round, or the last."""
        request = self.request
        self.stopped = "unfinished"
        try:
            plan = await self.planned()
            # All requests of a scorer step in one loop.
            steps = stepped(
                request.served.index,
                plan,
                self.query,
                request.k,
                started=self._started,
                every_round=every_round,
                so_far=self._note,
            )
            async with aclosing(steps):
                while True:
                    async with asyncio.timeout(self.seconds_left):
                        hits = await anext(steps, None)
                    if hits is None:
                        break
                    self._note(hits)
                    yield hits
            if self.last is not None:
                self.stopped = self.last.trace.stopped
        except EmptyInput:
            if not request.is_filtered:
                self.stopped = "refused"
                raise
            # No item passes the filter. That is not an error: a person may have chosen the filter on a page.
            self.last = Hits(self.query, ids=(), scores=np.empty(0), trace=Trace(stopped="exhausted"))
            self.stopped = "exhausted"
        except TimeoutError as error:
            self.stopped = "deadline"
            if self.last is None:
                raise self.too_late() from error
        except Exception as error:
            for hits in getattr(error, "hits", ()):
                self._note(hits)
            self.stopped = "failed" if as_refusal(error).status >= 500 else "refused"
            raise

    async def run(self) -> None:
        """Search to the end."""
        async with aclosing(self.rounds(every_round=False)) as rounds:
            async for _ in rounds:
                pass

    def _note(self, hits: Hits) -> None:
        self.last = hits

    def answer(self) -> dict[str, Any]:
        """The answer, at the end."""
        assert self.last is not None
        rounds = self.last.trace.rounds
        hits = hit_rows(self.last)
        if self.request.explain:
            explained = self.request.served.index.explain(self.last)
            hits = [hit | {"explanation": as_json(one)} for hit, one in zip(hits, explained, strict=True)]
        return {
            "query": self.query.text,
            "verdict": self.last.verdict,
            "relevance_by": self.last.trace.settings.get("relevance"),
            "hits": hits,
            "calls": self.calls,
            **spent(self.last.trace),
            "stopped": self.stopped,
            **certified(self.last),
            "seconds": self.last.trace.seconds,
            "expected_recall": next((one.expected_recall for one in reversed(rounds) if one.expected_recall), None),
            **({"trace": self._trace(rounds)} if self.request.trace else {}),
        }

    def round_event(self, hits: Hits) -> dict[str, Any]:
        """The last round, and the top k so far."""
        items = self.request.served.index.items
        return _round(hits.trace.rounds[-1], calls=hits.trace.calls, items=items) | {"hits": hit_rows(hits)}

    def partial(self) -> dict[str, Any]:
        """The hits so far, to go with an error."""
        return {"hits": [] if self.last is None else hit_rows(self.last), "calls": self.calls}

    def _trace(self, rounds: Sequence[Round]) -> list[dict[str, Any]]:
        calls, items = accumulate(len(one.positions) for one in rounds), self.request.served.index.items
        return [_round(one, calls=n, items=items) for one, n in zip(rounds, calls, strict=True)]


def _round(one: Round, *, calls: int, items: Items) -> dict[str, Any]:
    predicted = [None] * len(one.positions) if one.predicted is None else np.asarray(one.predicted).tolist()
    scored = zip(one.scored_items(items), predicted, np.asarray(one.exact).tolist(), strict=True)
    return {
        "number": one.number,
        "calls": calls,
        "items": [
            {
                "id": item.id,
                "title": str(item.metadata.get("title") or " ".join(item.text.split())[:_TITLE_CHARS]),
                "predicted": as_json(guess),
                "exact": exact,
            }
            for item, guess, exact in scored
        ],
        "seconds": dict(one.seconds),
        "expected_recall": one.expected_recall,
    }


async def search_all(searches: list[Search]) -> list[dict[str, Any]]:
    """The answers of several queries, which share scorer calls with each other and with other requests."""
    tasks = [asyncio.ensure_future(search.run()) for search in searches]
    try:
        await asyncio.gather(*tasks)
    except AdacurError as error:
        refusal = as_refusal(error)
        if refusal.status >= 500:
            partial = [one.partial() for one in searches]
            refusal.more = partial[0] if len(partial) == 1 else {"results": partial}
        raise refusal from error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return await asyncio.to_thread(lambda: [search.answer() for search in searches])


class SearchStream(EventSourceResponse):
    """A search as server-sent events: start, round after round, and done or error.

    FastAPI's own streaming takes a whole route; this route answers in JSON too, and a refused request must have an
    error status.
    """

    def __init__(self, search: Search, *, turns: Turns, ended: Callable[[Exception | None], None]) -> None:
        # A proxy that buffers the whole answer would spoil the stream.
        super().__init__(self._events(), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._search = search
        self._turns = turns
        self._settings: Mapping[str, Any] = {}
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stream() -> None:
            try:
                # In its turn, and before the status is sent.
                self._settings = (await self._search.planned()).settings()
            except EmptyInput:
                # The search says so in its turn, without a hit.
                if not self._search.request.is_filtered:
                    raise
            except TimeoutError as error:
                raise self._search.too_late() from error
            try:
                async with asyncio.timeout(self._search.seconds_left + _SECONDS_TO_READ):
                    await self.stream_response(send)
            except TimeoutError:
                # A client that does not read its answer must not hold a turn.
                raise ClientGone from None

        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await self._turns.run(stream, receive=receive, seconds=self._search.seconds)

    async def _events(self) -> AsyncIterator[bytes]:
        search, index = self._search, self._search.request.served
        start = {"index": index.name, "n_items": len(index.index), "k": search.request.k}
        start |= {"budget": self._settings.get("budget"), "method": search.request.method}
        failure: Exception | None = None
        try:
            yield _event("start", start | {"settings": self._settings})
            async with aclosing(search.rounds()) as rounds:
                async for hits in rounds:
                    if hits.trace.rounds:
                        yield _event("round", await asyncio.to_thread(search.round_event, hits))
            yield _event("done", await asyncio.to_thread(search.answer) | {"index": index.name})
        except Exception as error:
            failure = error
            yield _event("error", as_refusal(error).body() | search.partial())
        finally:
            self._ended(failure)


def _event(name: str, content: dict[str, Any]) -> bytes:
    return format_sse_event(event=name, data_str=json_text(content).decode())
