"""The page at `/` and its files, open to every visitor: the data it shows comes from the API, which needs the key."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_FOLDER = Path(str(files("adacur.extras.server") / "page"))
_INLINE_SCRIPT = re.compile(rb"<script[^>]*>([^<]+)</script>")


class _PageFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        # Names of others' files hold their version; the page's files may change with each release.
        is_vendored = path.startswith("vendor")
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_vendored else "no-cache"
        return response


def add_page(app: FastAPI) -> None:
    """Serve the page at `/` and its files under `/page`."""
    page_files = _PageFiles(directory=_FOLDER)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return await page_files.get_response("index.html", request.scope)

    app.mount("/page", page_files)


def content_security_policy() -> str:
    """Of every answer: all from this server, nothing inline but the page's import map, nothing evaluated, no frames."""
    html = (_FOLDER / "index.html").read_bytes()
    inline = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _INLINE_SCRIPT.findall(html)]
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in inline)])
    return (
        f"default-src 'self'; script-src {scripts}; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
