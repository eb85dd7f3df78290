"""A real S3 API on loopback, and a proxy in front of it that makes trouble."""

from __future__ import annotations

import http.client
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

__all__ = ["Proxy", "environment", "s3_server"]

BUCKET = "bucket"


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of a server with one empty bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")).read()
    try:
        yield endpoint
    finally:
        server.stop()


def environment(endpoint: str) -> dict[str, str]:
    """What a user would set."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }


class Proxy:
    """Passes requests on, but for those that `trouble(number, method, path)` has a status for."""

    def __init__(self, endpoint: str, trouble: Callable[[int, str, str], int | None]) -> None:
        self.trouble = trouble
        self.refused = 0
        self._numbers = 0
        self._lock = threading.Lock()
        self._behind = endpoint.removeprefix("http://")
        proxy = self

        class Passing(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                with proxy._lock:
                    number = proxy._numbers
                    proxy._numbers += 1
                status = proxy.trouble(number, self.command, self.path)
                if status is not None:
                    proxy.refused += 1
                    self.reply(status, {}, b"")
                    return
                connection = http.client.HTTPConnection(proxy._behind)
                connection.request(self.command, self.path, body, dict(self.headers))
                found = connection.getresponse()
                self.reply(found.status, dict(found.getheaders()), found.read())
                connection.close()

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

            def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response_only(status)
                dropped = ("connection", "transfer-encoding")
                kept = {name: value for name, value in headers.items() if name.lower() not in dropped}
                if self.command != "HEAD":
                    kept = {name: value for name, value in kept.items() if name.lower() != "content-length"}
                    kept["Content-Length"] = str(len(body))
                for name, value in kept.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Passing)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_url(s3_endpoint: str, tmp_path, monkeypatch) -> str:
    """A place that nothing lies in yet, on a machine with an empty cache."""
    for name, value in environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ADACUR_CACHE", str(tmp_path / "cache"))
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/my.adacur"
