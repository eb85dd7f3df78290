"""Options that several commands share, and the values made from them."""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, cast, get_type_hints

from typer import Argument, Context, Option

from adacur.cli.messages import note
from adacur.data import ItemFile, mondo, wikivital
from adacur.data.files import Repeated
from adacur.errors import FileFormatError, InputError, UnknownOption
from adacur.names import ITEMS_IN, RAY, is_store_url, named
from adacur.options import Option as SearchOption
from adacur.protocols import Scorer
from adacur.records import Item
from adacur.spelling import did_you_mean
from adacur.store import On

DEFAULT_SCORER = "ms-marco-MiniLM-L-12-v2"
DEFAULT_ENCODER = "bge-small-en-v1.5"

IndexPath = Annotated[str, Argument(metavar="INDEX", help="An index folder; where it is only read, also a URL.")]
ItemsPath = Annotated[
    str, Argument(metavar="ITEMS", help="A file (.jsonl, .csv, .txt …), a BEIR folder, 'wikivital', 'mondo', or a URL.")
]
ScorerName = Annotated[
    str, Option("--scorer", help="A known name, a model's folder, a hub name, a service's URL, or module:function.")
]
ScorerSettings = Annotated[
    list[str] | None, Option("--scorer-set", metavar="NAME=VALUE", help="An option of the scorer, such as device=cpu.")
]
ScorerOfIndex = Annotated[str | None, Option("--scorer", help="The scorer that built the index; default: as it says.")]
EncoderName = Annotated[str | None, Option("--encoder", help="Of the item vectors; default: as the index says.")]
AllowCode = Annotated[bool, Option("--allow-code", help="Open what the folder names, even a function or a service.")]
IdField = Annotated[str | None, Option("--id-field", help="The field with the id; 'line' numbers the lines.")]
TextFields = Annotated[list[str] | None, Option("--text-field", help="A field with the item's text; may be repeated.")]
MaxItemTokens = Annotated[int | None, Option("--max-item-tokens", min=1, help="Cut items to N tokens.")]
CacheFile = Annotated[Path | None, Option("--cache", help="A file that stores scores between runs.")]
Workers = Annotated[int | None, Option("--workers", min=1, help="Score by N processes on this machine (Ray).")]
RayAddress = Annotated[str | None, Option("--ray", help="Score on a Ray cluster: its address, auto, or local.")]
PriceOfScorer = Annotated[str | None, Option("--price", help="What the scorer costs, such as '0.05 USD / 1M tokens'.")]
K = Annotated[int, Option("-k", "--k", help="The number of items to return.")]
Budget = Annotated[int, Option("--budget", help="Scorer calls per question.")]
Seed = Annotated[int, Option("--seed", min=0, help="Same seed, same result.")]
Json = Annotated[bool, Option("--json", help="Print JSON, and nothing else, on stdout.")]

_COLLECTIONS: dict[str, Callable[[], Sequence[Item]]] = {"wikivital": wikivital, "mondo": lambda: mondo().items}


def collection(
    source: str,
    *,
    id_field: str | None = None,
    text_fields: Sequence[str] | None = None,
    limit: int | None = None,
    repeated: Repeated = "refuse",
) -> Iterable[Item]:
    """The items of a file, a folder or a collection's name; may be read several times."""
    if source in _COLLECTIONS and not Path(source).exists():
        return _COLLECTIONS[source]()[:limit]
    if is_store_url(source):
        if id_field or text_fields:
            raise InputError(
                "Name the fields of a collection in its URL: qdrant://host/collection?text=body&id=number."
            )
        items: Iterable[Item] = named(ITEMS_IN)(source, limit=limit)
        return items
    texts = tuple(text_fields) if text_fields else None
    return ItemFile(source, id_field=id_field, text_fields=texts, limit=limit, repeated=repeated)


