"""Rerank servers for tests and benchmarks: real HTTP on loopback, scores that follow from the two texts alone."""

from __future__ import annotations

import json
import math
import random
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from adacur.scorers.http_dialects import DIALECTS

__all__ = ["Asked", "Reply", "RerankServer", "Trouble", "logit_of"]

MODEL = "fake/reranker"
# Written down once more, so that a slip in the table of dialects is noticed; a new kind is served by that table.
PATHS = {
    "tei": "/rerank",
    "vllm": "/v1/rerank",
    "infinity": "/rerank",
    "cohere": "/v2/rerank",
    "jina": "/v1/rerank",
}


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


class Trouble:
    """Break off, answer too late, say 429 or 503, for a seeded share of the requests; `seen` counts each."""

    def __init__(self, *, share: float = 0.1, delay: float, seed: int = 0) -> None:
        self.share, self.seen = share, Counter[str]()
        self._rng, self._lock = random.Random(seed), threading.Lock()
        self._kinds = {
            "broken off": Reply(breaks="before"),
            "cut short": Reply(breaks="within"),
            "late": Reply(after=delay),
            "429": Reply(429, {"error": "Model is overloaded", "error_type": "Overloaded"}, {"Retry-After": "0"}),
            "503": Reply(503, b"<html>try later</html>"),
        }

    def __call__(self, asked: Asked) -> Reply | None:
        with self._lock:
            if asked.method == "GET" or self._rng.random() >= self.share:
                return None
            kind = self._rng.choice(sorted(self._kinds))
            self.seen[kind] += 1
            return self._kinds[kind]


class RerankServer:
    """A server of one of the `DIALECTS` with its limits, which remembers what it was asked.

    `reply` may answer in its stead; `probabilities` makes it ignore requests for raw scores, as old versions do.
    """

    def __init__(
        self,
        kind: str,
        *,
        reply: Callable[[Asked], Reply | None] = lambda _: None,
        latency: float = 0.0,
        max_batch: int = 32,
        max_body: int = 2_000_000,
        key: str | None = None,
        task: str = "reranker",
        models: tuple[str, ...] = (MODEL,),
        probabilities: bool = False,
    ) -> None:
        self.kind, self.reply, self.latency, self.key = kind, reply, latency, key
        self.max_batch, self.max_body, self.task, self.models = max_batch, max_body, task, models
        self.probabilities = probabilities or DIALECTS[kind].raw is None
        self.asked: list[Asked] = []
        self.statuses: Counter[int] = Counter()
        self.in_flight = self.most_in_flight = self.connections = 0
        self.stopping = threading.Event()
        self._lock = threading.Lock()

    @property
    def posts(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "POST"]

    def __enter__(self) -> RerankServer:
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.root = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.endpoint = self.root + self.path
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def path(self) -> str:
        return PATHS.get(self.kind) or DIALECTS[self.kind].path

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

    def answer(self, asked: Asked) -> Reply:
        """What the real server would say."""
        if self.key is not None and asked.headers.get("authorization") != f"Bearer {self.key}":
            return Reply(401, {"error": f"invalid key: {asked.headers.get('authorization')}"})
        if asked.method == "GET":
            return self._describe(asked.path)
        if asked.path != self.path:
            return Reply(404, b"")
        texts = asked.body.get("texts" if self.kind == "tei" else DIALECTS[self.kind].texts)
        if texts is None:
            return Reply(422, {"detail": "Failed to deserialize: missing field"})
        if asked.size > self.max_body or len(texts) > self.max_batch:
            message = f"batch size {len(texts)} > maximum allowed batch size {self.max_batch}"
            return Reply(422 if self.kind == "infinity" else 413, {"error": message, "error_type": "Validation"})
        return Reply(body=self.scored(asked.body[DIALECTS[self.kind].query], texts, self._raw(asked.body)))

    def _describe(self, path: str) -> Reply:
        if self.kind == "tei" and path == "/info":
            limits = {"max_client_batch_size": self.max_batch, "max_batch_tokens": 16384, "max_input_length": 512}
            described = {"model_id": self.models[0], "model_dtype": "float16", "model_type": {self.task: {}}}
            return Reply(body=described | limits)
        if {"vllm": "/v1/models", "infinity": "/models"}.get(self.kind) == path:
            return Reply(body={"data": [{"id": model, "owned_by": self.kind} for model in self.models]})
        return Reply(404, {"detail": "Not Found"})

    def _raw(self, body: Mapping[str, Any]) -> bool:
        if self.kind == "vllm":
            return not self.probabilities and not body.get("use_activation", True)
        raw = {"raw_scores": True} if self.kind in PATHS else DIALECTS[self.kind].raw
        return not self.probabilities and raw is not None and raw.items() <= body.items()

    def scored(self, query: str, texts: list[str], raw: bool) -> Any:
        logits = [logit_of(query, text) for text in texts]
        scores = logits if raw else [1 / (1 + math.exp(-logit)) for logit in logits]
        field = "score" if self.kind == "tei" else DIALECTS[self.kind].score
        results = [{DIALECTS[self.kind].index: index, field: score} for index, score in enumerate(scores)]
        results.sort(key=lambda result: -result[field])
        return results if self.kind == "tei" else {"id": "a", DIALECTS[self.kind].results: results, "meta": {}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


def _handler(server: RerankServer) -> type[BaseHTTPRequestHandler]:
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
            self.send_response(reply.status)
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
