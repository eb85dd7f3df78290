"""The bodies of requests, with the limits of the server built in: FastAPI validates and documents them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from adacur.extras.server.server_settings import ServerSettings
from adacur.options import FIND_OPTIONS, OPTIONS, Option
from adacur.search.methods import METHODS, options_of
from adacur.spelling import did_you_mean

# More than any list can hold, and small enough for every library's integers.
_LARGEST = 2**31 - 1
_MOST_METADATA_FIELDS = 100


# Looking for names similar to one of a megabyte would keep the server busy for seconds.
Name = Annotated[str, StringConstraints(max_length=1000)]
Plain = str | int | float | bool
# Options of the methods that are numbers; the others are objects, which JSON cannot hold.
METHOD_OPTIONS: dict[str, type] = {
    option: kind
    for name, method in METHODS.items()
    for option in options_of(name)
    for kind in (int, float)
    if kind in ((hint := get_type_hints(method)[option]), *get_args(hint))
}
_EXAMPLES: list[Any] = [
    {"query": "who discovered penicillin?", "k": 3, "budget": 50},
    {"query": "who discovered penicillin?", "budget": 100, "stream": True},
    {"queries": ["first novel", "first film"], "k": 5},
]


def search_request(settings: ServerSettings) -> type[BaseModel]:
    """The body of a search."""
    default = settings.defaults()
    fields: dict[str, Any] = {
        **_asked(settings),
        "k": _field(_count(settings.max_k), "How many items to return; at most the budget.", default["k"]),
        "budget": _field(_count(settings.max_budget), "Scorer calls per query: never one more.", default["budget"]),
        **{one.name: _optional(_kind(one), one.help) for one in OPTIONS if one.in_requests},
        "method": _optional(Literal[*METHODS], "How calls are spent; `/v1/indexes` names what each index can do."),
    }
    for option, kind in METHOD_OPTIONS.items():
        takers = ", ".join(name for name in METHODS if option in options_of(name))
        number = _count(getattr(settings, f"max_{option}", 2**63 - 1), least=0) if kind is int else float
        # The chosen method checks the value.
        fields[option] = _optional(number, f"An option of {takers}.")
    about = "A search: a query, or several, and how much may be spent on each."
    model = create_model("SearchRequest", __base__=_AskedBody, __doc__=about, **fields)
    model.model_config["json_schema_extra"] = {"examples": _EXAMPLES}
    return model


def find_request(settings: ServerSettings) -> type[BaseModel]:
    """The body of a search for all items above a line."""
    fields: dict[str, Any] = {
        **_asked(settings),
        "budget": _optional(_count(settings.max_budget), "The most scorer calls per query; most searches end before."),
        **{one.name: _optional(_kind(one), one.help) for one in FIND_OPTIONS if one.in_requests},
        "above": (float, Field(description="The line: find all items that score this or higher.")),
    }
    about = "A query, or several, and the score that all items to find have at least."
    return create_model("FindRequest", __base__=_AskedBody, __doc__=about, **fields)


def _asked(settings: ServerSettings) -> dict[str, Any]:
    """The fields of every search: the queries, among which items, for how long, and in which form to answer."""
    n_values, text = settings.max_filter_values, _text(settings.max_query_chars)
    values = dict[str, Plain | Annotated[list[Plain], Field(fail_fast=True)]]
    filter_: Any = create_model(
        "SearchFilter",
        __base__=_Body,
        __doc__="Which items may be found: these ids, or those whose metadata have these values; or both.",
        ids=_optional(_list_of(str, most=n_values), "Only these items."),
        metadata=_optional(
            Annotated[values, Field(min_length=1), BeforeValidator(partial(_few_values, n_values))],
            "Only items whose field has this value, or one of these; `document` names documents of passages.",
        ),
    )
    return {
        "index": _optional(Name, "Which index; default: the first that is served."),
        "query": _optional(text, "The question. Either this or `queries`."),
        "queries": _optional(_list_of(text, most=settings.max_queries), "Several questions, each with the budget."),
        "deadline_ms": _optional(_count(int(settings.seconds * 1000)), "Milliseconds until the best hits so far."),
        "filter": _optional(filter_, "Which items may be found; default: all."),
        "explain": _field(bool, "Say of each hit what the first stage, predictions and anchor queries said.", False),
        "trace": _field(bool, "Return every round: what was scored, predicted and exact.", False),
        "stream": _field(bool, "Answer with a server-sent event per round (one query); also by `Accept`.", False),
    }


def rerank_request(settings: ServerSettings) -> type[BaseModel]:
    """The body of a re-ranking, as Jina's clients send it."""
    text = Annotated[str, StringConstraints(max_length=settings.max_document_chars)]
    # A document may have more fields, which its owner keeps with it.
    document = create_model("TextDocument", __config__=_Body.model_config | {"extra": "ignore"}, text=(text, ...))
    fields: dict[str, Any] = {
        "model": _optional(Name, "An index or a scorer; default: the first index's scorer."),
        "query": (_text(settings.max_query_chars), ...),
        "documents": (_list_of(text | document, most=settings.max_documents), ...),
        "top_n": _optional(_count(), "Return only the best N."),
        "return_documents": _field(bool, "Return the texts too.", True),
        "raw_scores": _field(bool, "The scorer's logits instead of 1 / (1 + exp(-logit)).", False),
    }
    about = "Documents to score exactly for a query; of a document that is an object, its `text`."
    return create_model("RerankRequest", __base__=_Body, __doc__=about, **fields)


