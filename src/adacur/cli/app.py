"""The commands."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from adacur import __version__
from adacur.cli.messages import (
    answer,
    duration,
    hits_table,
    megabytes,
    note,
    print_json,
    seconds_line,
    warnings_as_notes,
)
from adacur.core.errors import InputError
from adacur.core.records import Item, Query
from adacur.data import cache_folder, describe, fetch, names, pseudo_queries, read_items, read_queries, wikivital

__all__ = ["app"]

DEFAULT_SCORER = "ms-marco-MiniLM-L-12-v2"
DEFAULT_ENCODER = "bge-small-en-v1.5"
_SAMPLE_ITEMS = 512
_SAMPLE_QUERIES = 16

app = typer.Typer(
    name="adacur",
    help="Find the items an expensive scorer likes best, within a budget of calls to it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Add --debug to any command to see the traceback of an error.",
)

ItemsPath = Annotated[
    str, typer.Argument(help="Items: .jsonl, .csv, .tsv or .txt (also .gz), a BEIR folder, or 'wikivital'.")
]
IndexPath = Annotated[Path, typer.Argument(help="An index folder.")]
ScorerName = Annotated[
    str,
    typer.Option(
        "--scorer",
        help="A name `adacur fetch` lists, a folder with an ONNX or transformers cross-encoder, or module:function.",
    ),
]
MaxItemTokens = Annotated[
    int | None, typer.Option("--max-item-tokens", help="Cut items to so many tokens; the query is never cut.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Seed = Annotated[int, typer.Option("--seed", help="Same seed, same answer.")]


def _version(asked: bool) -> None:
    if asked:
        answer.print(f"adacur {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Find the items an expensive scorer likes best, within a budget of calls to it."""


@app.command("fetch", epilog="Example: adacur fetch ms-marco-MiniLM-L-12-v2 wikivital")
def fetch_command(
    wanted: Annotated[list[str] | None, typer.Argument(help="Names; none lists what there is.", metavar="NAME")] = None,
    as_json: Json = False,
) -> None:
    """Fetch models and collections by name, checked and cached. Without a name: list them."""
    fetched = {}
    for name in wanted or ():
        asset = describe(name)
        note.print(f"{name}: {asset.origin}. Licence: {asset.licence}.", highlight=False)
        fetched[name] = str(fetch(name))
    if as_json:
        assets = [describe(name) for name in names()]
        rows = [
            {"name": a.name, "kind": a.kind, "licence": a.licence, "bytes": a.size, "origin": a.origin} for a in assets
        ]
        print_json(fetched if wanted else rows)
    elif wanted:
        for name, path in fetched.items():
            answer.print(f"{name}\t{path}", highlight=False, soft_wrap=True)
    else:
        table = Table("name", "kind", "size", "licence", "what it is", show_edge=False)
        for asset in map(describe, names()):
            table.add_row(asset.name, asset.kind, megabytes(asset.size), asset.licence, asset.origin)
        answer.print(table)
        note.print(f"Kept in {cache_folder()} (set ADACUR_CACHE to change).", highlight=False, soft_wrap=True)


@app.command(epilog="Example: adacur queries corpus.jsonl -n 250 -o anchors.jsonl")
def queries(
    items: ItemsPath,
    n: Annotated[int, typer.Option("-n", "--number", help="How many.")] = 250,
    kind: Annotated[str, typer.Option(help="mixed (best), sentences, titles or keywords.")] = "mixed",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A .jsonl file; default: stdout.")] = None,
    seed: Seed = 0,
) -> None:
    """Make anchor queries from the items themselves, for those who have no query log. Needs no model."""
    made = pseudo_queries(list(_items(items)), n, seed=seed, kinds=kind)  # type: ignore[arg-type]
    lines = "".join(json.dumps({"_id": query.id, "text": query.text}, ensure_ascii=False) + "\n" for query in made)
    if output is None:
        typer.echo(lines, nl=False)
    else:
        output.write_text(lines, encoding="utf-8")
        note.print(
            f"{len(made)} queries in {output}. Next: adacur build {items} INDEX --anchors {output}", highlight=False
        )


@app.command(epilog="Example: adacur estimate corpus.jsonl --scorer ms-marco-MiniLM-L-12-v2")
def estimate(
    items: ItemsPath,
    anchors: Annotated[Path | None, typer.Option("--anchors", help="Anchor queries; default: pseudo-queries.")] = None,
    scorer: ScorerName = DEFAULT_SCORER,
    sizes: Annotated[str, typer.Option(help="Numbers of anchor queries.")] = "50,100,200,500",
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    max_item_tokens: MaxItemTokens = None,
    as_json: Json = False,
) -> None:
    """Time the scorer on a sample and say what an index would cost, before anyone pays."""
    rows = _estimated(list(_items(items)), anchors, scorer, _sizes(sizes), dtype=dtype, max_item_tokens=max_item_tokens)
    if as_json:
        print_json(rows)
        return
    table = Table("anchor queries", "pairs", "time", "scores on disk", show_edge=False)
    for row in rows:
        table.add_row(f"{row.n_anchors}", f"{row.pairs:,}", duration(row.seconds), megabytes(row.bytes))
    answer.print(table)
    note.print(f"At {rows[0].pairs_per_second:,.1f} pairs/s on this machine, seen over {rows[0].calls_used} pairs.")


