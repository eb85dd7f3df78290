"""One exchange with each kind of rerank server, written out: what is sent for a query and two texts, what comes back.

Requests and answers follow the documents and sources of the services (what is not certain is said in docs/scorers.md);
ids, names and numbers are made up. Nothing here is read off `DIALECTS`, so that a slip in that table is noticed. The
loopback servers of the tests (rerank_servers.py) take the shape of what they read and answer from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MODEL = "fake/reranker"
QUERY, FIRST, SECOND = "what is panda?", "hi", "The giant panda is a bear."
INSTRUCTION = "Prefer encyclopaedic texts."


@dataclass(frozen=True)
class Exchange:
    """`scores` are those of FIRST and SECOND, as the server gives them.

    `raw` are the fields that make the server answer with raw scores: None where nothing does. `instructed` are the
    fields of a request that an instruction adds or changes: None where there is no place for one.
    """

    path: str
    request: Mapping[str, Any]
    answer: Any
    scores: tuple[float, float]
    raw: Mapping[str, Any] | None = None
    instructed: Mapping[str, Any] | None = None


EXCHANGES = {
    "tei": Exchange(
        path="/rerank",
        request={
            "query": "what is panda?",
            "texts": ["hi", "The giant panda is a bear."],
            "truncate": True,
            "return_text": False,
            "raw_scores": True,
        },
        answer=[{"index": 1, "score": 5.265625}, {"index": 0, "score": -8.15625}],
        scores=(-8.15625, 5.265625),
        raw={"raw_scores": True},
    ),
    "vllm": Exchange(
        path="/v1/rerank",
        request={
            "query": "what is panda?",
            "documents": ["hi", "The giant panda is a bear."],
            "model": "fake/reranker",
            "truncate_prompt_tokens": -1,
            "use_activation": False,
            "top_n": 2,
        },
        answer={
            "id": "rerank-d1",
            "model": "fake/reranker",
            "usage": {"prompt_tokens": 26, "total_tokens": 26},
            "results": [
                {
                    "index": 1,
                    "document": {"text": "The giant panda is a bear.", "multi_modal": None},
                    "relevance_score": 5.265625,
                },
                {"index": 0, "document": {"text": "hi", "multi_modal": None}, "relevance_score": -8.15625},
            ],
        },
        scores=(-8.15625, 5.265625),
        raw={"use_activation": False},
        instructed={"instruction": "Prefer encyclopaedic texts."},
    ),
    "adacur": Exchange(
        path="/v1/rerank",
        request={
            "query": "what is panda?",
            "documents": ["hi", "The giant panda is a bear."],
            "model": "fake/reranker",
            "return_documents": False,
            "raw_scores": True,
            "top_n": 2,
        },
        answer={
            "id": "5b1c9a2e",
            "model": "texts",
            "results": [
                {"index": 1, "relevance_score": 5.265625},
                {"index": 0, "relevance_score": -8.15625},
            ],
            "usage": {"total_tokens": 13, "scored_pairs": 2},
        },
        scores=(-8.15625, 5.265625),
        raw={"raw_scores": True},
    ),
    "infinity": Exchange(
        path="/rerank",
        request={
            "query": "what is panda?",
            "documents": ["hi", "The giant panda is a bear."],
            "model": "fake/reranker",
            "return_documents": False,
            "raw_scores": True,
            "top_n": 2,
        },
        answer={
            "object": "rerank",
            "results": [
                {"relevance_score": 5.265625, "index": 1, "document": None},
                {"relevance_score": -8.15625, "index": 0, "document": None},
            ],
            "model": "fake/reranker",
            "usage": {"prompt_tokens": 62, "total_tokens": 62},
            "id": "infinity-1",
            "created": 1725447692,
        },
        scores=(-8.15625, 5.265625),
        raw={"raw_scores": True},
    ),
    "sglang": Exchange(
        path="/v1/rerank",
        request={
            "query": "what is panda?",
            "documents": ["hi", "The giant panda is a bear."],
            "model": "fake/reranker",
            "return_documents": False,
            "top_n": 2,
        },
        answer=[
            {"score": 5.265625, "document": None, "index": 1, "meta_info": {"id": "e9", "prompt_tokens": 19}},
            {"score": -8.15625, "document": None, "index": 0, "meta_info": {"id": "e8", "prompt_tokens": 9}},
        ],
        scores=(-8.15625, 5.265625),
        raw={},
        instructed={"instruct": "Prefer encyclopaedic texts."},
    ),
    "llamacpp": Exchange(
        path="/v1/rerank",
        request={
            "query": "what is panda?",
            "documents": ["hi", "The giant panda is a bear."],
            "model": "fake/reranker",
            "top_n": 2,
        },
        answer={
            "model": "fake/reranker",
            "object": "list",
            "usage": {"prompt_tokens": 37, "total_tokens": 37},
            "results": [{"index": 1, "relevance_score": 5.265625}, {"index": 0, "relevance_score": -8.15625}],
        },
        scores=(-8.15625, 5.265625),
        raw={},
    ),
    "nim": Exchange(
        path="/v1/ranking",
        request={
            "model": "fake/reranker",
            "query": {"text": "what is panda?"},
            "passages": [{"text": "hi"}, {"text": "The giant panda is a bear."}],
            "truncate": "END",
        },
        answer={"rankings": [{"index": 1, "logit": 5.265625}, {"index": 0, "logit": -8.15625}]},
        scores=(-8.15625, 5.265625),
        raw={},
    ),
    "cohere": Exchange(
        path="/v2/rerank",
        request={
            "query": "what is panda?",
            "documents": ["hi", "The giant panda is a bear."],
            "model": "fake/reranker",
            "top_n": 2,
        },
        answer={
            "results": [{"index": 1, "relevance_score": 0.9375}, {"index": 0, "relevance_score": 0.0625}],
            "id": "07734bd2",
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        },
        scores=(0.0625, 0.9375),
    ),
    "jina": Exchange(
        path="/v1/rerank",
        request={
            "query": "what is panda?",
            "documents": ["hi", "The giant panda is a bear."],
            "model": "fake/reranker",
            "return_documents": False,
            "top_n": 2,
        },
        answer={
            "model": "fake/reranker",
            "usage": {"total_tokens": 815},
            "results": [{"index": 1, "relevance_score": 0.9375}, {"index": 0, "relevance_score": 0.0625}],
        },
        scores=(0.0625, 0.9375),
    ),
    "voyage": Exchange(
        path="/v1/rerank",
        request={
            "query": "what is panda?",
            "documents": ["hi", "The giant panda is a bear."],
            "model": "fake/reranker",
            "return_documents": False,
            "truncation": True,
            "top_k": 2,
        },
        answer={
            "object": "list",
            "data": [{"relevance_score": 0.9375, "index": 1}, {"relevance_score": 0.0625, "index": 0}],
            "model": "fake/reranker",
            "usage": {"total_tokens": 26},
        },
        scores=(0.0625, 0.9375),
        instructed={"query": "Prefer encyclopaedic texts.\nwhat is panda?"},
    ),
    "mixedbread": Exchange(
        path="/v1/reranking",
        request={
            "model": "fake/reranker",
            "query": "what is panda?",
            "input": ["hi", "The giant panda is a bear."],
            "top_k": 2,
            "return_input": False,
        },
        answer={
            "object": "list",
            "model": "fake/reranker",
            "top_k": 2,
            "return_input": False,
            "data": [{"index": 1, "score": 0.9375, "input": None}, {"index": 0, "score": 0.0625, "input": None}],
            "usage": {"prompt_tokens": 120, "total_tokens": 120},
        },
        scores=(0.0625, 0.9375),
    ),
    "zeroentropy": Exchange(
        path="/v1/models/rerank",
        request={
            "model": "fake/reranker",
            "query": "what is panda?",
            "documents": ["hi", "The giant panda is a bear."],
            "top_n": 2,
        },
        answer={
            "results": [{"index": 1, "relevance_score": 0.9375}, {"index": 0, "relevance_score": 0.0625}],
            "actual_latency_mode": "fast",
            "total_tokens": 26,
        },
        scores=(0.0625, 0.9375),
    ),
    "contextual": Exchange(
        path="/v1/rerank",
        request={
            "query": "what is panda?",
            "documents": ["hi", "The giant panda is a bear."],
            "model": "fake/reranker",
            "top_n": 2,
        },
        answer={"results": [{"index": 1, "relevance_score": 0.9375}, {"index": 0, "relevance_score": 0.0625}]},
        scores=(0.0625, 0.9375),
        instructed={"instruction": "Prefer encyclopaedic texts."},
    ),
    "dashscope": Exchange(
        path="/compatible-api/v1/reranks",
        request={
            "model": "fake/reranker",
            "query": "what is panda?",
            "documents": ["hi", "The giant panda is a bear."],
            "top_n": 2,
        },
        answer={
            "object": "list",
            "results": [{"index": 1, "relevance_score": 0.9375}, {"index": 0, "relevance_score": 0.0625}],
            "model": "fake/reranker",
            "id": "85ba5752",
            "usage": {"total_tokens": 79},
        },
        scores=(0.0625, 0.9375),
        instructed={"instruct": "Prefer encyclopaedic texts."},
    ),
}
