"""A scorer that changes under a running server is noticed."""

from __future__ import annotations

import asyncio
import io
import json
import time

import numpy as np
import pytest
from starlette.testclient import TestClient

import adacur
from adacur import Cached, Item
from adacur.extras.server import ServerSettings, create_app
from adacur.extras.server.application import _Server
from adacur.extras.server.failures import Refusal
from adacur.extras.server.running import server_log
from adacur.extras.server.scoring import ScorerWatch
from adacur.protocols import ScorerCard
from adacur.scorers import HttpScorer
from tests.rerank_servers import Reply, RerankServer, logit_of
from tests.serving_world import TextScorer, world_index

HOUR = 3600.0


class Service(TextScorer):
    """A scorer whose model can be swapped; `version` is what is behind it now."""

    version = "first"

    def score(self, pairs):
        scores = super().score(pairs)
        if self.version == "near":
            return scores + 0.3 * np.resize([1.0, -1.0], len(pairs))
        if self.version == "other":
            return np.array([logit_of(item.text, query.text) for query, item in pairs])
        return scores


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._rings: asyncio.Queue[None] = asyncio.Queue()
        self._waiting: asyncio.Queue[None] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self._waiting.put_nowait(None)
        await self._rings.get()

    async def ring(self) -> None:
        """Let the wait end, and come back when the next begins."""
        async with asyncio.timeout(60):
            await self._waiting.get()
            self._rings.put_nowait(None)
            await self._waiting.get()
            self._waiting.put_nowait(None)


def watching(indexes, **settings):
    log = io.StringIO()
    server = _Server(indexes, settings=ServerSettings(**settings), log=server_log(log))
    clock = Clock()
    watch = ScorerWatch(
        server.served, settings=server.settings, metrics=server.metrics, log=server.log, sleep=clock.sleep
    )
    return server, watch, clock, log


def probes(server, index="small") -> dict[str, float]:
    outcomes = ("same", "near", "changed", "failed")
    values = {
        outcome: server.metrics.registry.get_sample_value(
            "adacur_scorer_probes_total", {"index": index, "outcome": outcome}
        )
        for outcome in outcomes
    }
    return {outcome: value for outcome, value in values.items() if value}


def lines(log) -> list[dict]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_every_hour_a_few_pairs_are_asked_again() -> None:
    service = Service()

    async def hours() -> None:
        server, watch, clock, log = watching({"small": world_index(service)}, refuse_drift=True)
        one = server.served["small"]
        task = asyncio.create_task(watch.run())
        for version, outcome in (("first", "same"), ("near", "near"), ("other", "changed"), ("first", "same")):
            service.version = version
            before = dict(probes(server)).get(outcome, 0)
            await clock.ring()
            assert probes(server)[outcome] == before + 1
            assert lines(log)[-1].items() >= {"index": "small", "outcome": outcome, "event": "scorer probed"}.items()
            assert lines(log)[-1]["level"] == ("error" if outcome == "changed" else "info")
            drift = server.metrics.registry.get_sample_value("adacur_scorer_drift", {"index": "small"})
            low, high = {"same": (0, 0.001), "near": (0.02, 0.3), "changed": (0.3, 100)}[outcome]
            assert low <= drift <= high
            if outcome == "changed":
                with pytest.raises(Refusal):
                    watch.refuse_if_changed(one)
            else:
                watch.refuse_if_changed(one)
        assert set(clock.waits) == {HOUR}
        task.cancel()

    asyncio.run(hours())
    assert service.calls == [8, 8, 8, 8]


def test_a_changed_scorer_goes_on_searching_unless_refusal_is_asked_for() -> None:
    service = Service()

    async def checked() -> None:
        server, watch, *_ = watching({"small": world_index(service)})
        service.version = "other"
        assert not (await watch.check(server.served["small"])).allowed
        watch.refuse_if_changed(server.served["small"])

    asyncio.run(checked())


def test_a_service_that_does_not_answer_is_told_and_asked_again_later() -> None:
    service = Service(fails_after=0)

    async def hours() -> None:
        server, watch, clock, log = watching({"small": world_index(service)}, refuse_drift=True)
        task = asyncio.create_task(watch.run())
        await clock.ring()
        assert probes(server) == {"failed": 1}
        assert lines(log)[-1]["event"] == "scorer not probed"
        watch.refuse_if_changed(server.served["small"])
        service.fails_after = None
        await clock.ring()
        assert probes(server) == {"failed": 1, "same": 1}
        task.cancel()

    asyncio.run(hours())


def test_a_model_in_this_process_and_an_index_without_scores_cost_no_calls() -> None:
    model, other = Service(), Service()
    model.card = ScorerCard(name="model", backend="torch", weights="1a2b")
    without = adacur.AnchorIndex.from_items([Item("a", "one"), Item("b", "two")], scorer=other, progress=False)

    async def hours() -> None:
        server, watch, clock, _ = watching({"small": world_index(model), "plain": without})
        task = asyncio.create_task(watch.run())
        await clock.ring()
        assert not probes(server)
        # Whoever asks for it gets it.
        assert (await watch.check(server.served["small"])).same
        task.cancel()

    asyncio.run(hours())
    assert (model.calls, other.calls) == ([8], [])


def test_old_scores_in_a_cache_hide_nothing(tmp_path) -> None:
    service = Service()
    with Cached(service, tmp_path / "scores.sqlite") as cached:

        async def checked() -> None:
            server, watch, _, _ = watching({"small": world_index(cached)})
            one = server.served["small"]
            assert (await watch.check(one)).same
            one.index.scorer.score([(one.index.anchor_queries[0], item) for item in one.index.items])
            service.version = "other"
            assert not (await watch.check(one)).allowed

        asyncio.run(checked())


def test_a_folder_of_a_service_that_swaps_its_model_is_watched_by_its_own_probes(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    swapped = []

    def reply(asked):
        if not swapped:
            return None
        results = [{"index": at, "score": logit_of(text, "swapped")} for at, text in enumerate(asked.body["texts"])]
        return Reply(body=results)

    items = [Item(f"i{n}", f"item number {n}") for n in range(40)]
    with RerankServer("tei", reply=reply) as server, HttpScorer(server.root, kind="tei") as scorer:
        index = adacur.build(items, ["one", "two", "three"], scorer=scorer, path=tmp_path / "x.adacur", progress=False)

        async def checked() -> None:
            serving, watch, *_ = watching({"x": index}, refuse_drift=True)
            one, n_before = serving.served["x"], len(server.posts)
            assert (await watch.check(one)).allowed
            assert sum(len(asked.body["texts"]) for asked in server.posts[n_before:]) == 8
            swapped.append(True)
            assert not (await watch.check(one)).allowed
            with pytest.raises(Refusal):
                watch.refuse_if_changed(one)
            swapped.clear()
            assert (await watch.check(one)).allowed
            watch.refuse_if_changed(one)

        asyncio.run(checked())


def test_a_running_server_watches_by_itself() -> None:
    service = Service()
    settings = ServerSettings(probe_seconds=0.01)
    with TestClient(create_app({"small": world_index(service)}, settings=settings)) as client:
        for _ in range(3000):
            if 'outcome="same"' in client.get("/metrics").text:
                break
            time.sleep(0.01)
        assert 'adacur_scorer_probes_total{index="small",outcome="same"}' in client.get("/metrics").text