@app.command(epilog="Example: adacur build corpus.jsonl my.adacur --anchors queries.jsonl --first bm25,dense")
def build(
    items: ItemsPath,
    index: Annotated[Path, typer.Argument(help="The folder to write; an interrupted one is continued.")],
    anchors: Annotated[
        Path | None, typer.Option("--anchors", help="Anchor queries: .jsonl, .csv, .tsv, .txt, BEIR.")
    ] = None,
    n_anchors: Annotated[
        int | None,
        typer.Option("-n", "--number", help="Use the first N; without --anchors, make N pseudo-queries (250)."),
    ] = None,
    scorer: ScorerName = DEFAULT_SCORER,
    first: Annotated[str, typer.Option(help="First stages to keep: bm25, dense, or both: bm25,dense.")] = "bm25",
    encoder: Annotated[str, typer.Option(help="Dual encoder of the dense first stage.")] = DEFAULT_ENCODER,
    dtype: Annotated[str, typer.Option(help="float32 or float16: how scores are kept.")] = "float32",
    max_item_tokens: MaxItemTokens = None,
    block_items: Annotated[int | None, typer.Option(help="Items per save point; default: some 20 s of work.")] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Score every item against every anchor query. Interrupt it at will: the same command continues."""
    import adacur

    stages = [name for name in first.split(",") if name]
    collection = list(_items(items))
    queries_ = _anchors(collection, anchors, n_anchors, seed=seed)
    opened = adacur.scorer(scorer, **_options(max_item_tokens))
    if not (index / "manifest.json").exists():
        cost = adacur.estimate(
            collection[:_SAMPLE_ITEMS],
            queries_[:_SAMPLE_QUERIES],
            scorer=opened,
            n_items=len(collection),
            n_anchors=(len(queries_),),
            dtype=dtype,
        )[0]
        note.print(
            f"{len(collection):,} items × {len(queries_)} anchor queries = {cost.pairs:,} pairs, about "
            f"{duration(cost.seconds)} at {cost.pairs_per_second:,.1f} pairs/s, {megabytes(cost.bytes)} of scores.",
            highlight=False,
        )
    with warnings_as_notes():
        built = adacur.build(
            collection,
            queries_,
            scorer=opened,
            path=index,
            dtype=dtype,
            first=stages,
            encoder=encoder if "dense" in stages else None,
            block_items=block_items,
            seed=seed,
        )
    summary = {
        "index": str(index),
        "items": len(built),
        "anchors": len(built.anchor_queries),
        "first": built.first_stages,
    }
    if as_json:
        print_json(summary)
    else:
        answer.print(f"{index}: {len(built):,} items × {len(built.anchor_queries)} anchor queries.", highlight=False)
        note.print(f"Next: adacur search {index} 'your question'", highlight=False)


@app.command(epilog="Example: adacur search my.adacur 'who discovered penicillin?' -k 5 --budget 100")
def search(
    index: IndexPath,
    query: Annotated[list[str] | None, typer.Argument(help="One question, or several.")] = None,
    queries_file: Annotated[Path | None, typer.Option("--queries", help="A file of questions.")] = None,
    k: Annotated[int, typer.Option("-k", help="How many items to return.")] = 10,
    budget: Annotated[int, typer.Option(help="Scorer calls per question.")] = 100,
    rounds: Annotated[int | None, typer.Option(help="Rounds the budget is spent in (5).")] = None,
    method: Annotated[str, typer.Option(help="adacur, anncur, rerank or exact.")] = "adacur",
    first: Annotated[str | None, typer.Option(help="First stage: dense, bm25 or random.")] = None,
    pool: Annotated[int | None, typer.Option(help="Search only the first stage's best N.")] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds per question.")] = None,
    seed: Seed = 0,
    scorer: Annotated[str | None, typer.Option(help="Another backend of the index's scorer.")] = None,
    as_json: Json = False,
) -> None:
    """Find the best items for a question, exactly scored, within a budget."""
    import adacur

    asked: list[Query | str] = [*(query or ()), *(read_queries(queries_file) if queries_file else ())]
    if not asked:
        raise InputError("Nothing was asked. Give a question, or --queries FILE.")
    with warnings_as_notes():
        opened = adacur.load(index, scorer=scorer)
        found = opened.search_batch(
            asked,
            k,
            budget=budget,
            rounds=rounds,
            method=method,
            first=first,
            pool=pool,
            deadline=deadline,
            seed=seed,
        )
    if as_json:
        for hits in found:
            print_json(hits)
        return
    for hits in found:
        answer.print(hits_table(hits, title=hits.query.text))
        note.print(seconds_line(hits), highlight=False)


@app.command(epilog="Example: adacur inspect my.adacur")
def inspect(index: IndexPath, as_json: Json = False) -> None:
    """Show what an index folder holds: items, anchors, scorer, first stages, versions."""
    from adacur.index import IndexFolder

    folder = IndexFolder.open(index)
    manifest = folder.manifest
    size = sum(file.stat().st_size for file in Path(index).rglob("*") if file.is_file())
    facts: dict[str, Any] = {
        "items": manifest.n_items,
        "anchors": manifest.n_anchors,
        "dtype": manifest.dtype,
        "blocks": manifest.n_blocks,
        "first": folder.first_names(),
        "scorer": manifest.scorer,
        "seed": manifest.seed,
        "created": manifest.created,
        "format": manifest.format,
        "versions": dict(manifest.versions),
        "bytes": size,
        "probes": [probe.score for probe in manifest.probes],
        "anchor_examples": [query.text for query in folder.anchor_queries[:3]],
    }
    if as_json:
        print_json(facts)
        return
    table = Table(show_header=False, show_edge=False)
    table.add_row("items × anchor queries", f"{manifest.n_items:,} × {manifest.n_anchors:,} ({manifest.dtype})")
    card = manifest.scorer
    if card is not None:
        parts = [card.name, card.backend, card.dtype, f"weights {card.weights}" if card.weights else None]
        parts.append(f"items cut to {card.max_item_tokens} tokens" if card.max_item_tokens else None)
        table.add_row("scorer", ", ".join(part for part in parts if part))
    table.add_row("first stages", ", ".join((*folder.first_names(), "random")))
    scores = facts["probes"]
    table.add_row("scores", f"{min(scores):.2f} … {max(scores):.2f}" if scores else "–")
    table.add_row("anchor queries", "\n".join(facts["anchor_examples"]))
    table.add_row("blocks", f"{manifest.n_blocks} of {manifest.block_items} items")
    table.add_row("on disk", megabytes(size))
    table.add_row("built", f"{manifest.created}, " + ", ".join(f"{n} {v}" for n, v in manifest.versions.items()))
    answer.print(table)


@app.command(epilog="Example: adacur verify my.adacur")
def verify(index: IndexPath, as_json: Json = False) -> None:
    """Read every byte of an index and tell what is not as it was written. Exit code 1 if anything is damaged."""
    import adacur

    report = adacur.verify(index)
    if as_json:
        print_json({"ok": report.ok, "complete": report.complete, "problems": report.problems, "blocks": report.blocks})
    elif report.ok:
        whole = "complete" if report.complete else f"unfinished: {report.blocks_checked} of {report.blocks} blocks"
        answer.print(f"{index}: nothing is damaged ({whole}).", highlight=False)
    else:
        for problem in report.problems:
            answer.print(f"{problem.file}: {problem.what}", highlight=False, markup=False, soft_wrap=True)
    if not report.ok:
        raise typer.Exit(1)


@app.command(epilog="Example: adacur demo --query 'who painted the Mona Lisa?' --budget 50")
def demo(
    query: Annotated[list[str] | None, typer.Option("--query", help="Your own question; may be repeated.")] = None,
    budget: Annotated[int, typer.Option(help="Scorer calls per question and method.")] = 100,
    k: Annotated[int, typer.Option("-k", help="How many items to show.")] = 5,
    first: Annotated[str, typer.Option(help="First stage: dense or bm25.")] = "dense",
    build_too: Annotated[bool, typer.Option("--build/--no-build", help="Also build a small index live.")] = True,
) -> None:
    """Search 10,033 Wikipedia articles with a real cross-encoder on this machine, and build a small index."""
    from adacur.cli.demo import show

    show(query or [], budget=budget, k=k, first=first, build_too=build_too)


def _items(source: str) -> Iterable[Item]:
    return wikivital() if source == "wikivital" and not Path(source).exists() else read_items(source)


def _anchors(items: list[Item], file: Path | None, n: int | None, *, seed: int) -> list[Query]:
    if file is None:
        return pseudo_queries(items, n or 250, seed=seed)
    found: Iterator[Query] = iter(read_queries(file))
    return list(found if n is None else itertools.islice(found, n))


def _estimated(
    items: list[Item], anchors: Path | None, scorer: str, sizes: list[int], *, dtype: str, max_item_tokens: int | None
) -> list[Any]:
    import adacur

    sample = _anchors(items, anchors, _SAMPLE_QUERIES if anchors else min(_SAMPLE_QUERIES, len(items)), seed=0)
    return adacur.estimate(
        items,
        sample,
        scorer=adacur.scorer(scorer, **_options(max_item_tokens)),
        n_items=len(items),
        n_anchors=sizes,
        dtype=dtype,
    )


def _options(max_item_tokens: int | None) -> dict[str, int]:
    return {} if max_item_tokens is None else {"max_item_tokens": max_item_tokens}


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise InputError(f"--sizes is a list of whole numbers such as 50,100; got {text!r}.")
    return sizes