def settings_given(
    given: Iterable[str] | None, *, takes: Collection[str] | None = None, option: str = "--set"
) -> dict[str, Any]:
    """The NAME=VALUE pairs of an option; a value is read as in TOML (3, 0.5, true), and otherwise as a text.

    Names that are not among `takes` are refused; without `takes`, the library checks them.
    """
    settings: dict[str, Any] = {}
    for pair in given or ():
        name, separator, text = (part.strip() for part in pair.partition("="))
        if not separator:
            raise InputError(f"{option} takes NAME=VALUE; got {pair!r}.")
        if takes is not None and name not in takes:
            near = did_you_mean(name, takes)
            raise UnknownOption(f"{option} does not take {name!r}.{near} It takes: {', '.join(takes)}.")
        try:
            settings[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            settings[name] = text
    return settings


def on_workers(workers: int | None, ray: str | None) -> On:
    """Where to score: in this process, or by Ray, on this machine or on a cluster."""
    if workers is None and ray is None:
        return None
    return cast("On", named(RAY)(None if ray == "local" else ray, workers))


def opened_scorer(
    source: str,
    max_item_tokens: int | None = None,
    *,
    cache: Path | None = None,
    settings: Iterable[str] | None = None,
    reads: Iterable[str | Path] = (),
) -> Scorer:
    """The scorer of this name with these settings, its card shown, behind a cache where one is given.

    What the command `reads` must be there before a model is fetched and loaded.
    """
    import adacur

    for path in reads:
        if not is_store_url(str(path)) and not Path(path).exists():
            raise FileFormatError(f"There is no file or folder {path}. Check the path.")
    options = {} if max_item_tokens is None else {"max_item_tokens": max_item_tokens}
    opened = adacur.scorer(source, **options | settings_given(settings, option="--scorer-set"))
    note(f"Scorer: {opened.card}")
    return opened if cache is None else adacur.Cached(opened, cache)


def metadata_wanted(given: Iterable[str] | None) -> dict[str, Any] | None:
    """What --filter NAME=VALUE says that items must have; of a name that is given again, any of its values."""
    wanted: dict[str, Any] = {}
    for pair in given or ():
        for name, value in settings_given([pair], option="--filter").items():
            values = value if isinstance(value, list) else [value]
            wanted[name] = [*wanted.get(name, []), *values]
    return {name: values[0] if len(values) == 1 else values for name, values in wanted.items()} or None


def comma_separated(text: str) -> list[str]:
    """The names in an option such as --first bm25,dense."""
    return [name.strip() for name in text.split(",") if name.strip()]


def whole_numbers(option: str, given: str) -> list[int]:
    """The numbers in an option such as --budget 25,50."""
    try:
        numbers = [int(part) for part in given.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InputError(f"{option} must be whole numbers from 1 up, such as {option} 25,50; got {given!r}.")
    return numbers


def scorer_flag(source: str | None) -> str:
    """The option that names the scorer again where an index alone is not trusted."""
    from adacur.scorers.consent import why_consent

    return f" --scorer {quote(source)}" if source and why_consent(source, folder=None) else ""


def taken_by(function: Callable[..., Any], context: Context) -> dict[str, Any]:
    """The options of this command that a function takes by the same name."""
    return {name: context.params[name] for name in inspect.signature(function).parameters if name in context.params}


def with_options(options: Sequence[SearchOption]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command that takes every option of a table by keyword, in place of its `**given`."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
        own = [one.replace(annotation=hints[one.name]) for one in signature.parameters.values() if one.name != "given"]
        more = [inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=None) for one in options]
        shown = {one.name: Annotated[_typed(one) | None, Option(help=one.help, metavar=one.metavar)] for one in options}

        @functools.wraps(command)
        def taking(**values: Any) -> None:
            for one in options:
                if values[one.name] is not None:
                    values[one.name] = (
                        metadata_wanted(values[one.name]) if one.name == "filter" else one.read(values[one.name])
                    )
            command(**values)

        together = [*own, *(one.replace(annotation=shown[one.name]) for one in more)]
        setattr(taking, "__signature__", signature.replace(parameters=together))  # noqa: B010
        taking.__annotations__ = hints | shown
        del taking.__wrapped__
        return taking

    return decorated


def _typed(option: SearchOption) -> Any:
    return list[str] if option.typed is list else option.typed
