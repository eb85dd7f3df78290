"""The page at `/`: its files are read once, and nothing but them is ever served."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, HTTPException, Request, Response

__all__ = ["page_router", "policy"]

_FOLDER = files("adacur.serving") / "page"
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_INLINE_SCRIPT = re.compile(rb"<script[^>]*>([^<]+)</script>")


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    packed: bytes
    media_type: str
    etag: str
    cache: str


def page_router() -> APIRouter:
    """Serves the page and its files, to any visitor: what they show comes from the API, which asks for the key."""
    router = APIRouter(include_in_schema=False)
    held = _read(_FOLDER)

    @router.get("/")
    def page(request: Request) -> Response:
        return _answer(held["index.html"], request)

    @router.get("/page/{name:path}")
    def page_file(name: str, request: Request) -> Response:
        # A name is looked up, never joined to a folder: a path that climbs is just a name that no file has.
        if name not in held or name == "index.html":
            raise HTTPException(404, "The page has no such file.")
        return _answer(held[name], request)

    return router


def _read(folder: Traversable, under: str = "") -> dict[str, _File]:
    held: dict[str, _File] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            held |= _read(entry, f"{under}{entry.name}/")
            continue
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in _MEDIA_TYPES:
            content = entry.read_bytes()
            held[under + entry.name] = _File(
                content=content,
                packed=gzip.compress(content, mtime=0),
                media_type=_MEDIA_TYPES[suffix],
                etag=f'"{hashlib.sha256(content).hexdigest()[:20]}"',
                # The names of others' files hold their version; the page's own may change with each release.
                cache="public, max-age=31536000, immutable" if under == "vendor/" else "no-cache",
            )
    return held


def policy() -> str:
    """The Content-Security-Policy of every answer.

    Everything from this server, nothing inline but the page's import map, nothing evaluated, framed by nobody.
    """
    html = (_FOLDER / "index.html").read_bytes()
    inline = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _INLINE_SCRIPT.findall(html)]
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in inline)])
    return (
        f"default-src 'self'; script-src {scripts}; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    )


def _answer(file: _File, request: Request) -> Response:
    headers: Mapping[str, str] = {
        "Cache-Control": file.cache,
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
    }
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        packed = {**headers, "Content-Encoding": "gzip"}
        return Response(file.packed, headers=packed, media_type=file.media_type)
    return Response(file.content, headers=headers, media_type=file.media_type)
