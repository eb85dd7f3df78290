"""A search for a client: as one answer, or as an event per round; it stops spending when the client goes away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adacur.core.as_json import hit_rows
from adacur.core.errors import AdacurError, EmptyInput
from adacur.core.records import Query
from adacur.core.results import Hits, Trace
from adacur.serving.answers import found, round_event, sse
from adacur.serving.failures import Refusal, as_refusal
from adacur.serving.indexes import Asked
from adacur.serving.requests import ClientGone, unless_gone
from adacur.serving.turns import Turns

__all__ = ["EventStream", "Search", "search_all"]

# Proxies hang up on a connection that says nothing, and a slow scorer may take longer than they wait.
_SECONDS_OF_SILENCE = 15.0
_SECONDS_TO_READ = 30.0


class Search:
    """One query on its way; `last` is what it has found by now."""

    def __init__(self, asked: Asked, query: Query, *, started: float, seconds: float) -> None:
        self.asked = asked
        self.query = query
        self.last: Hits | None = None
        # What ended it, once it has begun: as its answer says, or "failed", "refused", or nobody waited for the end.
        self.stopped: str | None = None
        self._started = started
        self.seconds = seconds

    @property
    def calls(self) -> int:
        """Scorer calls that it has the answers of."""
        return 0 if self.last is None else self.last.trace.calls

    @property
    def seconds_left(self) -> float:
        """What is left of the time of its request."""
        return max(0.0, self.seconds - (time.monotonic() - self._started))

    async def run(self, told: Callable[[Hits], Awaitable[None]] | None = None) -> None:
        """Search to the end, or until the time of the request is over."""
        self.stopped = "unfinished"
        try:
            async with asyncio.timeout(self.seconds_left):
                spent = self.seconds - self.seconds_left
                async with aclosing(self.asked.rounds(self.query, spent=spent)) as rounds:
                    async for hits in rounds:
                        self.last = hits
                        if told is not None:
                            await told(hits)
            if self.last is not None:
                self.stopped = self.last.trace.stopped
        except EmptyInput:
            if "filter" not in self.asked.options:
                raise
            # Nothing that may be found: no error to a client, whose filter is what a person chose on a page.
            self.last = Hits(self.query, ids=(), scores=np.empty(0), trace=Trace(stopped="exhausted"))
            self.stopped = "exhausted"
        except TimeoutError as error:
            self.stopped = "deadline"
            if self.last is None:
                raise Refusal(
                    504,
                    "out_of_time",
                    f"Nothing was scored within {self.seconds:g} s, the most that a request may take here. "
                    "Ask for a smaller budget or for more rounds, or try again when the server is less busy.",
                ) from error
        except Exception as error:
            self.stopped = "failed" if as_refusal(error).status >= 500 else "refused"
            raise

    def found(self) -> dict[str, Any]:
        """The answer so far."""
        assert self.last is not None
        assert self.stopped is not None
        return found(self.last, items=self.asked.served.index.items, trace=self.asked.trace, stopped=self.stopped)

    def partly(self) -> dict[str, Any]:
        """What an error leaves of it."""
        if self.last is None:
            return {"hits": [], "calls": 0}
        return {"hits": hit_rows(self.last), "calls": self.calls}


async def search_all(searches: list[Search]) -> list[dict[str, Any]]:
    """The answers of several queries, which share the scorer's batches with each other and with everybody else."""
    tasks = [asyncio.ensure_future(search.run()) for search in searches]
    try:
        await asyncio.gather(*tasks)
    except AdacurError as error:
        refusal = as_refusal(error)
        if refusal.status >= 500:
            (first, *others) = searches
            partly = {"results": [one.partly() for one in searches]} if others else first.partly()
            refusal.more = {**refusal.more, **partly}
        raise refusal from error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return await asyncio.to_thread(lambda: [search.found() for search in searches])


class EventStream(Response):
    """A search as server-sent events: start, round after round, and done or error."""

    media_type = "text/event-stream"

    def __init__(
        self,
        search: Search,
        *,
        turns: Turns,
        settings: Mapping[str, Any],
        ended: Callable[[Exception | None], None],
    ) -> None:
        # A proxy that gathers a whole answer before it passes it on would spoil it.
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._search = search
        self._turns = turns
        self._settings = dict(settings)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(Request(scope, receive), self._answer(send))

    async def _answer(self, send: Send) -> None:
        async with self._turns.one(within=self._search.seconds):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            silence = asyncio.ensure_future(self._break_silence(send))
            try:
                async with asyncio.timeout(self._search.seconds_left + _SECONDS_TO_READ):
                    await self._events(send)
            except TimeoutError:
                # Who does not read what it asked for must not keep its turn for ever.
                raise ClientGone from None
            finally:
                silence.cancel()
                await asyncio.gather(silence, return_exceptions=True)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, send: Send) -> None:
        search = self._search
        served = search.asked.served

        async def tell(event: str, content: dict[str, Any]) -> None:
            line = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            await send({"type": "http.response.body", "body": sse(event, line), "more_body": True})

        async def tell_round(hits: Hits) -> None:
            await tell("round", await asyncio.to_thread(round_event, hits, items=served.index.items))

        await tell(
            "start",
            {
                "index": served.name,
                "n_items": len(served.index),
                "k": search.asked.k,
                "budget": self._settings["budget"],
                "method": self._settings["method"],
                "settings": self._settings,
            },
        )
        failure: Exception | None = None
        try:
            await search.run(tell_round)
            await tell("done", await asyncio.to_thread(search.found) | {"index": served.name})
        except Exception as error:
            failure = error
            await tell("error", as_refusal(error).body() | search.partly())
        finally:
            self._ended(failure)

    @staticmethod
    async def _break_silence(send: Send) -> None:
        while True:
            await asyncio.sleep(_SECONDS_OF_SILENCE)
            await send({"type": "http.response.body", "body": b": searching\n\n", "more_body": True})
