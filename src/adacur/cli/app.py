"""The commands."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from adacur import __version__
from adacur.cli.copy import add_copy_command
from adacur.cli.mcp import add_mcp_command
from adacur.cli.messages import (
    counted,
    duration,
    duration_range,
    log_as_notes,
    megabytes,
    note,
    pace,
    plain,
    print_json,
    print_table,
    say,
    tell,
    warnings_as_notes,
)
from adacur.cli.opening import (
    DEFAULT_ENCODER,
    DEFAULT_SCORER,
    Trust,
    cut_flag,
    opened_encoder,
    opened_scorer,
    scorer_flag,
)
from adacur.cli.refresh import add_refresh_command
from adacur.cli.serve import add_serve_command
from adacur.cli.train import train
from adacur.cli.update import add_update_commands
from adacur.core.errors import InputError, NotAnIndex
from adacur.core.records import Item, Query, as_queries
from adacur.data import (
    ItemFile,
    cache_folder,
    describe,
    fetch,
    is_fetched,
    mondo,
    names,
    pseudo_queries,
    read_queries,
    wikivital,
)
from adacur.scorers.cross_encoders.weights import json_in

if TYPE_CHECKING:
    from adacur.index import Encode, Estimate

__all__ = ["Interrupted", "app"]

_DEFAULT_ANCHORS = 250
# The usual budget of 100 calls is a fifth of them.
_FEW_ITEMS = 500
_SAMPLE_ITEMS = 512
_SAMPLE_QUERIES = 128
_FEWEST_TIMED = 16
_SIZES = (50, 100, 250, 500)
# From here on `estimate` names cheaper ways.
_LONG_SECONDS = 600
_CUT_TOKENS = 64
_CHEAPER = 0.7
_DTYPES = ("float32", "float16")
_COLLECTIONS: dict[str, Callable[[], Sequence[Item]]] = {"wikivital": wikivital, "mondo": lambda: mondo().items}


class Interrupted(Exception):
    """Ctrl-C in `command`, and what that says of it."""

    def __init__(self, command: str | None, kept: str = "") -> None:
        super().__init__(command)
        self.command, self.kept = command, kept


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            with warnings_as_notes():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            # typer would end the process here without a word about what is kept.
            raise Interrupted(ctx.invoked_subcommand, str(error)) from error


app = typer.Typer(
    name="adacur",
    cls=_Commands,
    help="Find the items an expensive scorer likes best, within a budget of calls to it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Add --debug to any command to see the traceback of an error.",
)

app.add_typer(train, name="train")

ItemsPath = Annotated[
    str,
    typer.Argument(
        metavar="ITEMS",
        help="Items: .jsonl, .json, .csv, .tsv, .txt (also .gz) or .parquet, a BEIR folder, 'wikivital' or 'mondo'.",
    ),
]
IdField = Annotated[
    str | None,
    typer.Option(
        "--id-field", help="The field or column with the item's id. Without one, --text-field alone numbers the lines."
    ),
]
TextFields = Annotated[
    list[str] | None,
    typer.Option("--text-field", help="The field or column with the item's text; may be repeated."),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Take only the first N items, to try things out.")]
AnchorsPath = Annotated[
    Path | None,
    typer.Option("--anchors", help="Anchor queries: .jsonl, .csv, .tsv, .txt or BEIR; default: pseudo-queries."),
]


def _index_name(given: str) -> str:
    from adacur.index import index_url

    return index_url(given) or str(Path(given))


IndexPath = Annotated[
    str,
    typer.Argument(
        metavar="INDEX", help="An index folder, or a URL such as s3://bucket/my.adacur.", callback=_index_name
    ),
]
ScorerName = Annotated[
    str,
    typer.Option(
        "--scorer",
        help="A name `adacur fetch` lists, a folder with an ONNX or transformers cross-encoder, a hub name org/name, "
        "the URL of a service, or module:function.",
    ),
]
MaxItemTokens = Annotated[
    int | None, typer.Option("--max-item-tokens", min=1, help="Cut items to so many tokens; the query is never cut.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines, and nothing else, on stdout.")]
CacheFile = Annotated[
    Path | None, typer.Option(help="A file that keeps scores from run to run; made if there is none.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same answer.")]


def _version(asked: bool) -> None:
    if asked:
        say(f"adacur {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Find the items an expensive scorer likes best, within a budget of calls to it."""