class _Body(BaseModel):
    """Values are taken literally: "10" is not a number, and an unknown field is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, value: Any) -> Any:
        # One error, however many fields are unknown: an error for each of a million would exhaust the memory.
        if isinstance(value, dict) and (unknown := next((name for name in value if name not in cls.model_fields), "")):
            name = unknown[:60].encode(errors="replace").decode()
            few = f" It takes {' and '.join(cls.model_fields)}." if len(cls.model_fields) == 2 else ""
            near = did_you_mean(name, cls.model_fields) or few
            raise PydanticCustomError("unknown_field", "unknown field '{name}'.{near}", {"name": name, "near": near})
        return value


class _AskedBody(_Body):
    @model_validator(mode="after")
    def _check_queries(self) -> _AskedBody:
        given: Any = self
        if (given.query is None) == (given.queries is None):
            raise PydanticCustomError("queries", "give either query, one text, or queries, a list of texts")
        return self


def _optional(kind: Any, meaning: str) -> tuple[Any, Any]:
    return kind | None, Field(None, description=meaning)


def _field(kind: Any, meaning: str, default: Any) -> tuple[Any, Any]:
    return kind, Field(default, description=meaning)


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 10.0 is 10."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _count(most: int = _LARGEST, *, least: int = 1) -> Any:
    # The bounds come first: after a validator, they would not be in the schema.
    return Annotated[int, Field(ge=least, le=most), BeforeValidator(_whole)]


def _kind(option: Option) -> Any:
    """The type of an option in a request; numbers as JSON has them, and no empty texts."""
    kind: Any = Annotated[option.kind, Field(**option.rule)]
    if option.kind is int:
        return Annotated[kind, BeforeValidator(_whole)]
    return Annotated[Literal[*option.words] | kind, Field(union_mode="left_to_right")] if option.words else kind


def _text(most: int) -> Any:
    """A text with at least one character that is not a space: nothing else can be scored."""
    return Annotated[str, StringConstraints(pattern=r"\S", max_length=most)]


def _list_of(kind: Any, *, most: int) -> Any:
    """A list of which only the first wrong element is reported."""
    return Annotated[list[kind], Field(min_length=1, max_length=most, fail_fast=True)]


def _few_values(most: int, fields: Any) -> Any:
    """Refuse a filter of many fields or values at once: of a million wrong ones, each would be an error."""
    if isinstance(fields, dict):
        length = sum(len(one) if isinstance(one, list) else 1 for one in fields.values())
        if length > most or len(fields) > _MOST_METADATA_FIELDS:
            limits = {"most": most, "fields": _MOST_METADATA_FIELDS, "length": length}
            raise PydanticCustomError("too_long", "at most {most} values of {fields} fields, got {length}", limits)
    return fields
