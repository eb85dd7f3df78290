"""The server over real connections: clients that hang up, signals, and the clients of others."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import adacur
from adacur import AnchorIndex, Item, Query
from adacur.extras.server import ServerSettings, create_app
from adacur.scorers import HttpScorer
from tests.rerank_servers import logit_of
from tests.serving_world import TextScorer, serving, world_index, world_items


@pytest.fixture(scope="module")
def browser() -> Iterator[httpx.Client]:
    """One for all: making one takes as long as a search. No connection is kept that a stopping server waits for."""
    with httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), timeout=30) as client:
        yield client


def raw_request(url: str, body: dict[str, Any], path: str = "/v1/search") -> socket.socket:
    """A connection on which a request has been sent, and nothing read."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=10)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def settled(scorer: TextScorer, *, quiet: float) -> int:
    """Calls made by the time that none has come for so many seconds."""
    seen = -1
    while len(scorer.calls) != seen:
        seen = len(scorer.calls)
        time.sleep(quiet)
    return seen


class HeldScorer(TextScorer):
    """Answers no call before it has leave to."""

    def __init__(self) -> None:
        super().__init__()
        self.leave = threading.Event()

    def score(self, pairs: Any) -> Any:
        scores = super().score(pairs)
        assert self.leave.wait(60)
        return scores


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_ends_its_search(stream, browser):
    scorer = TextScorer(seconds=0.05)
    with serving(create_app({"w": world_index(scorer)})) as url:
        asked = {"query": "a ship", "k": 1, "budget": 100, "rounds": 100, "stream": stream}
        connection = raw_request(url, asked)
        if stream:
            received = b""
            while received.count(b"event: round") < 3:
                received += connection.recv(65536)
        else:
            assert scorer.began.wait(10)
            time.sleep(0.2)
        connection.close()
        calls = settled(scorer, quiet=0.4)
        assert calls < 50
        metrics = browser.get(f"{url}/metrics").text
        assert "adacur_searches_in_flight 0.0" in metrics
        assert 'status="499"' in metrics
        # What it cost is counted, though nobody saw the end.
        assert 'method="gaussian",stopped="unfinished"} 1.0' in metrics
        counted = re.search(r"^adacur_search_calls_total{.*} (\S+)$", metrics, re.MULTILINE)
        assert counted is not None
        assert calls - 1 <= float(counted[1]) <= calls
        # The place is free again, and the server goes on.
        assert browser.post(f"{url}/v1/search", json={"query": "a", "k": 1, "budget": 2}).status_code == 200


def test_a_rerank_whose_client_hangs_up_while_it_waits_is_not_paid_for(browser):
    scorer = HeldScorer()
    with serving(create_app({"w": world_index(scorer)})) as url:
        first = raw_request(url, {"query": "a", "documents": ["b"]}, "/v1/rerank")
        assert scorer.began.wait(60)
        second = raw_request(url, {"query": "a", "documents": ["c", "d"]}, "/v1/rerank")
        second.close()
        while 'status="499"' not in browser.get(f"{url}/metrics").text:
            time.sleep(0.01)
        scorer.leave.set()
        assert first.recv(100).startswith(b"HTTP/1.1 200")
        first.close()
        settled(scorer, quiet=0.4)
        assert scorer.calls == [1]


def test_a_client_that_does_not_read_loses_its_turn(browser, monkeypatch):
    monkeypatch.setattr("adacur.extras.server.searching._SECONDS_TO_READ", 0.2)
    # More than what lies between two sockets.
    items = [Item(f"i{at}", f"{at} " + "x" * 100_000) for at in range(20)]
    index = AnchorIndex.from_items(items, scorer=lambda pairs: [float(len(item) % 7) for _, item in pairs])
    settings = ServerSettings(concurrency=1, queue=0, seconds=0.3)
    with serving(create_app({"w": index}, settings=settings)) as url:
        asked = {"query": "a", "method": "gaussian", "k": 20, "budget": 20, "rounds": 20, "stream": True}
        connections = [raw_request(url, asked)]
        while browser.post(f"{url}/v1/search", json=asked | {"k": 1}).status_code != 429:
            # On a busy machine it may have lost its turn before anybody looked.
            connections.append(raw_request(url, asked))
        while (response := browser.post(f"{url}/v1/search", json=asked | {"k": 1})).status_code == 429:
            time.sleep(0.02)
        assert response.status_code == 200
        for connection in connections:
            connection.close()


def test_a_large_body_without_a_length_is_refused_before_it_is_all_read(browser):
    with serving(create_app({"w": world_index()}, settings=ServerSettings(max_body_bytes=100_000))) as url:
        sent = 0

        def endless() -> Iterator[bytes]:
            nonlocal sent
            for _ in range(2000):
                sent += 10_000
                yield b'"' + b"a" * 9_999

        try:
            response = browser.post(f"{url}/v1/search", content=endless(), headers={"Content-Type": "application/json"})
            assert response.status_code == 413
        except httpx.TransportError:
            # The server hung up while the client was still sending.
            pass
        assert sent < 20_000_000
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
        connection.putrequest("POST", "/v1/search")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "99999999999999999999")
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 413
        assert json.load(answer)["error"]["code"] == "body_too_large"
        connection.close()
        assert browser.get(f"{url}/healthz").status_code == 200


