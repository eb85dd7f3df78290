"""The bodies of requests and answers, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationInfo, model_validator

from adacur.serving.failures import Refusal

__all__ = [
    "CohereRerankAnswer",
    "CohereRerankRequest",
    "Computing",
    "ErrorAnswer",
    "FailedSearch",
    "Indexes",
    "Ready",
    "RecallCurve",
    "RerankAnswer",
    "RerankRequest",
    "SearchAnswer",
    "SearchRequest",
]

Method = Literal["gaussian", "adacur", "anncur", "axn", "rerank", "exact"]
# At least one sign that is no space: a text without a word cannot be scored.
Words = Annotated[str, StringConstraints(pattern=r"\S")]

# Beyond what any list can hold, and within what every library counts with.
_MOST = 2**31 - 1
# An object of more is not a request, and pydantic would describe what is wrong with each.
_MOST_FIELDS = 100


def _check_length(place: str, length: int, most: int) -> None:
    if length > most:
        code = f"{place.rpartition('.')[2]}_over_limit"
        raise Refusal(
            422, code, f"{place} may hold at most {most} here; got {length}. Send fewer, or several requests."
        )


def _limit(info: ValidationInfo, name: str) -> int:
    """A limit of the server, which checks bodies with its settings as the context."""
    most: int = getattr(info.context, name)
    return most


def _at_most(limit: str, place: str) -> BeforeValidator:
    """Looks at the length of a list before anybody looks at its elements."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, list):
            _check_length(place, len(value), _limit(info, limit))
        return value

    return BeforeValidator(check)


def _check_metadata(value: Any, info: ValidationInfo) -> Any:
    """The same for the values of all fields together."""
    if isinstance(value, dict):
        _check_length("filter.metadata", len(value), _MOST_FIELDS)
        n_values = sum(len(one) if isinstance(one, list) else 1 for one in value.values())
        _check_length("filter.metadata", n_values, _limit(info, "max_filter_values"))
    return value


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: 10.0 is 10."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
Size = Annotated[int, Field(ge=1, le=_MOST), BeforeValidator(_whole)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1), BeforeValidator(_whole)]


class _Asked(BaseModel):
    """What is asked is taken literally: "10" is no number, and a field nobody knows is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict):
            _check_length("fields", len(value), _MOST_FIELDS)
        return value


class _AskedByOthers(BaseModel):
    """Clients of other services send fields that only those know."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


# Longer than any that there is. What looks for names like it would be busy for seconds with a megabyte.
Name = Annotated[str, StringConstraints(max_length=1000)]

Plain = str | int | float | bool
# The first wrong value is enough: an error for each of a million takes a server's memory.
Values = Annotated[list[Plain], Field(fail_fast=True)]


class SearchFilter(_Asked):
    """Which items may be found: these ids, or those whose metadata has these values; or both."""

    ids: Annotated[list[str] | None, _at_most("max_filter_values", "filter.ids")] = Field(
        None, min_length=1, fail_fast=True, description="Only these items."
    )
    metadata: Annotated[dict[str, Plain | Values] | None, BeforeValidator(_check_metadata)] = Field(
        None,
        min_length=1,
        description="Only items whose field has this value, or one of these values.",
    )


class SearchRequest(_Asked):
    """A search: a query, or several, and how much may be spent on each."""

    # Fields of which one must be there.
    either: ClassVar[tuple[str, ...]] = ("query", "queries")

    index: Name | None = Field(None, description="Which index; default: the first that the server was given.")
    query: Words | None = Field(None, description="The question. Either this or `queries`.")
    queries: Annotated[list[Words] | None, _at_most("max_queries", "queries")] = Field(
        None, min_length=1, fail_fast=True, description="Several questions, each with its own budget."
    )
    k: Count = Field(10, description="How many items to return; not more than the budget.")
    budget: Count = Field(100, description="Scorer calls per query: never one more.")
    rounds: Count | None = Field(None, description="Rounds the budget is spent in; default: 5, or as tuned.")
    method: Method | None = Field(
        None,
        description="gaussian, adacur (the paper's), anncur, axn, rerank, or exact (every item); default: gaussian, or "
        "rerank where the index has neither anchor queries nor dense vectors.",
    )
    first: Name | None = Field(None, description="The first stage to start from; `/v1/indexes` lists them.")
    pool: Size | None = Field(None, description="Search only the first stage's best N; at least k.")
    filter: SearchFilter | None = Field(None, description="Which items may be found; default: all.")
    stop_when: float | None = Field(
        None, gt=0, lt=1, description="Stop early once the top k is expected to have this recall, e.g. 0.98."
    )
    fuse: float | None = Field(None, ge=0, le=1000, description="The first stage's weight in the final order; try 0.5.")
    deadline_ms: Count | None = Field(None, description="Milliseconds after which to return what was found by then.")
    seed: Seed = Field(0, description="Same seed, same answer.")
    trace: bool = Field(False, description="Return every round: what was scored, predicted and exact.")
    stream: bool = Field(
        False, description="Answer with a server-sent event per round (one query only); also by `Accept`."
    )


class Hit(BaseModel):
    """One result; `score` is the scorer's own."""

    id: str
    score: float
    rank: int
    round: int = Field(description="The round that scored it; 0 where there are no rounds.")
    text: str | None
    metadata: dict[str, Any]
    fused: float | None = Field(None, description="What it was ranked by, with `fuse`.")