@app.command("fetch", epilog="Example: adacur fetch ms-marco-MiniLM-L-12-v2 wikivital")
def fetch_command(
    wanted: Annotated[list[str] | None, typer.Argument(help="Names; none lists what there is.", metavar="NAME")] = None,
    as_json: Json = False,
) -> None:
    """Fetch models and collections by name, checked and cached. Without a name: list them."""
    assets = [describe(name) for name in wanted or names()]
    if not wanted:
        if as_json:
            print_json(
                [
                    {
                        "name": asset.name,
                        "kind": asset.kind,
                        "licence": asset.licence,
                        "bytes": asset.size,
                        "origin": asset.origin,
                        "fetched": is_fetched(asset.name),
                    }
                    for asset in assets
                ]
            )
            return
        table = Table(box=None, pad_edge=False)
        table.add_column("name", no_wrap=True)
        table.add_column("size", no_wrap=True, justify="right")
        table.add_column("licence", no_wrap=True)
        table.add_column("what it is", overflow="fold")
        for asset in assets:
            table.add_row(asset.name, megabytes(asset.size), asset.licence, asset.origin)
        print_table(table)
        here = [asset.name for asset in assets if is_fetched(asset.name)]
        tell(f"Kept in {cache_folder()} (set ADACUR_CACHE to change). Next: adacur fetch NAME")
        tell(f"Here already: {', '.join(here) or 'none'}.")
        return
    fetched = {}
    for asset in assets:
        tell(f"{asset.name}: {asset.origin}. Licence: {asset.licence}.")
        with note.status(f"fetching {asset.name}, {megabytes(asset.size)} …"):
            fetched[asset.name] = str(fetch(asset.name))
    if as_json:
        print_json(fetched)
        return
    for name, path in fetched.items():
        say(f"{name}\t{path}")


