"""`adacur serve`: indexes over HTTP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from adacur.cli.messages import note, say, tell
from adacur.cli.opening import Trust
from adacur.core.errors import InputError
from adacur.core.extras import require

__all__ = ["KEYS_VARIABLE", "add_serve_command", "serve_command"]

KEYS_VARIABLE = "ADACUR_API_KEYS"
_LOOPBACK = ("127.", "::1", "localhost")


def add_serve_command(app: typer.Typer) -> None:
    """Make `adacur serve` one of the commands."""

    @app.command(epilog="Example: adacur serve my.adacur --port 8000")
    def serve(
        indexes: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="[[NAME=]INDEX ...]",
                help="Index folders or URLs, each under its folder's name or NAME; default: the index that ships.",
            ),
        ] = None,
        host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 is everywhere.")] = "127.0.0.1",
        port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
        scorer: Annotated[
            str | None, typer.Option(help="Another backend of the scorer that built the indexes; default: that scorer.")
        ] = None,
        trust: Trust = False,
        cache: Annotated[
            Path | None, typer.Option(help="A file that keeps scores from run to run; made if there is none.")
        ] = None,
        key: Annotated[
            list[str] | None,
            typer.Option(help=f"Take only requests with this key; may be repeated. Or {KEYS_VARIABLE}=key,key."),
        ] = None,
        allow_host: Annotated[
            list[str] | None,
            typer.Option(
                metavar="NAME",
                help="A name by which clients ask for this server, beside localhost; may be repeated.",
            ),
        ] = None,
        max_k: Annotated[int, typer.Option(min=1, help="Most items of a search.")] = 1000,
        max_budget: Annotated[int, typer.Option(min=1, help="Most scorer calls of a query.")] = 1000,
        max_rounds: Annotated[int, typer.Option(min=1, help="Most rounds of a search.")] = 100,
        max_queries: Annotated[int, typer.Option(min=1, help="Most queries of a request.")] = 32,
        max_query_chars: Annotated[int, typer.Option(min=1, help="Longest query.")] = 4000,
        max_filter_values: Annotated[
            int, typer.Option(min=1, help="Most ids, or values of metadata, in a filter.")
        ] = 10_000,
        max_documents: Annotated[int, typer.Option(min=1, help="Most documents to re-rank in a request.")] = 1000,
        max_document_chars: Annotated[int, typer.Option(min=1, help="Longest document.")] = 100_000,
        max_body_bytes: Annotated[int, typer.Option(min=1, help="Largest body of a request.")] = 4 * 2**20,
        concurrency: Annotated[int, typer.Option(min=1, help="Requests that are worked on at a time.")] = 64,
        queue: Annotated[int, typer.Option(min=0, help="Requests that may wait beside them; then 429.")] = 128,
        seconds: Annotated[float, typer.Option(help="The most that a request may take.")] = 60.0,
        grace_seconds: Annotated[
            float, typer.Option(help="What requests under way are given to finish when the server is stopped.")
        ] = 30.0,
        shared_batches: Annotated[
            bool | None,
            typer.Option(
                "--shared-batches/--no-shared-batches",
                help="Let requests that wait at the same time share scorer calls; default: those of models on this "
                "machine. A shared call that fails is repeated, request by request, beyond their budgets.",
            ),
        ] = None,
        log_queries: Annotated[
            bool, typer.Option("--log-queries", help="Write the texts of queries into the log as well.")
        ] = False,
    ) -> None:
        """Serve indexes over HTTP: a page to try them on, a JSON API, and rerank routes that other clients know."""
        serve_command(
            indexes or (),
            host=host,
            port=port,
            scorer=scorer,
            trust=trust,
            cache=cache,
            keys=key or (),
            allowed_hosts=tuple(name.lower() for name in allow_host or ()),
            max_k=max_k,
            max_budget=max_budget,
            max_rounds=max_rounds,
            max_queries=max_queries,
            max_query_chars=max_query_chars,
            max_filter_values=max_filter_values,
            max_documents=max_documents,
            max_document_chars=max_document_chars,
            max_body_bytes=max_body_bytes,
            concurrency=concurrency,
            queue=queue,
            seconds=seconds,
            grace_seconds=grace_seconds,
            shared_batches=shared_batches,
            log_queries=log_queries,
        )


def serve_command(
    indexes: Sequence[str],
    *,
    host: str,
    port: int,
    scorer: str | None,
    trust: bool,
    cache: Path | None,
    keys: Sequence[str],
    **options: Any,
) -> None:
    """Open the indexes, listen, and serve until told to stop."""
    for module in ("fastapi", "uvicorn", "prometheus_client", "structlog"):
        require(module, extra="serving")
    from adacur.serving import ServerSettings, create_app
    from adacur.serving.logs import server_log
    from adacur.serving.opening import named_places, open_indexes
    from adacur.serving.running import listening, run

    settings = ServerSettings(api_keys=tuple(keys) or _keys_in_the_environment(), **options)
    places = named_places(indexes)
    # Told before models are opened, which may take a while.
    at = listening(host, port)
    with at:
        if not places:
            places = {"wikivital": _shipped()}
        with note.status(f"opening {', '.join(places)} …"):
            opened = open_indexes(places, scorer=scorer, trust=trust, cache=cache)
        if not settings.api_keys and not host.startswith(_LOOPBACK):
            tell(f"Note: whoever can reach {host} can search here, and spend. Ask for keys: --key or {KEYS_VARIABLE}.")
        shown = "127.0.0.1" if host in ("0.0.0.0", "") else f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{at.getsockname()[1]}"

        def started() -> None:
            held = ", ".join(f"{name} ({len(index):,} items)" for name, index in opened.items())
            say(f"{held}: {url}")
            tell(f"Open {url} in a browser; the API is at {url}/docs. Ctrl-C stops, after what is under way.")

        log = server_log()
        app = create_app(opened, settings=settings, log=log)
        run(app, at, grace_seconds=settings.grace_seconds, started=started, log=log)
    tell("Stopped.")


def _keys_in_the_environment() -> tuple[str, ...]:
    given = os.environ.get(KEYS_VARIABLE)
    if given is None:
        return ()
    keys = tuple(key.strip() for key in given.split(",") if key.strip())
    if not keys:
        # A secret that was never filled in must not open the server.
        raise InputError(f"{KEYS_VARIABLE} is set and holds no key. Give it one, or unset it to serve without keys.")
    return keys


def _shipped() -> str:
    from adacur.search.shipped import wikivital_folder

    tell("No index given: serving the one that ships with adacur, 10,033 Wikipedia articles.")
    with note.status("fetching the articles and models, once …"):
        return str(wikivital_folder())