class ScoredItem(BaseModel):
    """An item scored in a round, and what was predicted of it before."""

    id: str
    title: str
    predicted: float | None
    exact: float


class Round(BaseModel):
    """One round of a search; `calls` counts from the first."""

    number: int
    calls: int
    items: list[ScoredItem]
    seconds: dict[str, float]
    expected_recall: float | None


class Found(BaseModel):
    """One query's answer."""

    query: str
    hits: list[Hit]
    calls: int = Field(description="Scorer calls spent.")
    stopped: str = Field(description="budget, exhausted (no item left), deadline or settled (stop_when).")
    seconds: dict[str, float] = Field(description="Seconds per step; those of the scorer include waiting for it.")
    expected_recall: float | None = Field(description="Expected share of the true top k found, with `stop_when`.")
    trace: list[Round] | None = None


class SearchAnswer(BaseModel):
    """The answers, in the order of the queries."""

    index: str
    results: list[Found]


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: str = Field(description="For programs.")
    message: str = Field(description="For people: the rule, what was seen and what to try.")


class ErrorAnswer(BaseModel):
    """Every answer that is not a success."""

    error: ErrorDetail


class FailedSearch(ErrorAnswer):
    """A search whose scorer failed, and what had been found by then."""

    hits: list[Hit] | None = None
    calls: int | None = None


class Limits(BaseModel):
    """The most that one request may ask for."""

    k: int
    budget: int
    rounds: int
    queries: int
    query_chars: int
    filter_values: int
    documents: int
    document_chars: int
    body_bytes: int
    seconds: float


class PredictedRecall(BaseModel):
    """What `adacur tune` expects of a method."""

    method: str
    recall: float
    low: float
    high: float


class TunedFor(BaseModel):
    """A k and a budget that an index is tuned for."""

    k: int
    budget: int
    first: str | None
    n_queries: int
    predictions: list[PredictedRecall]


class IndexFacts(BaseModel):
    """One index that is served."""

    name: str
    n_items: int
    n_anchors: int
    version: int = Field(description="The version that was opened; later changes of the folder need a restart.")
    scorer: str | None
    first_stages: list[str]
    default_first: str
    methods: list[str]
    tunings: list[TunedFor]
    limits: Limits


class Indexes(BaseModel):
    """What is served."""

    indexes: list[IndexFacts]
    default: str


class RecallPoint(BaseModel):
    """Expected recall of a search at one budget; in 19 of 20 cases it lies between low and high."""

    budget: int
    recall: float
    low: float
    high: float


class RecallCurve(BaseModel):
    """Recall against budget, from searches for anchor queries as if they were new; no scorer was called."""

    k: int
    method: str
    first: str
    n_queries: int
    points: list[RecallPoint]


class Computing(BaseModel):
    """Not ready yet: ask again after `Retry-After` seconds."""

    state: Literal["computing"]


class Ready(BaseModel):
    """Whether the server takes searches."""

    status: Literal["ok", "ready", "starting", "stopping"]


class TextDocument(_AskedByOthers):
    """A document as some clients send it."""

    text: str


class RerankRequest(_AskedByOthers):
    """Documents to score exactly for a query, in the shape of Jina and vLLM."""

    model: Name | None = Field(None, description="An index, or the scorer's name; default: the first index's scorer.")
    query: Words
    documents: Annotated[list[str | TextDocument], _at_most("max_documents", "documents")] = Field(
        min_length=1, fail_fast=True
    )
    top_n: Size | None = Field(None, description="Return only the best N.")
    return_documents: bool | None = Field(None, description="Return the texts too; default: true.")
    raw_scores: bool = Field(False, description="The scorer's own logits instead of 1 / (1 + exp(-logit)).")
    use_activation: bool = Field(True, description="vLLM's word for the same: false asks for logits.")

    @property
    def wants_logits(self) -> bool:
        """Whether scores are to be as the scorer gave them."""
        return self.raw_scores or not self.use_activation


class CohereRerankRequest(_AskedByOthers):
    """Documents to score exactly for a query, in the shape of Cohere's v2."""

    model: Name | None = Field(None, description="An index, or the scorer's name; default: the first index's scorer.")
    query: Words
    documents: Annotated[list[str], _at_most("max_documents", "documents")] = Field(min_length=1, fail_fast=True)
    top_n: Size | None = Field(None, description="Return only the best N.")
    max_tokens_per_doc: Size | None = Field(
        None, description="Cut documents after so many words; the scorer's own tokens are not counted."
    )
    raw_scores: bool = Field(False, description="The scorer's own logits instead of 1 / (1 + exp(-logit)).")

    @property
    def wants_logits(self) -> bool:
        """Whether scores are to be as the scorer gave them."""
        return self.raw_scores


class Reranked(BaseModel):
    """One document's score; `index` is its place in the request."""

    index: int
    relevance_score: float
    document: TextDocument | None = None


class Usage(BaseModel):
    """What the request cost."""

    total_tokens: int = Field(description="Words of the query and of each document; the scorer's tokens are not told.")
    scored_pairs: int


class RerankAnswer(BaseModel):
    """Documents, best first."""

    id: str
    model: str
    results: list[Reranked]
    usage: Usage


class CohereReranked(BaseModel):
    """One document's score; `index` is its place in the request."""

    index: int
    relevance_score: float


class CohereRerankAnswer(BaseModel):
    """Documents, best first."""

    id: str
    results: list[CohereReranked]
    meta: dict[str, Any]
