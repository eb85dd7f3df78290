"""`adacur train`: its commands and options, which a TOML file may give too."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adacur.core.errors import FileFormatError
from adacur.core.spelling import did_you_mean

if TYPE_CHECKING:
    from adacur.training import TrainingSettings

__all__ = ["train"]

DEFAULT_BASE = "all-MiniLM-L6-v2"
_TRAINING = "How it is trained"
_DATA = "What it is trained on"
# Options that may name a file or folder, which is looked for beside the one that names it.
_MAY_BE_PATHS = ("base", "first", "teacher", "queries")

train = typer.Typer(
    no_args_is_help=True,
    help="Train cross-encoders and dual encoders on your collection. Interrupt them at will: the same command goes on.",
)


def _take_from_file(ctx: typer.Context, file: Path | None) -> Path | None:
    """What a TOML file says, for every option that is not on the command line."""
    if file is None or ctx.resilient_parsing:
        return file
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{file} cannot be read as TOML: {error}") from error
    options = {
        name.removeprefix("--").replace("-", "_"): option
        for option in ctx.command.params
        for name in option.opts
        if name.startswith("--") and option.name not in ("config", "as_json", "help")
    }
    given: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in options:
            near = did_you_mean(name, options)
            raise FileFormatError(f"{file}: there is no option {key!r}.{near} It takes: {', '.join(options)}.")
        if isinstance(value, dict):
            raise FileFormatError(f"{file}: {key} is a value, not a table; got {value!r}.")
        typed = _as_typed(value, beside=file if name in _MAY_BE_PATHS else None)
        takes_several = getattr(options[name], "multiple", False)
        given[str(options[name].name)] = [typed] if takes_several and not isinstance(typed, list) else typed
    ctx.default_map = given
    return file


def _as_typed(value: Any, *, beside: Path | None) -> Any:
    """As it would stand on a command line: whoever reads it there complains of 1.5 epochs, too."""
    if isinstance(value, list):
        return [_as_typed(each, beside=beside) for each in value]
    if isinstance(value, bool):
        return value
    if beside is not None and (beside.parent / str(value)).exists():
        return str(beside.parent / str(value))
    return str(value)


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A collection with judgements: a BEIR folder, 'mondo', or irds:ID of ir_datasets.",
    ),
]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write; an interrupted run in it goes on.")]
Base = Annotated[
    str,
    typer.Option(help="The model to start from: a name `adacur fetch` lists, a transformers folder, a hub name."),
]
First = Annotated[
    str,
    typer.Option(help="First stage that finds hard negatives: bm25, dense, or the path of a dual encoder."),
]
Teachers = Annotated[
    list[str] | None,
    typer.Option("--teacher", help="A scorer, as for build, to learn the scores of; of several, their mean."),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="BEIR: which judgements, qrels/SPLIT.tsv; default: train, or the only ones.", rich_help_panel=_DATA
    ),
]
Number = Annotated[
    int | None,
    typer.Option(
        "-n", "--number", min=2, help="Take so many of the queries, at random; default: all.", rich_help_panel=_DATA
    ),
]
HeldOut = Annotated[
    int | None,
    typer.Option(help="Queries to check with, at random; default: a tenth, at most 200.", rich_help_panel=_DATA),
]
MaxItemTokens = Annotated[int | None, typer.Option("--max-item-tokens", help="Cut items to so many tokens.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; default: the first GPU there is.")]
Config = Annotated[
    Path | None,
    typer.Option(
        callback=_take_from_file,
        is_eager=True,
        help="A TOML file with options by their names (epochs = 2); those on the command line win.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines, and nothing else, on stdout.")]

Towers = Annotated[str, typer.Option(help="separate or shared: two encoders for queries and items, or one.")]
Pooling = Annotated[str | None, typer.Option(help="cls or mean; default: as the base does, cls for a plain encoder.")]
Normalise = Annotated[
    bool | None, typer.Option("--normalise/--raw", help="Vectors of length 1, or as they are; default: as the base.")
]
Scale = Annotated[
    float | None, typer.Option(help="Multiplies dot products in the loss; default: 20 for vectors of length 1, else 1.")
]
MaxQueryTokens = Annotated[int | None, typer.Option(help="Cut queries to so many tokens.")]

Epochs = Annotated[int, typer.Option(help="Times that every query is seen.", rich_help_panel=_TRAINING)]
LearningRate = Annotated[
    float, typer.Option("--learning-rate", "--lr", help="AdamW's, at its highest.", rich_help_panel=_TRAINING)
]
BatchQueries = Annotated[
    int,
    typer.Option(
        "--batch-queries", "--batch", help="Queries of one step, each with all its items.", rich_help_panel=_TRAINING
    ),
]
Accumulate = Annotated[int, typer.Option(help="Steps of one update.", rich_help_panel=_TRAINING)]
WeightDecay = Annotated[float, typer.Option(help="AdamW's.", rich_help_panel=_TRAINING)]
Warmup = Annotated[
    float, typer.Option(help="Share of the updates in which the learning rate rises.", rich_help_panel=_TRAINING)
]
Clip = Annotated[float, typer.Option(help="Largest norm of the gradient; 0: no limit.", rich_help_panel=_TRAINING)]
Precision = Annotated[
    str, typer.Option(help="auto, float32 or bfloat16; auto: bfloat16 on a GPU that has it.", rich_help_panel=_TRAINING)
]
Patience = Annotated[
    int,
    typer.Option(min=0, help="Stop after so many checks without a better one; 0: never.", rich_help_panel=_TRAINING),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same model.", rich_help_panel=_TRAINING)]


def _settings(given: dict[str, Any]) -> TrainingSettings:
    from adacur.training import TrainingSettings

    own = {field.name: given[field.name] for field in fields(TrainingSettings)}
    return TrainingSettings(**own | {"patience": given["patience"] or None})


@train.command(
    "cross-encoder", epilog="Example: adacur train cross-encoder my-beir-folder my-reranker --epochs 2 --negatives 15"
)
def cross_encoder(
    ctx: typer.Context,
    data: Data,
    out: Out,
    base: Base = DEFAULT_BASE,
    head: Annotated[
        str, typer.Option(help="emb: dot product of tag tokens, the paper's. cls: a linear layer, the usual one.")
    ] = "emb",
    add_tags: Annotated[
        bool, typer.Option("--add-tags", help="Add the tag tokens to a base whose vocabulary lacks them.")
    ] = False,
    first: First = "bm25",
    negatives: Annotated[int, typer.Option(help="Items that nobody calls relevant, beside a relevant one.")] = 63,
    depth: Annotated[
        int, typer.Option(help="They are drawn anew each epoch from the first stage's best so many.")
    ] = 200,
    teacher: Teachers = None,
    shortlist: Annotated[int, typer.Option(help="Items of the first stage that a check ranks for a query.")] = 64,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens of a pair; default: 512, or what it can take.")] = None,
    max_item_tokens: MaxItemTokens = None,
    epochs: Epochs = 4,
    learning_rate: LearningRate = 1e-5,
    batch_queries: BatchQueries = 16,
    accumulate: Accumulate = 1,
    weight_decay: WeightDecay = 0.01,
    warmup: Warmup = 0.01,
    clip: Clip = 1.0,
    precision: Precision = "auto",
    patience: Patience = 3,
    seed: Seed = 0,
    held_out: HeldOut = None,
    number: Number = None,
    split: Split = None,
    device: Device = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Train a cross-encoder on judged queries, with hard negatives of a first stage; or on the scores of teachers."""
    from adacur.cli.training_runs import cross_encoder_run, in_words_of_the_command

    with in_words_of_the_command(ctx.params):
        cross_encoder_run(ctx.params, settings=_settings(ctx.params))


