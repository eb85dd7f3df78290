"""`adacur serve`: indexes over HTTP, or one for a language model; and `adacur index refresh`."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from adacur.cli import arguments as opt
from adacur.cli.messages import counted, note, notes, say, show
from adacur.errors import InputError
from adacur.names import is_store_url
from adacur.requirements import require

if TYPE_CHECKING:
    from adacur.extras.server import ServerSettings

KEYS_VARIABLE = "ADACUR_API_KEYS"
# NAME= before an index.
_NAME = re.compile(r"^[^=/\\:]+=")
_LOOPBACK = ("127.", "::1", "localhost")


def serve(
    indexes: Annotated[
        list[str] | None,
        Argument(
            metavar="[[NAME=]INDEX ...]",
            help="Index folders, or URLs of collections in an engine, each under its name or NAME; default: the index "
            "that ships.",
        ),
    ] = None,
    host: Annotated[str, Option(help="The address to listen on; 0.0.0.0 is every network.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 takes any free port.")] = 8000,
    scorer: opt.ScorerOfIndex = None,
    encoder: opt.EncoderName = None,
    allow_code: opt.AllowCode = False,
    cache: opt.CacheFile = None,
    key: Annotated[list[str] | None, Option(help="A key that requests need; may be repeated.")] = None,
    allow_host: Annotated[list[str] | None, Option(help="A host name of this server; may be repeated.")] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="A limit or switch of the server, such as max_budget=200 or log_queries=true; may be repeated. A "
            "wrong name lists them all.",
        ),
    ] = None,
    mcp: Annotated[bool, Option("--mcp", help="Serve one index to a language model, over stdin and stdout.")] = False,
    about: Annotated[str | None, Option(help="With --mcp: what the items are, for the model.")] = None,
) -> None:
    """Serve indexes: a page, a JSON API, rerank routes, MCP.

    Keys may also come from ADACUR_API_KEYS=key,key. Programs that speak MCP start `adacur serve INDEX --mcp`
    themselves; it ends when they close its stdin.

    Example: adacur serve my.adacur --port 8000
    """
    if scorer is None and indexes and all("://" in one and is_store_url(_NAME.sub("", one)) for one in indexes):
        scorer = opt.DEFAULT_SCORER
    options: dict[str, Any] = {"scorer": scorer, "encoder": encoder, "allow_code": allow_code, "cache": cache}
    if mcp:
        given = opt.settings_given(settings, takes=["max_budget"])
        _serve_mcp(indexes or [], options, **given, about=about)
        return
    for module in ("fastapi", "uvicorn", "prometheus_client", "structlog"):
        require(module, extra="serving")
    from adacur.extras.server import ServerSettings

    keys = tuple(key or ()) or _keys_in_the_environment()
    access: dict[str, Any] = {"api_keys": keys, "allowed_hosts": tuple(name.lower() for name in allow_host or ())}
    names = [field.name for field in fields(ServerSettings) if field.name not in access]
    limits = ServerSettings(**access, **opt.settings_given(settings, takes=names))
    _serve_http(indexes or [], options, limits, host=host, port=port)


def refresh(
    index: opt.IndexPath,
    log: Annotated[Path, Argument(metavar="LOG", help="The log of searches in this index.")],
    limit: Annotated[int, Option(min=1, help="At most this many anchor queries from the log.")] = 500,
    allow_code: opt.AllowCode = False,
    as_json: opt.Json = False,
) -> None:
    """Make anchor queries of logged searches.

    Calls no scorer: the scores are those that the searches paid for, and predictions for the rest. Servers keep the
    version that they opened.

    Example: adacur index refresh my.adacur logs/my.sqlite
    """
    from adacur.extras.server import refresh as refresh_folder

    done = refresh_folder(index, log, limit=limit, allow_code=allow_code)
    queries = counted(done.queries, "logged query", "logged queries")
    show(
        {"index": index, **asdict(done)},
        f"{index}: {done.added} of {queries} added, {done.dropped} dropped; "
        f"{counted(done.anchors, 'anchor query', 'anchor queries')} now.",
        as_json=as_json,
    )


def _serve_http(
    indexes: list[str], options: Mapping[str, Any], settings: ServerSettings, *, host: str, port: int
) -> None:
    from adacur.extras.server import create_app
    from adacur.extras.server.open_indexes import named_places, open_indexes
    from adacur.extras.server.running import listening, run, server_log
    from adacur.search.shipped import wikivital_folder

    places = named_places(indexes)
    # A port that is taken is reported before models are opened, which may take a while.
    at = listening(host, port)
    with at:
        if not places:
            note("No index given: serving the one that ships with adacur, 10,033 Wikipedia articles.")
            places = {"wikivital": str(wikivital_folder())}
        with notes.status(f"opening {', '.join(places)} …"):
            opened = open_indexes(places, **options, settings=settings)
        if not settings.api_keys and not host.startswith(_LOOPBACK):
            note(f"Anyone who can reach {host} can search here, and spend. Require keys: --key or {KEYS_VARIABLE}.")
        shown = "127.0.0.1" if host in ("0.0.0.0", "") else f"[{host}]" if ":" in host else host
        url, log = f"http://{shown}:{at.getsockname()[1]}", server_log()
        app = create_app(opened, settings=settings, log=log)
        say(f"{', '.join(f'{name} ({len(index):,} items)' for name, index in opened.items())}: {url}")
        note(f"Open {url} in a browser; the API is at {url}/openapi.json. Ctrl-C stops, after running requests.")
        run(app, at, grace_seconds=settings.grace_seconds, log=log)
    note("Stopped.")


def _serve_mcp(indexes: list[str], options: Mapping[str, Any], *, about: str | None, max_budget: int = 1000) -> None:
    require("mcp", extra="mcp")
    from adacur.extras.server.mcp import serve_mcp
    from adacur.extras.server.open_indexes import open_indexes

    if len(indexes) != 1:
        raise InputError(f"--mcp serves one index; got {len(indexes)}.")
    with _printing_to_stderr():
        (index,) = open_indexes({"index": indexes[0]}, **options).values()
    note(f"{index!r} is served over stdin and stdout to a program that speaks MCP.")
    with index:
        serve_mcp(index, max_budget=max_budget, description=about)


@contextlib.contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """Send what a scorer prints while it is opened, child processes included, to stderr.

    To the client every line of stdout is a message. While serving, the SDK does the same.
    """
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def _keys_in_the_environment() -> tuple[str, ...]:
    given = os.environ.get(KEYS_VARIABLE)
    if given is None:
        return ()
    keys = tuple(key.strip() for key in given.split(",") if key.strip())
    if not keys:
        # A secret that was never filled in must not open the server.
        raise InputError(f"{KEYS_VARIABLE} is set but has no key. Give it one, or unset it to serve without keys.")
    return keys
