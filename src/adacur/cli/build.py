"""`adacur build`: an index from items, or what one would cost."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from adacur.cli import options as opt
from adacur.cli.messages import counted, log_as_notes, note, print_json, say
from adacur.core.records import Item, Query
from adacur.data import pseudo_queries, read_queries
from adacur.engines.store_urls import is_store_url

if TYPE_CHECKING:
    from adacur.index import Estimate

_DEFAULT_ANCHORS = 250
# From here on a dry run names cheaper ways.
_LONG_SECONDS = 600


def build(
    items: opt.ItemsPath,
    index: Annotated[str | None, Argument(help="The folder to write; an interrupted build continues.")] = None,
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
    sparse: Annotated[
        float | None,
        Option(help="Score each anchor query against N items (or a share, 0.05) only; needs --first dense."),
    ] = None,
    block_items: Annotated[int | None, Option(min=1, help="Items per save point; default: about 20 s of work.")] = None,
    cache: opt.CacheFile = None,
    workers: opt.Workers = None,
    ray: opt.RayAddress = None,
    tune: Annotated[bool, Option(help="End with a quick tuning for the best 10 within 100 calls.")] = True,
    seed: opt.Seed = 0,
    id_field: Annotated[str | None, Option(help="The field or column with the item's id.")] = None,
    text_field: Annotated[list[str] | None, Option(help="A field with the item's text; may be repeated.")] = None,
    limit: Annotated[int | None, Option(min=1, help="Take only the first N items, to try things out.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Time the scorer, print the cost, and write no index.")] = False,
    price: opt.PriceOfScorer = None,
    passages: Annotated[
        int | None, Option(min=20, help="Split items of more than N words into overlapping passages of a document.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Score every item against every anchor query. An interrupted build continues with the same command.

    Example: adacur build corpus.jsonl my.adacur --anchors queries.jsonl --first bm25,dense
    """
    import adacur
    from adacur.index import is_finished

    if index is None and not dry_run:
        raise typer.BadParameter("Give the folder to write as INDEX, or --dry-run.")
    source = opt.collection(items, id_field=id_field, text_fields=text_field, limit=limit)
    chosen = _anchor_queries(source, anchors, n_anchors, seed=seed)
    if queries is not None:
        rows = (json.dumps({"_id": query.id, "text": query.text}, ensure_ascii=False) for query in chosen)
        queries.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        note(f"{queries}: {counted(len(chosen), 'anchor query', 'anchor queries')}.")
    stages = opt.comma_separated(first)
    options: dict[str, Any] = {
        "scorer": opt.opened_scorer(scorer, max_item_tokens, cache=cache, settings=scorer_set),
        "path": index or "",
        "first": stages,
        "encoder": encoder if "dense" in stages else None,
        "sparse": sparse,
        "block_items": block_items,
        "on": opt.on_workers(workers, ray),
        "seed": seed,
        "passages": passages,
    }
    if dry_run:
        _show_cost(
            adacur.build(source, chosen or 0, dry_run=True, price=price, **options), items=items, as_json=as_json
        )
        return
    was_finished = is_finished(str(index))
    with log_as_notes("adacur.build"):
        built = adacur.build(source, chosen or 0, tune=tune, **options)
    recognising = 0 if built.drift is None else built.drift.n_probes
    if as_json:
        summary = {"index": index, "items": len(built), "anchors": len(built.anchor_queries)}
        print_json(summary | {"first": built.first_stages, "recognising": recognising})
        return
    n_queries = counted(len(built.anchor_queries), "anchor query", "anchor queries")
    say(f"{index}: {len(built):,} items × {n_queries}; first stages {', '.join(built.first_stages)}.")
    if was_finished:
        note("It was finished before: no block was scored again.")
    if recognising:
        note(f"{recognising} calls went into recognising the scorer.")
    note(f"Next: adacur search {quote(str(index))} 'your question'{opt.scorer_flag(built.scorer.card.source)}")


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


def _show_cost(cost: Estimate, *, items: str, as_json: bool) -> None:
    if as_json:
        print_json(cost)
        return
    say(cost.in_words())
    if cost.seconds > _LONG_SECONDS:
        note("Cheaper: fewer anchor queries (-n 100), --max-item-tokens 64, --sparse 0.05 --first dense, --limit 500,")
        note("or -n 0: nothing is scored, searches predict from dense vectors or re-rank, and anchors can come later.")
    source = opt.repeatable_url(items) if is_store_url(items) else items
    note(f"Next: adacur build {quote(source)} INDEX, with the same options and without --dry-run.")
