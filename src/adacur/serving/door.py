"""What every request passes on its way in and out: its host, its key, the size of its body, the log, the counters."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adacur.serving.failures import Refusal, as_refusal, stopping
from adacur.serving.metrics import Metrics
from adacur.serving.requests import ClientGone
from adacur.serving.settings import ServerSettings

__all__ = ["Door", "noted"]

_OPEN = {"/", "/healthz", "/readyz", "/docs", "/openapi.json", "/favicon.ico"}
# An id that a proxy gave is kept, if it is one: it goes into headers and logs.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
# An IPv6 address has colons of its own, and brackets around them.
_HOST = re.compile(r"(\[(?P<address>[^\]]*)\]|(?P<name>[^:\[\]]*))(:[0-9]*)?")
_SECONDS_FOR_A_BODY = 30.0
# What nginx writes down when a client hangs up.
_GONE = 499


def noted(scope: Scope) -> dict[str, Any]:
    """What the log line of this request will hold beside the usual."""
    notes: dict[str, Any] = scope.setdefault("adacur.notes", {})
    return notes


class Door:
    """Lets requests in, and sees to it that each gets one clear answer: nothing an application raises goes past it."""

    def __init__(self, app: ASGIApp, *, settings: ServerSettings, metrics: Metrics, log: Any, policy: str) -> None:
        self._app = app
        self._settings = settings
        self._policy = policy
        self._metrics = metrics
        self._log = log
        self._keys = [_digest(key) for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        verb = scope["method"]
        if verb == "HEAD":
            # As GET: what is answered has no body then, and that the server sees to.
            scope = {**scope, "method": "GET"}
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        notes = noted(scope)
        started = time.perf_counter()
        answer = _Answer(send, request_id, self._policy)
        failure: Exception | None = None
        try:
            self._check_host(scope, headers.get("host", ""))
            # An application that has this one under a path of its own says so in root_path.
            self._check_key(scope["path"].removeprefix(scope.get("root_path", "")), headers)
            await self._app(scope, await self._with_body(scope, headers, receive), answer.send)
        except ClientGone:
            answer.status = _GONE
        except Exception as error:
            refusal = as_refusal(error)
            notes["error"] = refusal.code
            if refusal.status >= 500 and not isinstance(error, Refusal):
                failure = error
            elif isinstance(error.__cause__, Exception) and refusal.status >= 500:
                failure = error.__cause__
            if answer.status is None:
                await refusal.response()(scope, receive, answer.send)
        except asyncio.CancelledError:
            # The grace of a stop is over.
            if answer.status is None:
                notes["error"] = "stopping"
                await stopping().response()(scope, receive, answer.send)
            raise
        finally:
            self._write_down(scope, verb, request_id, answer.status, time.perf_counter() - started, failure)

    def _check_host(self, scope: Scope, given: str) -> None:
        """Refuse a request whose Host is a name that this server is not known by.

        A web page can have its own name point at 127.0.0.1: then a browser takes this server for the page's own, and
        only the Host header tells. Starlette's middleware has one list for all addresses that a server listens at.
        """
        name = _without_port(given).lower()
        arrived_at = str((scope.get("server") or ("",))[0])
        # Only browsers can be misled, and they always send a Host.
        if name in ("", "localhost", arrived_at, *self._settings.allowed_hosts) or _is_loopback(name):
            return
        if self._settings.allowed_hosts or _is_loopback(arrived_at):
            raise Refusal(
                421,
                "unknown_host",
                "The Host header names a host that this server does not answer for. Use 127.0.0.1, [::1] or "
                "localhost, or start the server with --allow-host NAME (allowed_hosts in Python).",
            )

    def _check_key(self, path: str, headers: Headers) -> None:
        if not self._keys or path in _OPEN or path.startswith("/page/"):
            return
        bearer = headers.get("authorization", "")
        given = bearer[7:].strip() if bearer[:7].lower() == "bearer " else headers.get("x-api-key", "")
        digest = _digest(given)
        # Every key is compared, and whole: how long it takes tells nothing of them.
        if not sum([hmac.compare_digest(digest, key) for key in self._keys]):
            raise Refusal(
                401,
                "key_needed" if not given else "wrong_key",
                f"{'This key is not known here' if given else 'This server asks for a key'}. Send it as "
                "Authorization: Bearer KEY, or as X-API-Key: KEY.",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _with_body(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """The same connection with its whole body read, unless that is too large."""
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return receive
        most = self._settings.max_body_bytes
        said = headers.get("content-length", "")
        if said.isdecimal() and int(said[:20]) > most:
            raise _too_large(most)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_SECONDS_FOR_A_BODY):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise _too_large(most)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise Refusal(
                408,
                "slow_body",
                f"The body did not arrive within {_SECONDS_FOR_A_BODY:g} s.",
                headers={"Connection": "close"},
            ) from None
        waiting = [b"".join(parts)]

        async def again() -> Message:
            if waiting:
                return {"type": "http.request", "body": waiting.pop(), "more_body": False}
            return await receive()

        return again

    def _write_down(
        self, scope: Scope, verb: str, request_id: str, status: int | None, seconds: float, failure: Exception | None
    ) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        notes = noted(scope)
        # A stream has sent its status before anything could fail.
        failure = notes.pop("failure", failure)
        told = status or _GONE
        self._metrics.requests.labels(route, told).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        if "error" in notes:
            self._metrics.refused.labels(notes["error"]).inc()
        line = {
            "request_id": request_id,
            "verb": verb,
            "path": scope["path"][:200],
            "status": told,
            "seconds": round(seconds, 4),
            "client": scope["client"][0] if scope.get("client") else None,
            **notes,
        }
        if failure is not None:
            self._log.error("request", **line, exc_info=failure)
        else:
            self._log.info("request", **line)


class _Answer:
    """What is sent, and how it began."""

    def __init__(self, send: Send, request_id: str, policy: str) -> None:
        self._send = send
        self._request_id = request_id
        self._policy = policy
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self._request_id
            headers["X-Content-Type-Options"] = "nosniff"
            headers["Content-Security-Policy"] = self._policy
            headers["Referrer-Policy"] = "no-referrer"
        await self._send(message)


def _without_port(host: str) -> str:
    found = _HOST.fullmatch(host)
    return host if found is None else found["address"] or found["name"]


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # A socket for both families sees 127.0.0.1 as ::ffff:127.0.0.1.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _too_large(most: int) -> Refusal:
    return Refusal(
        413,
        "body_too_large",
        f"A body may have at most {most:,} bytes here. Send less, or in several requests.",
        headers={"Connection": "close"},
    )
