"""How rerank servers are spoken to: one entry per kind of server.

A new kind is one entry in `DIALECTS`, and its name in KINDS of tests/contracts/test_scorers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DIALECTS", "Dialect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A request is {query, `texts`, model, `count`, `options`, `raw`}, an answer {`results`: [{"index", `score`}]}.

    - path: the rerank address, below the root of the server;
    - batch_size: texts per request where the server does not give a limit;
    - texts, count: the fields of a request for the texts, and for the number of results (None: all come anyway);
    - names_model: whether a request names the model;
    - options: fields that every request has;
    - raw: the fields that ask for logits; empty where the server gives probabilities alone;
    - results, score: the fields of an answer for the list of results (None: the answer is that list), and for a score;
    - info: a path whose JSON describes the server, in TEI's form;
    - owner: "owned_by" of the models that the server lists;
    - hosts: domains of a hosted service, and key_variables: environment variables with the key for these hosts alone.
    """

    path: str
    batch_size: int = 100
    texts: str = "documents"
    count: str | None = "top_n"
    names_model: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)
    results: str | None = "results"
    score: str = "relevance_score"
    info: str | None = None
    owner: str | None = None
    hosts: tuple[str, ...] = ()
    key_variables: tuple[str, ...] = ()

    def request(self, query: str, texts: Sequence[str], *, model: str | None, raw: bool) -> dict[str, Any]:
        """The body of a request."""
        return {
            "query": query,
            self.texts: list(texts),
            **({"model": model} if self.names_model and model is not None else {}),
            **self.options,
            **(self.raw if raw else {}),
            **({self.count: len(texts)} if self.count else {}),
        }

    def results_in(self, answer: Any) -> Any:
        """The list of results in an answer, or something else where the answer is not of this dialect."""
        if self.results is None:
            return answer
        return answer.get(self.results) if isinstance(answer, dict) else None


DIALECTS = {
    "tei": Dialect(
        path="/rerank",
        batch_size=32,
        texts="texts",
        count=None,
        names_model=False,
        options={"truncate": True, "return_text": False},
        raw={"raw_scores": True},
        results=None,
        score="score",
        info="/info",
    ),
    "vllm": Dialect(
        path="/v1/rerank", options={"truncate_prompt_tokens": -1}, raw={"use_activation": False}, owner="vllm"
    ),
    "infinity": Dialect(
        path="/rerank", options={"return_documents": False}, raw={"raw_scores": True}, owner="infinity"
    ),
    # Cohere charges a query with up to 100 documents as one.
    "cohere": Dialect(
        path="/v2/rerank", hosts=("cohere.com", "cohere.ai"), key_variables=("CO_API_KEY", "COHERE_API_KEY")
    ),
    "jina": Dialect(
        path="/v1/rerank", options={"return_documents": False}, hosts=("jina.ai",), key_variables=("JINA_API_KEY",)
    ),
}