@app.command(epilog="Example: adacur queries corpus.jsonl -n 250 -o anchors.jsonl")
def queries(
    items: ItemsPath,
    n: Annotated[
        int | None, typer.Option("-n", "--number", min=1, help="How many; default: 250, or one per item if fewer.")
    ] = None,
    kind: Annotated[str, typer.Option(help="mixed, sentences or titles.")] = "mixed",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A .jsonl file; default: stdout.")] = None,
    seed: Seed = 0,
    id_field: IdField = None,
    text_field: TextFields = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Make anchor queries from the items themselves, for those who have no query log. Needs no model.

    They are written as JSON lines. With --output, --json tells on stdout what was written.
    """
    collection = _collection(items, id_field=id_field, text_fields=text_field, limit=limit)
    n = n or min(_DEFAULT_ANCHORS, sum(1 for _ in collection))
    made = pseudo_queries(collection, n, seed=seed, kinds=kind)  # type: ignore[arg-type]
    rows = [{"_id": query.id, "text": query.text} for query in made]
    if output is None:
        for row in rows:
            print_json(row)
        return
    output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    if as_json:
        print_json({"queries": len(made), "output": str(output)})
    else:
        written = f"{counted(len(made), 'query', 'queries')} in {output}."
        tell(f"{written} Next: adacur build {quote(items)} INDEX --anchors {quote(str(output))}")


@app.command(epilog="Example: adacur estimate corpus.jsonl --scorer ms-marco-MiniLM-L-12-v2")
def estimate(
    items: ItemsPath,
    anchors: AnchorsPath = None,
    n_anchors: Annotated[
        int | None, typer.Option("-n", "--number", min=0, help="For this number of anchor queries alone.")
    ] = None,
    scorer: ScorerName = DEFAULT_SCORER,
    first: Annotated[
        str, typer.Option(help="First stages, as for build; encoding items for dense takes time too.")
    ] = "bm25",
    encoder: Annotated[str, typer.Option(help="Encoder of the dense first stage.")] = DEFAULT_ENCODER,
    sizes: Annotated[
        str | None, typer.Option(help="Numbers of anchor queries; default: 50, 100, 500 and what build takes.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    max_item_tokens: MaxItemTokens = None,
    id_field: IdField = None,
    text_field: TextFields = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Time the scorer on a sample and say what an index would cost, before anyone pays."""
    import adacur
    from adacur.search.first_stages import check_first_stages

    if n_anchors is not None and sizes is not None:
        raise InputError("-n asks for one number of anchor queries, --sizes for several; give one of them.")
    stages = _names(first)
    check_first_stages(stages, encoder=encoder)
    wanted = None if sizes is None else _sizes(sizes)
    _check_dtype(dtype)
    collection = _collection(items, id_field=id_field, text_fields=text_field, limit=limit)
    sample, n_items = _sample(collection, _SAMPLE_ITEMS)
    queries = _anchors(sample, anchors, None, default=min(_SAMPLE_QUERIES, len(sample)), seed=0)
    # What `build` takes by default.
    usual = min(_DEFAULT_ANCHORS, n_items) if anchors is None else len(queries)
    if n_anchors is not None:
        wanted = [n_anchors]
    elif wanted is None:
        wanted = sorted({usual, *(size for size in _SIZES if size < usual or (anchors is None and size <= n_items))})
    opened = opened_scorer(scorer, max_item_tokens)
    rows = adacur.index.estimate(
        sample,
        queries[:_SAMPLE_QUERIES],
        scorer=opened,
        n_items=n_items,
        n_anchors=wanted,
        encode=_encoding(stages, encoder),
        dtype=dtype,
    )
    if as_json:
        print_json(rows)
        return
    table = Table("anchor queries", "pairs", "time", "scores on disk", show_edge=False)
    for row in rows:
        mark = " (default)" if row.n_anchors == usual else ""
        time = duration_range(row.low, row.high) if row.pairs or row.encoding_seconds else "–"
        table.add_row(f"{row.n_anchors:,}{mark}", f"{row.pairs:,}", time, megabytes(row.bytes))
    print_table(table)
    encoding = f", and {duration(rows[0].encoding_seconds)} to encode them" if rows[0].encoding_seconds else ""
    tell(
        f"{n_items:,} items, at {pace(rows[0].pairs_per_second)} on this machine, timed on {rows[0].calls_used:,} "
        f"pairs{encoding}. Times are ranges, from the fastest to the slowest part of the sample."
    )
    if n_items <= _FEW_ITEMS:
        tell(
            f"With {n_items} items you need no anchor queries: exact search scores all of them for a question in "
            f"{duration(n_items / rows[0].pairs_per_second)}. adacur build {quote(items)} INDEX -n 0 && "
            "adacur search INDEX QUESTION --method exact"
        )
    if rows[-1].seconds > _LONG_SECONDS:
        _tell_cheaper(rows, sample, queries, n_items=n_items, scorer=scorer, cut=max_item_tokens)
    if anchors is None and n_anchors is None:
        fewer = f": one per item, since there are fewer than {_DEFAULT_ANCHORS}" if n_items < _DEFAULT_ANCHORS else ""
        tell(f"adacur build makes {_anchor_queries(usual)} by default{fewer}; -n N makes N.")


def _tell_cheaper(
    rows: Sequence[Estimate],
    sample: Sequence[Item],
    queries: Sequence[Query],
    *,
    n_items: int,
    scorer: str,
    cut: int | None,
) -> None:
    """Ways to pay less, each with what it would cost."""
    import adacur
    from adacur.core.errors import UnknownOption

    most = next((row for row in rows if row.seconds > _LONG_SECONDS), rows[-1])
    ways = ["-n 0 scores nothing beforehand: searches re-rank the first stage, and anchor queries can come later."]
    if cut is None or cut > _CUT_TOKENS:
        try:
            shorter = adacur.scorer(scorer, max_item_tokens=_CUT_TOKENS)
        except UnknownOption:
            pass  # Functions and services cut nothing.
        else:
            (cost,) = adacur.index.estimate(
                sample, queries[:_SAMPLE_QUERIES], scorer=shorter, n_items=n_items, n_anchors=(most.n_anchors,)
            )
            # Short items are no cheaper for being cut.
            if cost.seconds < _CHEAPER * most.seconds:
                ways.append(
                    f"--max-item-tokens {_CUT_TOKENS} reads the beginning of each item: "
                    f"{duration_range(cost.low, cost.high)}."
                )
    share = 0.05
    ways.append(
        f"--sparse {share:g} --first dense scores {share:.0%} of the pairs and predicts the rest: "
        f"{duration_range(share * most.low, share * most.high)}, and the time to encode the items."
    )
    if n_items > _FEW_ITEMS:
        ways.append(
            f"--limit {_FEW_ITEMS} takes the first {_FEW_ITEMS} items, to try things out: "
            f"{duration_range(_FEW_ITEMS / n_items * most.low, _FEW_ITEMS / n_items * most.high)}."
        )
    tell(f"Cheaper, for {most.n_anchors:,} anchor queries:")
    for way in ways:
        tell(f"  {way}")


@app.command(epilog="Example: adacur build corpus.jsonl my.adacur --anchors queries.jsonl --first bm25,dense")
def build(
    context: typer.Context,
    items: ItemsPath,
    index: Annotated[
        str,
        typer.Argument(
            metavar="INDEX",
            help="The folder to write; what was interrupted is continued.",
            callback=_index_name,
        ),
    ],
    anchors: AnchorsPath = None,
    n_anchors: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--number",
            min=0,
            help="Use the first N; without --anchors, make N pseudo-queries (250, or one per item if fewer). 0 scores "
            "nothing: searches then re-rank the first stage.",
        ),
    ] = None,
    scorer: ScorerName = DEFAULT_SCORER,
    first: Annotated[str, typer.Option(help="First stages to keep: bm25, dense, or both: bm25,dense.")] = "bm25",
    encoder: Annotated[str, typer.Option(help="Encoder of the dense first stage.")] = DEFAULT_ENCODER,
    dtype: Annotated[str, typer.Option(help="float32 or float16: how scores are kept.")] = "float32",
    max_item_tokens: MaxItemTokens = None,
    block_items: Annotated[
        int | None, typer.Option(min=1, help="Items per save point; default: some 20 s of work.")
    ] = None,
    cache: CacheFile = None,
    ray: Annotated[bool, typer.Option("--ray", help="Score on a Ray cluster.")] = False,
    address: Annotated[
        str | None, typer.Option(help="The Ray cluster, e.g. auto; default: one is started on this machine.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that score; default: one, or one per GPU, or all that Ray has room for."),
    ] = None,
    sparse: Annotated[
        float | None,
        typer.Option(
            help="Score each anchor query against only N items (or a share such as 0.05), and predict the rest; needs "
            "--first dense."
        ),
    ] = None,
    random_share: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="With --sparse: the share of the N that is drawn at random; default: 0.1."),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune/--no-tune", help="End with a quick tune for the best 10 within 100 calls.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what the build would cost.")] = False,
    seed: Seed = 0,
    id_field: IdField = None,
    text_field: TextFields = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Score every item against every anchor query. Interrupt it at will: the same command continues."""
    import adacur
    from adacur.engines import Ray
    from adacur.index import Sparse, is_finished
    from adacur.scorers import Cached
    from adacur.search.first_stages import needs_encoder

    if address is not None and not ray:
        raise InputError(f"--address is that of a Ray cluster; give --ray too. Got {address!r}.")
    if random_share is not None and sparse is None:
        raise InputError(f"--random-share is a share of the items that --sparse counts; got {random_share} without it.")
    collection = _collection(items, id_field=id_field, text_fields=text_field, limit=limit)
    if n_anchors == 0:
        queries: list[Query] = []
    else:
        default = min(_DEFAULT_ANCHORS, sum(1 for _ in collection)) if anchors is None and n_anchors is None else 0
        queries = _anchors(collection, anchors, n_anchors, default=default, seed=seed)
    if n_anchors and len(queries) < n_anchors:
        tell(f"{anchors} holds {_anchor_queries(len(queries))}, fewer than {n_anchors}; all are used.")
    opened = opened_scorer(scorer, max_item_tokens)
    stages = _names(first)
    options: dict[str, Any] = {
        "scorer": opened if cache is None else Cached(opened, cache),
        "path": index,
        "first": stages,
        "encoder": opened_encoder(encoder) if needs_encoder(stages) else None,
        "sparse": None if sparse is None else Sparse(sparse, 0.1 if random_share is None else random_share),
        "on": Ray(address, workers) if ray else workers,
        "seed": seed,
        "dtype": dtype,
        "block_items": block_items,
    }
    if dry_run:
        cost = adacur.build(collection, queries or 0, dry_run=True, **options)
        print_json(cost) if as_json else say(cost.in_words())
        return
    was_finished = is_finished(index)
    with log_as_notes("adacur.build"):
        built = adacur.build(
            collection,
            queries or 0,
            tune=tune,
            # As they were typed; not there where the commands are called from Python.
            command=context.find_root().obj or (),
            **options,
        )
    summary = {
        "index": str(index),
        "items": len(built),
        "anchors": len(built.anchor_queries),
        "first": built.first_stages,
        "recognising": 0 if built.drift is None else built.drift.n_probes,
    }
    if as_json:
        print_json(summary)
    else:
        say(
            f"{index}: {len(built):,} items × {_anchor_queries(len(built.anchor_queries))}; "
            f"first stages {', '.join(built.first_stages)}."
        )
        if was_finished:
            tell("It was finished before: no block was scored again.")
        if built.drift is not None:
            tell(f"{built.drift.n_probes} calls went into recognising the scorer.")
        tell(f"Next: adacur search {quote(str(index))} 'your question'{scorer_flag(opened.card.source)}")


@app.command(epilog="Example: adacur search my.adacur 'who discovered penicillin?' -k 5 --budget 100")
def search(
    index: IndexPath,
    query: Annotated[list[str] | None, typer.Argument(metavar="QUESTION", help="One question, or several.")] = None,
    queries_file: Annotated[
        Path | None, typer.Option("--queries", help="A file of questions: .jsonl, .csv, .tsv, .txt or BEIR.")
    ] = None,
    k: Annotated[
        int | None, typer.Option("-k", "--k", help="How many items to return; default: 10, or the budget if less.")
    ] = None,
    budget: Annotated[int | None, typer.Option(help="Scorer calls per question; default: 100.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds the budget is spent in; default: 5, or as tuned.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="gaussian, adacur (the paper's), anncur, axn, rerank or exact; default: gaussian, or rerank where the "
            "index has neither anchor queries nor dense vectors."
        ),
    ] = None,
    first: Annotated[
        str | None,
        typer.Option(help="First stage; default: dense, bm25 or random, the first that the index has."),
    ] = None,
    pool: Annotated[int | None, typer.Option(help="Search only the first stage's best N.")] = None,
    fuse: Annotated[
        float | None,
        typer.Option(help="Weight of the first stage's scores in the final order; default: 0, a good first try: 0.5."),
    ] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds for all questions together.")] = None,
    stop_when: Annotated[
        float | None,
        typer.Option(help="Stop a question early once its top k is expected to have this recall, e.g. 0.98."),
    ] = None,
    seed: Seed = 0,
    scorer: Annotated[
        str | None, typer.Option(help="Another backend of the scorer that built the index; default: that scorer.")
    ] = None,
    trust: Trust = False,
    cache: CacheFile = None,
    log: Annotated[
        Path | None,
        typer.Option(help="A file that keeps questions and what was scored for them, for `adacur refresh`."),
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Also write the hits to this file, as a TREC run.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Show the whole text of each item.")] = False,
    as_json: Json = False,
) -> None:
    """Find the best items for a question, exactly scored, within a budget. --json prints a line per question."""
    import adacur
    from adacur.cli.searching import search_command

    asked = as_queries([*(query or ()), *(read_queries(queries_file) if queries_file else ())])
    if not asked:
        raise InputError("Nothing was asked. Give a question, or --queries FILE.")
    # What was not asked for is left to the library, which refuses options that a method does not take.
    limits: dict[str, Any] = {
        "budget": budget,
        "rounds": rounds,
        "first": first,
        "pool": pool,
        "fuse": fuse,
        "deadline": deadline,
        "stop_when": stop_when,
        "seed": seed or None,
    }
    options = {name: value for name, value in limits.items() if value is not None}
    opened = adacur.load(index, scorer=scorer, trust=trust, cache=cache, log=log)
    search_command(opened, asked, k=k, method=method, options=options, run=run, full=full, json=as_json)


@app.command(epilog="Example: adacur tune my.adacur --k 10 --budget 100")
def tune(
    index: IndexPath,
    k: Annotated[
        list[str] | None,
        typer.Option("-k", "--k", metavar="INTEGER", help="For the best k; several with commas; default: 10."),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(metavar="INTEGER", help="Scorer calls per question; several with commas; default: 100."),
    ] = None,
    queries: Annotated[int, typer.Option(min=1, help="How many anchor queries to replay, at most.")] = 100,
    qrels: Annotated[
        Path | None,
        typer.Option(help="Judgements (qrels): choose --fuse, --pool and --stop-when of searches by them instead."),
    ] = None,
    judged: Annotated[
        Path | None,
        typer.Option(
            help="With --qrels: judged queries, a budget of scorer calls each; default: the anchor queries, free."
        ),
    ] = None,
    scorer: Annotated[
        str | None, typer.Option(help="With --judged: the scorer that built the index; default: the one it names.")
    ] = None,
    trust: Trust = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Choose search settings for your k and budget, and predict the recall. Calls no scorer, but for --judged.

    Anchor queries are searched for again, each as if it had never been one. With --qrels, judged quality decides how
    much of the first stage to blend into the order (--fuse of searches). --json prints a line per k and budget.
    """
    from adacur.cli.tune import tune_command
    from adacur.cli.tune_judged import tune_judged_command

    ks, budgets = _whole_numbers("-k", k or ["10"]), _whole_numbers("--budget", budget or ["100"])
    if judged is not None and qrels is None:
        raise InputError("--judged names the queries of judgements; give these with --qrels FILE.")
    if qrels is not None:
        tune_judged_command(
            index,
            qrels=qrels,
            judged=judged,
            ks=ks,
            budgets=budgets,
            seed=seed,
            as_json=as_json,
            scorer=scorer,
            trust=trust,
        )
        return
    tune_command(index, ks=ks, budgets=budgets, queries=queries, seed=seed, as_json=as_json, trust=trust)


