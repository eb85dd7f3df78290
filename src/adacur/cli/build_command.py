"""`adacur build`: an index from items, or what one would cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from typer import Argument, Context, Option

from adacur.cli import arguments as opt
from adacur.cli.messages import counted, log_as_notes, note, show
from adacur.data import pseudo_queries, read_queries, write_queries
from adacur.data.files import Repeated
from adacur.records import Item, Query

_DEFAULT_ANCHORS = 250
# From here on a dry run names cheaper ways.
_LONG_SECONDS = 600


def build(
    ctx: Context,
    items: opt.ItemsPath,
    index: Annotated[str | None, Argument(metavar="INDEX", help="The folder to write.")] = None,
    anchors: Annotated[Path | None, Option(help="A file of anchor queries; default: pseudo-queries.")] = None,
    n_anchors: Annotated[
        int | None, Option("-n", "--number", min=0, help="Use the first N, or make N (default: 250); 0 scores nothing.")
    ] = None,
    queries: Annotated[Path | None, Option(help="Also write the anchor queries to this .jsonl file.")] = None,
    scorer: opt.ScorerName = opt.DEFAULT_SCORER,
    scorer_set: opt.ScorerSettings = None,
    max_item_tokens: opt.MaxItemTokens = None,
    first: Annotated[str, Option(help="First stages: bm25, dense, or both: bm25,dense.")] = "bm25",
    encoder: Annotated[str, Option(help="Encoder of the dense first stage.")] = opt.DEFAULT_ENCODER,
    block_items: Annotated[int | None, Option(min=1, help="Items per save point; default: 512 points.")] = None,
    cache: opt.CacheFile = None,
    workers: opt.Workers = None,
    ray: opt.RayAddress = None,
    tune: Annotated[bool, Option(help="End with a quick tuning for the best 10 within 100 calls.")] = True,
    seed: opt.Seed = 0,
    id_field: opt.IdField = None,
    text_field: opt.TextFields = None,
    repeated: Annotated[Repeated, Option(help="Ids that repeat: refuse them, or keep the first of each.")] = "refuse",
    limit: Annotated[int | None, Option(min=1, help="Take only the first N items, to try things out.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Time the scorer, print the cost, and write no index.")] = False,
    price: opt.PriceOfScorer = None,
    passages: Annotated[int | None, Option(min=20, help="Split items of more than N words into passages.")] = None,
    fuse: Annotated[float | None, Option(help="The weight of the first stage, where a search names none.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Make an index: score every item against the anchor queries.

    An interrupted build continues with the same command.

    Example: adacur build corpus.jsonl my.adacur --anchors queries.jsonl --first bm25,dense
    """
    import adacur
    from adacur.store import Estimate, is_finished

    if index is None and not dry_run:
        raise typer.BadParameter("Give the folder to write as INDEX, or --dry-run.")
    source = opt.collection(items, id_field=id_field, text_fields=text_field, limit=limit, repeated=repeated)
    chosen = _anchor_queries(source, anchors, n_anchors, seed=seed)
    if queries is not None:
        write_queries(queries, chosen)
        note(f"{queries}: {counted(len(chosen), 'anchor query', 'anchor queries')}.")
    stages = opt.comma_separated(first)
    options = opt.taken_by(adacur.build, ctx) | {
        "items": source,
        "anchor_queries": chosen or 0,
        "scorer": opt.opened_scorer(scorer, max_item_tokens, cache=cache, settings=scorer_set),
        "path": index or "",
        "first": stages,
        "encoder": encoder if "dense" in stages else None,
        "executor": opt.on_workers(workers, ray),
    }
    was_finished = is_finished(str(index))
    with log_as_notes("adacur.build"):
        done: Any = adacur.build(**options)
    searching = f"Next: adacur search {quote(str(index))} 'your question'"
    if isinstance(done, Estimate):
        again = f"Next: adacur build {quote(items)} {quote(index or 'INDEX')}, with these options, without --dry-run."
        cheaper = {
            "fewer anchor queries (-n 100)": len(chosen) > 100,
            "shorter items (--max-item-tokens 64)": (max_item_tokens or 65) > 64,
            "no vectors (--first bm25)": "dense" in stages,
            "some of the items (--limit 500)": limit is None,
            "no anchor queries (-n 0): searches then start from dense vectors or re-rank": bool(chosen),
        }
        ways = ", ".join(way for way, helps in cheaper.items() if helps)
        hints = (
            f"Cheaper: {ways}." if done.seconds > _LONG_SECONDS and ways else "",
            f"{searching}." if done.status == "complete" else again,
        )
        show(done, done.summary(), hints=hints, as_json=as_json)
        return
    recognising = 0 if done.drift is None else done.drift.n_probes
    n_queries = counted(len(done.anchor_queries), "anchor query", "anchor queries")
    show(
        {"index": index, "items": len(done), "anchors": len(done.anchor_queries)}
        | {"first": done.first_stages, "recognising": recognising},
        f"{index}: {len(done):,} items × {n_queries}; first stages {', '.join(done.first_stages)}.",
        hints=(
            "It was finished before: no block was scored again." if was_finished else "",
            f"{recognising} calls went into recognising the scorer." if recognising else "",
            f"{searching}{opt.scorer_flag(done.scorer.card.source)}",
        ),
        as_json=as_json,
    )


def _anchor_queries(items: Iterable[Item], file: Path | None, n: int | None, *, seed: int) -> list[Query]:
    """The first n queries of a file, or all; without a file n pseudo-queries, or one per item up to 250."""
    if n == 0:
        return []
    if file is None:
        return pseudo_queries(items, n or min(_DEFAULT_ANCHORS, sum(1 for _ in items)), seed=seed)
    queries = list(itertools.islice(read_queries(file), n))
    if n and len(queries) < n:
        note(f"{file} holds {counted(len(queries), 'anchor query', 'anchor queries')}, fewer than {n}; all are used.")
    return queries
