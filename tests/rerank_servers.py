"""Rerank servers for tests and benchmarks: real HTTP on loopback, scores that follow from the two texts alone."""

from __future__ import annotations

import json
import math
import random
import threading
import time
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.http_exchanges import EXCHANGES, FIRST, MODEL, QUERY, SECOND

__all__ = ["MODEL", "Asked", "LoopbackServer", "Reply", "RerankServer", "Trouble", "logit_of"]


def logit_of(query: str, text: str) -> float:
    """Between −8 and 8, different for nearly every pair."""
    return zlib.crc32(f"{query}\0{text}".encode()) / 2**28 - 8


@dataclass(frozen=True)
class Asked:
    """A request as the server saw it; `number` counts those of its method from 0."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    size: int
    at: float


@dataclass(frozen=True)
class Reply:
    """An answer out of the ordinary. `body` is JSON unless bytes; None leaves the ordinary one.

    `after` seconds it is sent, with a pause of `drip` seconds after each byte; `breaks` ends the connection
    "before" it or "within" it.
    """

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    after: float = 0.0
    drip: float = 0.0
    breaks: str | None = None
    reason: str | None = None


class Trouble:
    """Break off, cut JSON, answer too late or say 429, 500 or 503 to a seeded share of requests; `seen` counts each.

    Without `delay`, none is late.
    """

    def __init__(self, *, share: float = 0.1, delay: float | None, seed: int = 0) -> None:
        self.share, self.seen = share, Counter[str]()
        self._rng, self._lock = random.Random(seed), threading.Lock()
        self._kinds = {
            "broken off": Reply(breaks="before"),
            "cut short": Reply(breaks="within"),
            **({} if delay is None else {"late": Reply(after=delay)}),
            "429": Reply(429, {"error": "Model is overloaded", "error_type": "Overloaded"}, {"Retry-After": "0"}),
            "500": Reply(500, {"error": "out of memory"}),
            "503": Reply(503, b"<html>try later</html>"),
            "cut by a proxy": Reply(body=b'{"id": "a", "choices": [{"index": 0, "logp'),
        }

    def __call__(self, asked: Asked) -> Reply | None:
        with self._lock:
            if asked.method == "GET" or self._rng.random() >= self.share:
                return None
            kind = self._rng.choice(sorted(self._kinds))
            self.seen[kind] += 1
            return self._kinds[kind]


class LoopbackServer:
    """A server that remembers what it was asked; `reply` may answer in its stead."""

    def __init__(self, *, reply: Callable[[Asked], Reply | None] = lambda _: None, latency: float = 0.0) -> None:
        self.reply, self.latency = reply, latency
        self.asked: list[Asked] = []
        self.statuses: Counter[int] = Counter()
        self.in_flight = self.most_in_flight = self.connections = 0
        self.stopping = threading.Event()
        self._lock = threading.Lock()

    @property
    def posts(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "POST"]

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.root = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def arrived(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Asked:
        with self._lock:
            number = sum(asked.method == method for asked in self.asked)
            lower = {name.lower(): value for name, value in headers.items()}
            asked = Asked(number, method, path, lower, json.loads(body) if body else None, len(body), time.monotonic())
            self.asked.append(asked)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            return asked

    def left(self, status: int) -> None:
        with self._lock:
            self.in_flight -= 1
            self.statuses[status] += 1

    @abstractmethod
    def answer(self, asked: Asked) -> Reply:
        """What the real server would say."""


class RerankServer(LoopbackServer):
    """A server of one of the kinds in `EXCHANGES`, with its limits: it reads and answers in the shape recorded there.

    `probabilities` makes it ignore requests for raw scores, as old versions do.
    """

    def __init__(
        self,
        kind: str,
        *,
        max_batch: int = 32,
        max_body: int = 2_000_000,
        key: str | None = None,
        probabilities: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.kind, self.key, self.recorded = kind, key, EXCHANGES[kind]
        self.max_batch, self.max_body = max_batch, max_body
        self.probabilities = probabilities or self.recorded.raw is None
        self.path = self.recorded.path
        request = self.recorded.request
        self.query = _field(request, QUERY, {"text": QUERY})
        self.texts = _field(request, [FIRST, SECOND], [{"text": FIRST}, {"text": SECOND}])

    @property
    def endpoint(self) -> str:
        return self.root + self.path

    def answer(self, asked: Asked) -> Reply:
        if self.key is not None and asked.headers.get("authorization") != f"Bearer {self.key}":
            return Reply(401, {"error": f"invalid key: {asked.headers.get('authorization')}"})
        if asked.path != self.path:
            return Reply(404, b"")
        if self.texts not in asked.body:
            return Reply(422, {"detail": "Failed to deserialize: missing field"})
        query = _plain(asked.body[self.query])
        texts = [_plain(text) for text in asked.body[self.texts]]
        if asked.size > self.max_body or len(texts) > self.max_batch:
            message = f"batch size {len(texts)} > maximum allowed batch size {self.max_batch}"
            return Reply(422 if self.kind == "infinity" else 413, {"error": message, "error_type": "Validation"})
        raw = not self.probabilities and (self.recorded.raw or {}).items() <= asked.body.items()
        return Reply(body=self.scored(query, texts, raw))

    def scored(self, query: str, texts: list[str], raw: bool) -> Any:
        logits = [logit_of(query, text) for text in texts]
        scores = logits if raw else [1 / (1 + math.exp(-logit)) for logit in logits]
        answer = self.recorded.answer
        if isinstance(answer, list):
            return _results(answer, scores)
        field = next(name for name, value in answer.items() if isinstance(value, list))
        return {**answer, field: _results(answer[field], scores)}


def _field(body: Mapping[str, Any], *values: Any) -> str:
    return next(name for name, value in body.items() if value in values)


def _plain(text: Any) -> Any:
    return text["text"] if isinstance(text, dict) else text


def _results(recorded: list[Any], scores: list[float]) -> list[Any]:
    """Results like those recorded, best first."""
    index = next(name for name, value in recorded[0].items() if value == 1)
    field = next(name for name, value in recorded[0].items() if isinstance(value, float))
    best = sorted(range(len(scores)), key=lambda at: -scores[at])
    return [{**recorded[0], index: at, field: scores[at]} for at in best]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


def _handler(server: LoopbackServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Otherwise a reply in two writes waits for the acknowledgement of the first.
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            server.connections += 1

        def log_message(self, *_: object) -> None:
            """Tests are silent."""

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = server.arrived(self.command, self.path, dict(self.headers), body)
            reply = server.reply(asked) or Reply()
            try:
                server.stopping.wait(reply.after + server.latency)
                if reply.breaks == "before":
                    self.close_connection = True
                    return
                if reply.body is None and reply.status == 200:
                    ordinary = server.answer(asked)
                    reply = replace(reply, status=ordinary.status, body=ordinary.body)
            finally:
                server.left(reply.status)
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status, reply.reason)
            for name, value in {"Content-Type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if reply.breaks == "within":
                content = content[: len(content) // 2]
                self.close_connection = True
            step = 1 if reply.drip else len(content) or 1
            for start in range(0, len(content), step):
                self.wfile.write(content[start : start + step])
                server.stopping.wait(reply.drip)

    return Handler
