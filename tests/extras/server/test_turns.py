from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adacur.extras.server.concurrency import Turns
from adacur.extras.server.failures import ClientGone, Refusal


async def stays() -> Any:
    """A client that does not hang up."""
    await asyncio.sleep(60)


async def test_turns_are_given_in_order_and_never_more_than_allowed():
    turns = Turns(concurrency=2, queue=3)
    most, order = 0, []

    async def one(name: int) -> None:
        nonlocal most
        most = max(most, turns.running)
        order.append(name)
        await asyncio.sleep(0.001)

    await asyncio.gather(*(turns.run(lambda name=name: one(name), receive=stays, seconds=10) for name in range(5)))
    assert (most, order) == (2, [0, 1, 2, 3, 4])
    assert (turns.running, turns.waiting) == (0, 0)


async def test_who_leaves_the_queue_or_waits_too_long_leaves_no_trace():
    turns = Turns(concurrency=1, queue=1)
    end = asyncio.Event()
    running = asyncio.ensure_future(turns.run(end.wait, receive=stays, seconds=10))
    await asyncio.sleep(0.01)

    async def leaves() -> Any:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await turns.run(end.wait, receive=leaves, seconds=10)
    with pytest.raises(Refusal) as late:
        await turns.run(end.wait, receive=stays, seconds=0.01)
    waiting = asyncio.ensure_future(turns.run(end.wait, receive=stays, seconds=10))
    await asyncio.sleep(0.01)
    with pytest.raises(Refusal) as full:
        turns.check()
    assert (late.value.status, full.value.status) == (504, 429)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (turns.running, turns.waiting) == (1, 0)
    end.set()
    await running
    assert turns.running == 0
