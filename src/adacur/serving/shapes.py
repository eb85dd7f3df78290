"""The answers, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

__all__ = [
    "CohereRerankAnswer",
    "ErrorAnswer",
    "FailedSearch",
    "Indexes",
    "Ready",
    "RecallCurve",
    "RerankAnswer",
    "SearchAnswer",
]


class Hit(BaseModel):
    """One result; `score` is the scorer's."""

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


class QueryAnswer(BaseModel):
    """One query's answer."""

    query: str
    hits: list[Hit]
    calls: int = Field(description="Scorer calls spent.")
    stopped: str = Field(description="budget, exhausted (no item left), deadline or settled (stop_when).")
    seconds: dict[str, float] = Field(description="Seconds per step; those of the scorer include waiting for it.")
    expected_recall: float | None = Field(description="Expected share of the true top k, with `stop_when`.")
    trace: list[Round] | None = None


class SearchAnswer(BaseModel):
    """The answers, in the order of the queries."""

    index: str
    results: list[QueryAnswer]


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: str = Field(description="For programs.")
    message: str = Field(description="For people: the rule, the values seen and what to try.")


class ErrorAnswer(BaseModel):
    """Every answer that is not a success."""

    error: ErrorDetail


class FailedSearch(ErrorAnswer):
    """A search whose scorer failed, and its hits so far."""

    hits: list[Hit] | None = None
    calls: int | None = None


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
    tunings: list[dict[str, Any]] = Field(description="What it is tuned for: k, budget, recall to expect …")
    limits: dict[str, float] = Field(description="The most that one request may ask for.")


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


class Ready(BaseModel):
    """Whether the server takes searches."""

    status: Literal["ok", "ready", "starting"]


class Reranked(BaseModel):
    """One document's score; `index` is its position in the request."""

    index: int
    relevance_score: float
    document: dict[str, str] | None = Field(None, description="The text, where it was to be returned.")


class RerankAnswer(BaseModel):
    """Documents, best first."""

    id: str
    model: str
    results: list[Reranked]
    usage: dict[str, int] = Field(description="total_tokens counts words: the scorer's tokens are not known here.")


class CohereRerankAnswer(BaseModel):
    """Documents, best first."""

    id: str
    results: list[Reranked]
    meta: dict[str, Any]
