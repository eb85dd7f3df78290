"""`adacur build`: an index from items, or what one would cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from typer import Argument, Option

from adacur.cli import arguments as opt
from adacur.cli.messages import counted, log_as_notes, note, show
from adacur.data import pseudo_queries, read_queries, write_queries
from adacur.data.files import Repeated
from adacur.records import Item, Query

_DEFAULT_ANCHORS = 250
# From here on a dry run names cheaper ways.
_LONG_SECONDS = 600
_CHEAPER = (
    "Cheaper: fewer anchor queries (-n 100), shorter items (--max-item-tokens 64), no vectors (--first bm25), some of "
    "the items (--limit 500), or no anchor queries (-n 0): searches then start from dense vectors or re-rank."
)


def build(
    items: opt.ItemsPath,
    index: Annotated[
        str | None, Argument(metavar="INDEX", help="The folder to write; an interrupted build continues.")
    ] = None,
    anchors: Annotated[Path | None, Option(help="A file of anchor queries; default: pseudo-queries.")] = None,
    n_anchors: Annotated[
        int | None,
        Option(
            "-n",
            "--number",
            min=0,
            help="Use the first N; without --anchors, make N pseudo-queries (250, or one per item if fewer). 0 scores "
            "nothing: searches predict from dense vectors alone, or re-rank.",
        ),
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
    repeated: Annotated[
        Repeated, Option(help="Items whose id was there before: refuse them, or keep the first of each.")
    ] = "refuse",
    limit: Annotated[int | None, Option(min=1, help="Take only the first N items, to try things out.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Time the scorer, print the cost, and write no index.")] = False,
    price: opt.PriceOfScorer = None,
    passages: Annotated[
        int | None, Option(min=20, help="Split items of more than N words into overlapping passages of a document.")
    ] = None,
    fuse: Annotated[
        float | None,
        Option(
            help="The first stage's weight in the order of hits, remembered by the index: 0 is the scorer's own order; "
            "default: 1 for a reranker, 0 for a function or a judge."
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Make an index: score every item against the anchor queries.

    An interrupted build continues with the same command.

    Example: adacur build corpus.jsonl my.adacur --anchors queries.jsonl --first bm25,dense
    """
    import adacur
    from adacur.store import is_finished

    if index is None and not dry_run:
        raise typer.BadParameter("Give the folder to write as INDEX, or --dry-run.")
    source = opt.collection(items, id_field=id_field, text_fields=text_field, limit=limit, repeated=repeated)
    chosen = _anchor_queries(source, anchors, n_anchors, seed=seed)
    if queries is not None:
        write_queries(queries, chosen)
        note(f"{queries}: {counted(len(chosen), 'anchor query', 'anchor queries')}.")
    stages = opt.comma_separated(first)
    options: dict[str, Any] = {
        "scorer": opt.opened_scorer(scorer, max_item_tokens, cache=cache, settings=scorer_set),
        "path": index or "",
        "first": stages,
        "encoder": encoder if "dense" in stages else None,
        "block_items": block_items,
        "executor": opt.on_workers(workers, ray),
        "seed": seed,
        "passages": passages,
        "fuse": fuse,
    }
    if dry_run:
        cost = adacur.build(source, chosen or 0, dry_run=True, price=price, **options)
        again = f"adacur build {quote(items)} {quote(index or 'INDEX')}, with the same options and without --dry-run"
        is_complete = cost.status == "complete"
        follows = f"adacur search {quote(str(index))} 'your question'" if is_complete else again
        hints = (_CHEAPER if cost.seconds > _LONG_SECONDS else "", f"Next: {follows}.")
        show(cost, cost.summary(), hints=hints, as_json=as_json)
        return
    was_finished = is_finished(str(index))
    with log_as_notes("adacur.build"):
        built = adacur.build(source, chosen or 0, tune=tune, **options)
    recognising = 0 if built.drift is None else built.drift.n_probes
    summary = {"index": index, "items": len(built), "anchors": len(built.anchor_queries)}
    n_queries = counted(len(built.anchor_queries), "anchor query", "anchor queries")
    show(
        summary | {"first": built.first_stages, "recognising": recognising},
        f"{index}: {len(built):,} items × {n_queries}; first stages {', '.join(built.first_stages)}.",
        hints=(
            "It was finished before: no block was scored again." if was_finished else "",
            f"{recognising} calls went into recognising the scorer." if recognising else "",
            f"Next: adacur search {quote(str(index))} 'your question'{opt.scorer_flag(built.scorer.card.source)}",
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