@train.command(
    "dual-encoder", epilog="Example: adacur train dual-encoder my-beir-folder my-encoder --towers shared --epochs 2"
)
def dual_encoder(
    ctx: typer.Context,
    data: Data,
    out: Out,
    base: Base = DEFAULT_BASE,
    towers: Towers = "separate",
    pooling: Pooling = None,
    normalise: Normalise = None,
    scale: Scale = None,
    first: Annotated[
        str, typer.Option(help="Finds the first hard negatives: bm25, dense, a dual encoder's path, or none.")
    ] = "bm25",
    negatives: Annotated[int, typer.Option(min=0, help="Hard negatives of a query, beside the items of others.")] = 7,
    depth: Annotated[int, typer.Option(help="They are drawn anew each epoch from the best so many.")] = 100,
    max_query_tokens: MaxQueryTokens = None,
    max_item_tokens: MaxItemTokens = None,
    epochs: Epochs = 4,
    learning_rate: LearningRate = 2e-5,
    batch_queries: BatchQueries = 32,
    accumulate: Accumulate = 1,
    weight_decay: WeightDecay = 0.01,
    warmup: Warmup = 0.01,
    clip: Clip = 1.0,
    precision: Precision = "auto",
    patience: Patience = 3,
    seed: Seed = 0,
    held_out: HeldOut = None,
    number: Number = None,
    split: Split = None,
    device: Device = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Train a dual encoder on judged queries: a first stage made for your collection."""
    from adacur.cli.training_runs import dual_encoder_run, in_words_of_the_command

    with in_words_of_the_command(ctx.params):
        dual_encoder_run(ctx.params, settings=_settings(ctx.params))


@train.command("distill", epilog="Example: adacur train distill my.adacur my-encoder")
def distill(
    ctx: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            metavar="INDEX|DATA",
            help="An index, whose anchor scores teach; or, with --teacher, a collection as for dual-encoder, or with "
            "--queries any items that build takes.",
        ),
    ],
    out: Out,
    base: Base = DEFAULT_BASE,
    towers: Towers = "separate",
    pooling: Pooling = None,
    normalise: Normalise = None,
    scale: Scale = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="Learn the softmax of the teacher's scores, divided by this, instead of which are its best."),
    ] = None,
    top: Annotated[int, typer.Option(help="The best so many items of each query are learnt from.")] = 100,
    teacher: Teachers = None,
    first: Annotated[
        str, typer.Option(help="With --teacher: what finds the items to score: bm25, dense, or a path.")
    ] = "bm25",
    max_query_tokens: MaxQueryTokens = None,
    max_item_tokens: MaxItemTokens = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Times that every query is seen; default: 10, or 4 where --top is above 100.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    learning_rate: LearningRate = 1e-5,
    batch_queries: BatchQueries = 4,
    accumulate: Accumulate = 1,
    weight_decay: WeightDecay = 0.01,
    warmup: Warmup = 0.01,
    clip: Clip = 1.0,
    precision: Precision = "auto",
    patience: Patience = 3,
    seed: Seed = 0,
    held_out: HeldOut = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="With --teacher: a file of queries, judged or not.", rich_help_panel=_DATA),
    ] = None,
    number: Number = None,
    split: Split = None,
    device: Device = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Train a dual encoder to order items as a cross-encoder does. From an index, nothing is scored."""
    from adacur.cli.training_runs import distill_run, in_words_of_the_command

    # The paper's: many items per query need fewer epochs.
    asked = ctx.params | {"epochs": (10 if top <= 100 else 4) if epochs is None else epochs}
    with in_words_of_the_command(asked):
        distill_run(asked, settings=_settings(asked))