@app.command(epilog="Example: adacur inspect my.adacur")
def inspect(
    index: IndexPath,
    anchors: Annotated[
        bool, typer.Option("--anchors", help="List the anchor queries instead: id and text, a line each.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what an index folder holds: items, anchors, scorer, first stages, versions."""
    from adacur.cli.tune import tuned_line
    from adacur.index import COMPRESSED, IndexFolder
    from adacur.index.sparse import read_sparsity
    from adacur.search.tuned import read_tunings

    folder = IndexFolder.open(index)
    if anchors:
        listed = [{"id": query.id, "text": query.text} for query in folder.anchor_queries]
        if as_json:
            print_json(listed)
            return
        for one in listed:
            # Tabs and line ends of a text would look like those of the list; rich makes spaces of every tab.
            typer.echo(f"{plain(one['id'])}\t{plain(' '.join(one['text'].split()))}")
        return
    manifest = folder.manifest
    tunings = read_tunings(folder.home, anchor_queries=folder.anchor_queries)
    size = _size(folder.path)
    compressed = _size(folder.home / COMPRESSED)
    sparsity = read_sparsity(folder.path)
    facts: dict[str, Any] = {
        "items": manifest.n_items,
        "anchors": manifest.n_anchors,
        "dtype": manifest.dtype,
        "version": folder.version,
        "parts": max(1, len(folder.parts)),
        "blocks": folder.n_blocks,
        "first": folder.first_names(),
        "sparse": sparsity,
        "exact_scores": folder.n_exact,
        "scorer": manifest.scorer,
        "seed": manifest.seed,
        "created": manifest.created,
        "format": manifest.format,
        "packages": dict(manifest.packages),
        "bytes": size,
        "compressed_bytes": compressed or None,
        "probes": [probe.score for probe in manifest.probes],
        "anchor_examples": [query.text for query in folder.anchor_queries[:3]],
        "tuned": tunings,
    }
    if as_json:
        print_json(facts)
        return
    table = Table(show_header=False, show_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("items × anchor queries", f"{manifest.n_items:,} × {manifest.n_anchors:,} ({manifest.dtype})")
    card = manifest.scorer
    if card is not None:
        parts = [card.name, card.backend, card.dtype, f"weights {card.weights}" if card.weights else card.source]
        parts.append(f"items cut to {card.max_item_tokens} tokens" if card.max_item_tokens else None)
        table.add_row("scorer", Text(", ".join(part for part in parts if part)))
    if sparsity is not None:
        table.add_row("sparse", f"built with {sparsity.per_query:,} items per anchor query")
    if not manifest.n_anchors:
        table.add_row("searched by", "its first stages; `adacur add-anchors` gives it anchor queries")
    if (own := facts["exact_scores"]) < (n_scores := manifest.n_items * manifest.n_anchors):
        table.add_row("exact", f"{own:,} of {n_scores:,} scores are the scorer's own, the rest predicted")
    table.add_row("first stages", ", ".join((*folder.first_names(), "random")))
    scores = facts["probes"]
    table.add_row("scores", f"{min(scores):.2f} … {max(scores):.2f}" if scores else "–")
    table.add_row("anchor queries", Text("\n".join(facts["anchor_examples"])))
    table.add_row("tuned for", tuned_line(tunings))
    table.add_row("compressed", f"{megabytes(compressed)} for 'gaussian' searches" if compressed else "–")
    spread = f", in {len(folder.parts)} parts" if len(folder.parts) > 1 else ""
    table.add_row("version", f"{folder.version}{spread}")
    table.add_row("blocks", f"{folder.n_blocks:,}, each of up to {manifest.block_items:,} items")
    table.add_row("on disk", megabytes(size))
    # Each version has a manifest of its own, so that the time is that of the last change.
    when = "built" if folder.version == 1 else "changed"
    table.add_row(when, f"{manifest.created}, " + ", ".join(f"{n} {v}" for n, v in manifest.packages.items()))
    print_table(table)


@app.command("export-onnx", epilog="Example: adacur export-onnx my-reranker my-reranker-onnx --int8")
def export_onnx_command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A cross-encoder's folder or hub name; `adacur train` writes such.")
    ],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The folder to write.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantise: a quarter of the size, faster on a CPU, scores that move.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a cross-encoder for CPUs without torch; its scores are compared with torch's before it is kept."""
    import adacur

    with note.status("exporting, and comparing scores …"):
        adacur.scorers.export_onnx(model, target, int8=int8)
    size = _size(target)
    if as_json:
        print_json({"target": str(target), "bytes": size, "int8": int8})
        return
    say(f"{target}: {megabytes(size)}, {'int8' if int8 else 'float32'}.")
    # A model that learnt from cut items is at its best with them.
    cut = cut_flag(json_in(Path(model) / "training", "run.json").get("max_item_tokens"))
    tell(f"Next: adacur build ITEMS INDEX --scorer {quote(str(target))}{cut}")


@app.command(epilog="Example: adacur verify my.adacur")
def verify(index: IndexPath, as_json: Json = False) -> None:
    """Read an index and tell what is not as it was written. Exit code 1 if anything is damaged."""
    import adacur
    from adacur.index import index_url, read_manifest
    from adacur.index.manifest import MANIFEST, how_to_continue

    try:
        if index_url(index) is None:
            read_manifest(Path(index))
    except NotAnIndex:
        # A folder with a damaged manifest is for the report to tell.
        if not Path(index).is_dir():
            raise
    report = adacur.verify(index)
    if not report.complete and report.ok and index_url(index) is None and (Path(index) / MANIFEST).exists():
        tell(how_to_continue(read_manifest(Path(index)).origin))
    if as_json:
        print_json({"ok": report.ok, "complete": report.complete, "problems": report.problems, "blocks": report.blocks})
    elif report.ok:
        whole = "complete" if report.complete else f"unfinished: {report.blocks_checked} of {report.blocks} blocks"
        say(f"{index}: nothing is damaged ({whole}).")
    else:
        for problem in report.problems:
            say(f"{problem.file}: {problem.what}")
    if not report.ok:
        raise typer.Exit(1)


@app.command(epilog="Example: adacur compress my.adacur --rank 128 --storage int8")
def compress(
    index: IndexPath,
    rank: Annotated[
        int, typer.Option(min=1, help="Columns kept, besides as many as the dense first stage's vectors have.")
    ] = 128,
    storage: Annotated[str, typer.Option(help="int8, float16 (for a GPU) or float32.")] = "int8",
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="Measure the recall of the best k …")] = 10,
    budget: Annotated[int, typer.Option(min=1, help="… within so many calls.")] = 100,
    drop: Annotated[bool, typer.Option("--drop", help="Go back: remove what was compressed before.")] = False,
    trust: Trust = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Make an index searchable in less memory, and measure what that costs. Calls no scorer."""
    from adacur.cli.compress import compress_command, drop_command

    if drop:
        drop_command(index, as_json=as_json)
    else:
        chosen = {"rank": rank, "storage": storage, "k": k, "budget": budget, "seed": seed}
        compress_command(index, as_json=as_json, trust=trust, **chosen)


add_update_commands(app)
add_refresh_command(app)
add_serve_command(app)
add_mcp_command(app)
add_copy_command(app)


@app.command(epilog="Example: adacur evaluate my-beir-folder --report report.html")
def evaluate(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A BEIR folder: corpus.jsonl, queries.jsonl, qrels/test.tsv.")
    ],
    scorer: ScorerName = DEFAULT_SCORER,
    methods: Annotated[str, typer.Option(help="Search methods, with commas.")] = "gaussian,adacur,anncur,rerank,exact",
    budgets: Annotated[str, typer.Option(help="Scorer calls per query.")] = "25,50,100",
    k: Annotated[str | None, typer.Option("-k", "--k", help="Recall at these k; default: 1,10.")] = None,
    first: Annotated[str, typer.Option(help="First stages, with commas: bm25, dense, random.")] = "bm25",
    encoder: Annotated[str | None, typer.Option(help="Dual encoder of the first stage dense.")] = None,
    anchors: Annotated[int | None, typer.Option(min=1, help="Number of anchor queries.")] = None,
    queries: Annotated[int | None, typer.Option(min=1, help="Number of test queries.")] = None,
    n_items: Annotated[
        int | None,
        typer.Option("--items", min=1, help="A sample of N items; default: all, if time allows."),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Time for scoring, where sizes are not given.")] = 5.0,
    seed: Annotated[int, typer.Option(min=0, help="Splits the queries and seeds the searches.")] = 0,
    max_item_tokens: MaxItemTokens = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for scores and runs; default: FOLDER-results.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Also write this HTML page.")] = None,
    as_json: Json = False,
) -> None:
    """Compare search methods on your data: recall of the scorer's own best, and judged quality, by budget.

    Interrupt it at any time: the same command continues.
    """
    from adacur.cli.evaluation import evaluate_command

    done = evaluate_command(
        folder,
        scorer=opened_scorer(scorer, max_item_tokens),
        methods=_listed(methods),
        budgets=_numbers("--budgets", budgets),
        ks=None if k is None else _numbers("-k", k),
        first=_listed(first),
        encoder=encoder,
        anchors=anchors,
        queries=queries,
        items=n_items,
        minutes=minutes,
        seed=seed,
        output=output,
        report=report,
        as_json=as_json,
    )
    if not done:
        raise typer.Exit(1)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} must be a list of whole numbers such as 25,50; got {text!r}.") from None


@app.command(epilog="Example: adacur demo --query 'who painted the Mona Lisa?' --budget 50")
def demo(
    query: Annotated[list[str] | None, typer.Option("--query", help="Your own question; may be repeated.")] = None,
    budget: Annotated[int, typer.Option(help="Scorer calls per question and method.")] = 50,
    k: Annotated[int, typer.Option("-k", "--k", help="How many items to show.")] = 5,
    first: Annotated[str, typer.Option(help="First stage: dense or bm25.")] = "dense",
    build_too: Annotated[bool, typer.Option("--build/--no-build", help="Also build a small index live.")] = True,
    as_json: Json = False,
) -> None:
    """Search 10,033 Wikipedia articles with a real cross-encoder on this machine, and build a small index.

    --json answers the questions, a line each, and builds nothing.
    """
    from adacur.cli.demo import QUESTIONS, show

    if as_json:
        from adacur import load

        index = load("wikivital")
        for question in query or QUESTIONS:
            searched = index.search(question, k, budget=budget, first=first)
            reranked = index.search(question, k, budget=budget, first=first, method="rerank")
            print_json({"query": question, "adacur": searched, "rerank": reranked})
        return
    show(query or [], budget=budget, k=k, first=first, build_too=build_too)


def _collection(
    source: str, *, id_field: str | None, text_fields: list[str] | None, limit: int | None
) -> Iterable[Item]:
    """The items of a source, to be read as often as needed."""
    if source in _COLLECTIONS and not Path(source).exists():
        return _COLLECTIONS[source]()[:limit]
    return ItemFile(source, id_field=id_field, text_fields=tuple(text_fields) if text_fields else None, limit=limit)


def _sample(items: Iterable[Item], n: int) -> tuple[list[Item], int]:
    """At most n items from all over the collection, and how many it has."""
    draw = random.Random(0)
    kept: list[Item] = []
    seen = 0
    for seen, item in enumerate(items, 1):
        if len(kept) < n:
            kept.append(item)
        elif (place := draw.randrange(seen)) < n:
            kept[place] = item
    return kept, seen


def _anchors(items: Iterable[Item], file: Path | None, n: int | None, *, default: int, seed: int) -> list[Query]:
    """The first n queries of a file, or all; without a file n pseudo-queries, or `default`."""
    if file is None:
        return pseudo_queries(items, n or default, seed=seed)
    return list(itertools.islice(read_queries(file), n))


def _anchor_queries(n: int) -> str:
    return counted(n, "anchor query", "anchor queries")


def _size(folder: Path) -> int:
    """Bytes in the files of a folder; 0 where there is none."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _encoding(stages: Sequence[str], encoder: Any) -> list[Encode]:
    """How the items are encoded, once for each first stage that does; the encoder may be named."""
    from adacur.search.first_stages import needs_encoder

    if not needs_encoder(stages):
        return []
    dual = opened_encoder(encoder) if isinstance(encoder, str) else encoder
    return [dual.encode_items]


def _check_dtype(dtype: str) -> None:
    if dtype not in _DTYPES:
        raise InputError(f"Scores are stored as {' or '.join(_DTYPES)}; got --dtype {dtype}.")


def _whole_numbers(option: str, given: Sequence[str]) -> list[int]:
    """What an option lists, with commas or by being repeated."""
    try:
        numbers = [int(part) for text in given for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InputError(f"{option} takes whole numbers from 1 up, such as {option} 25,50; got {' '.join(given)!r}.")
    return numbers


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 0:
        raise InputError(f"--sizes is a list of whole numbers such as 50,100; got {text!r}.")
    return sizes