def test_our_own_server_gives_its_own_scores(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    pairs = [(Query("q", "a river"), item) for item in (Item("x", "a ship"), Item("y", "a bird"))]
    with serving(create_app({"w": world_index()})) as url, HttpScorer(url, kind="adacur") as scorer:
        assert scorer.url == f"{url}/v1/rerank"
        assert scorer.score(pairs).tolist() == [logit_of("a river", item.text) for _, item in pairs]
        with HttpScorer(scorer.card.source) as again:
            assert again.score(pairs).tolist() == scorer.score(pairs).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("served") / "small.adacur"
    adacur.build(
        world_items(), 12, scorer="tests.functional.scoring:lengths", path=path, progress=False, tune=False
    ).close()
    return path


# The command, but for a server that waits less long for what does not end.
IMPATIENT = "import adacur.extras.server.running as r; r._SECONDS_FOR_THREADS = 0.3; from adacur.cli import run; run()"


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    running = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, "serve", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    assert running.stdout is not None
    line = running.stdout.readline()
    found = re.search(r"http://\S+", line)
    if found is None:
        running.kill()
        raise AssertionError(line + running.communicate()[1])
    try:
        yield running, found[0]
    finally:
        running.kill()
        running.communicate()


def test_a_stop_finishes_what_was_begun_and_takes_nobody_new(folder, browser):
    slow = ("--scorer", "tests.functional.scoring:slow_lengths", "--set", "log_queries=true")
    with process(f"first={folder}", str(folder), *slow) as (running, url):
        finishes_and_takes_nobody_new(running, url, browser)


def finishes_and_takes_nobody_new(running: subprocess.Popen[str], url: str, browser: httpx.Client) -> None:
    assert [one["name"] for one in browser.get(f"{url}/v1/indexes").json()["indexes"]] == ["first", "small"]
    while browser.get(f"{url}/readyz").status_code != 200:
        time.sleep(0.05)
    asked = {"query": "a ship", "k": 1, "budget": 20, "rounds": 10, "stream": True}
    answers: list[str] = []
    reading = threading.Thread(target=lambda: answers.append(browser.post(f"{url}/v1/search", json=asked).text))
    reading.start()
    while "adacur_searches_in_flight 1.0" not in browser.get(f"{url}/metrics").text:
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    while takes_requests(browser, url):
        time.sleep(0.01)
    reading.join(30)
    assert "event: done" in answers[0]
    assert running.wait(30) == 0
    log = running.stderr.read()
    assert "Stopped." in log
    assert "Traceback" not in log
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert any(line.get("query") == ["a ship"] for line in lines)


def takes_requests(browser: httpx.Client, url: str) -> bool:
    try:
        return browser.get(f"{url}/healthz").is_success
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("signals", [1, 2])
def test_a_stop_does_not_wait_for_ever_for_a_scorer_that_hangs(folder, browser, signals):
    never = ("--scorer", "tests.functional.scoring:lengths_or_never", "--set", "grace_seconds=0.5")
    with process(str(folder), *never) as (running, url):
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as stranger:
            stranger.sendall(b"no request at all\r\n\r\n")
            assert b"400" in stranger.recv(100)
        connection = raw_request(url, {"query": "nothing"})
        while not re.search(r"^adacur_scorer_calls_total{.*} 1.0$", browser.get(f"{url}/metrics").text, re.MULTILINE):
            time.sleep(0.02)
        for _ in range(signals):
            running.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        ended = running.wait(30)
        answer = connection.recv(10_000)
        connection.close()
        assert running.stderr is not None
        log = running.stderr.read()
    assert ended == 1
    assert b"503 " in answer
    assert b'"stopping"' in answer
    # Uvicorn's words are in the log as well, in the same way.
    lines = [json.loads(line) for line in log.splitlines() if not line.startswith(("Open http", "Stopped."))]
    assert any(line["event"] == "Invalid HTTP request received." for line in lines)
    assert any(line["event"] == "threads did not end" for line in lines)
    assert "Traceback" not in log


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "adacur", "serve", *arguments]
    env = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)


@pytest.mark.parametrize("keys", ["", " , "])
def test_an_empty_list_of_keys_in_the_environment_is_an_error_not_an_open_server(folder, keys):
    done = serve(str(folder), "--port", "0", ADACUR_API_KEYS=keys)
    assert done.returncode == 1
    assert "ADACUR_API_KEYS" in done.stderr
    assert "http://" not in done.stdout


def test_a_server_that_cannot_start_says_why(folder, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = serve(str(folder), "--port", port)
        assert done.returncode == 1
        assert f"Port {port} of 127.0.0.1 is in use" in done.stderr
        assert "--port 0" in done.stderr
    done = serve(str(tmp_path / "missing"), "--port", "0")
    assert done.returncode == 1
    assert "missing" in done.stderr
    assert "Traceback" not in done.stderr
