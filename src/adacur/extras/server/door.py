"""Middleware around every request: checks its host, key and body size; logs and counts it."""

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

from adacur.extras.server.failures import ClientGone, Refusal, as_refusal
from adacur.extras.server.metrics import Metrics
from adacur.extras.server.server_settings import ServerSettings

_OPEN = {"/", "/healthz", "/readyz", "/openapi.json", "/favicon.ico"}
# An id that a proxy gave goes into headers and logs, so it must look like one.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
# An IPv6 address contains colons, and stands in brackets.
_HOST = re.compile(r"(\[(?P<address>[^\]]*)\]|(?P<name>[^:\[\]]*))(:[0-9]*)?")
_SECONDS_FOR_A_BODY = 30.0
# What nginx logs when a client hangs up.
_CLIENT_GONE = 499


def notes_of(scope: Scope) -> dict[str, Any]:
    """Extra fields for the log line of this request."""
    notes: dict[str, Any] = scope.setdefault("adacur.notes", {})
    return notes


class Door:
    """Checks requests, and turns whatever the application raises into an answer."""

    def __init__(self, app: ASGIApp, *, settings: ServerSettings, metrics: Metrics, log: Any, policy: str) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._log = log
        self._headers = {
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": policy,
            "Referrer-Policy": "no-referrer",
        }
        self._keys = [_digest(key) for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        line = {"request_id": request_id, "verb": scope["method"], "path": scope["path"][:200]}
        if scope["method"] == "HEAD":
            # Answered like GET; the server leaves the body out.
            scope = {**scope, "method": "GET"}
        notes, started = notes_of(scope), time.perf_counter()
        status: int | None = None
        failure: BaseException | None = None

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update({"X-Request-Id": request_id, **self._headers})
            await send(message)

        try:
            self._check_host(scope, headers.get("host", ""))
            # An application that mounts this one under a path says so in root_path.
            self._check_key(scope["path"].removeprefix(scope.get("root_path", "")), headers)
            await self._app(scope, await self._with_body(scope, headers, receive), answer)
        except ClientGone:
            status = _CLIENT_GONE
        except Exception as error:
            refusal = as_refusal(error)
            notes["error"] = refusal.code
            if refusal.status >= 500:
                failure = error.__cause__ if isinstance(error, Refusal) else error
            if status is None:
                await refusal.response()(scope, receive, answer)
        except asyncio.CancelledError:
            # The grace period of a stop is over.
            if status is None:
                refusal = Refusal(503, "stopping", "This server is being stopped.", headers={"Retry-After": "5"})
                notes["error"] = refusal.code
                await refusal.response()(scope, receive, answer)
            raise
        finally:
            # A stream has sent its status before it can fail.
            failure = notes.pop("failure", failure)
            line |= {"status": status or _CLIENT_GONE, "seconds": round(time.perf_counter() - started, 4)}
            line |= {"client": scope["client"][0] if scope.get("client") else None, **notes}
            self._count(scope, line)
            if failure is not None:
                self._log.error("request", **line, exc_info=failure)
            else:
                self._log.info("request", **line)

    def _check_host(self, scope: Scope, given: str) -> None:
        """Refuse a request whose Host is not a name of this server.

        The name of a malicious web page can point at 127.0.0.1: a browser then takes this server for the page's origin,
        and only the Host header shows it. Starlette's middleware has one list for all addresses of a server.
        """
        host = _HOST.fullmatch(given)
        name = (given if host is None else host["address"] or host["name"]).lower()
        arrived_at = str((scope.get("server") or ("",))[0])
        # Only browsers can be misled in this way, and they always send a Host.
        if name in ("", "localhost", arrived_at, *self._settings.allowed_hosts) or _is_loopback(name):
            return
        if self._settings.allowed_hosts or _is_loopback(arrived_at):
            rule = "The Host header must be localhost, a loopback address or one of allowed_hosts (--allow-host NAME)."
            raise Refusal(421, "unknown_host", rule)

    def _check_key(self, path: str, headers: Headers) -> None:
        if not self._keys or path in _OPEN or path.startswith("/page/"):
            return
        bearer = headers.get("authorization", "")
        given = bearer[7:].strip() if bearer[:7].lower() == "bearer " else headers.get("x-api-key", "")
        digest = _digest(given)
        # All keys are compared in full: the time it takes says nothing about them.
        if not sum([hmac.compare_digest(digest, key) for key in self._keys]):
            reason = "The key is not valid" if given else "A key is needed"
            message = f"{reason}. Send it as Authorization: Bearer KEY, or as X-API-Key: KEY."
            code = "wrong_key" if given else "key_needed"
            raise Refusal(401, code, message, headers={"WWW-Authenticate": "Bearer"})

    async def _with_body(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """The connection with its whole body read; refused if that is too large or too slow."""
        if scope["method"] in ("GET", "OPTIONS"):
            return receive
        most = self._settings.max_body_bytes
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > most:
            raise _too_large(most)
        body = bytearray()
        try:
            async with asyncio.timeout(_SECONDS_FOR_A_BODY):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise _too_large(most)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            rule = f"The body must arrive within {_SECONDS_FOR_A_BODY:g} s."
            raise Refusal(408, "slow_body", rule, headers={"Connection": "close"}) from None
        unread = [bytes(body)]

        async def read_again() -> Message:
            return {"type": "http.request", "body": unread.pop()} if unread else await receive()

        return read_again

    def _count(self, scope: Scope, line: dict[str, Any]) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        self._metrics.requests.labels(route, line["status"]).inc()
        self._metrics.request_seconds.labels(route).observe(line["seconds"])
        if "error" in line:
            self._metrics.refused.labels(line["error"]).inc()


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
    message = f"A body must have at most {most:,} bytes. Send less, or several requests."
    return Refusal(413, "body_too_large", message, headers={"Connection": "close"})
