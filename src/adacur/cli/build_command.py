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

from adacur.cli import arguments as opt
from adacur.cli.messages import counted, log_as_notes, note, print_json, say
from adacur.data import pseudo_queries, read_queries
from adacur.data.files import Repeated
from adacur.protocols import ScorerCard
from adacur.records import Item, Query

if TYPE_CHECKING:
    from adacur.store import Estimate

_DEFAULT_ANCHORS = 250
# From here on a dry run names cheaper ways.
_LONG_SECONDS = 600
_FEW_ANCHORS, _SHORT_ITEM, _SOME_ITEMS = 100, 64, 500


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
        rows = (json.dumps({"_id": query.id, "text": query.text}, ensure_ascii=False) for query in chosen)
        queries.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
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
        if as_json:
            print_json(cost)
            return
        say(cost.summary())
        if cost.seconds > _LONG_SECONDS:
            note(f"Cheaper: {'; '.join(_cheaper(cost, options['scorer'].card))}.")
        if cost.status == "complete":
            note(f"{index} is finished. Next: adacur search {quote(str(index))} 'your question'")
        else:
            again = f"adacur build {quote(items)} {quote(index or 'INDEX')}"
            note(f"Next: {again}, with the same options and without --dry-run.")
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


def _cheaper(cost: Estimate, card: ScorerCard) -> list[str]:
    """The ways to a cheaper build that are not taken yet."""
    ways = []
    scoring = cost.seconds - cost.encoding_seconds
    if cost.n_anchors > _FEW_ANCHORS:
        ways.append(f"fewer anchor queries (-n {_FEW_ANCHORS})")
    if cost.pairs and card.max_tokens and (card.max_item_tokens or card.max_tokens) > _SHORT_ITEM:
        ways.append(f"shorter items (--max-item-tokens {_SHORT_ITEM})")
    if cost.n_items > _SOME_ITEMS:
        ways.append(f"a first look at some of the items (--limit {_SOME_ITEMS})")
    if cost.n_anchors:
        ways.append("no anchor queries (-n 0): nothing is scored, searches start from dense vectors or re-rank")
    if cost.encoding_seconds > scoring:
        ways.append("no vectors (--first bm25)")
    return ways or ["a faster scorer"]
