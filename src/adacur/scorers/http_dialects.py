"""How rerank servers are spoken to: one entry of `DIALECTS` per kind of server.

A new kind is one entry here, its recorded exchange in tests/http_exchanges.py, and a row of the table in
docs/scorers.md, which a test compares with this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A request is {`query`, `texts`, model, `count`, `instruction`, `options`, `raw`}; an answer holds `results`.

    - path: the rerank address, below the root of the server;
    - endings: other last parts of an address that is a rerank address too;
    - batch_size: texts per request where the server does not give a limit; limit: the most that it documents;
    - query, texts, count: the fields of a request for the query, for the texts, and for the number of results (None:
      all come anyway); as_objects: texts are sent as {"text": …};
    - names_model: whether a request has the field "model";
    - instruction: the field that tells the model its task, if there is one; the field of the query where the service
      wants it in front of the query;
    - options: fields that every request has;
    - raw: the fields that ask for logits; empty where they come unasked, None where only probabilities can be had;
    - results, score: the fields of an answer for the list of results (None: the answer is that list), and of a result
      for its score; its "index" is the place of its text in the request;
    - hosts: domains of a hosted service, and key_variables: environment variables with the key for these hosts alone.
    """

    path: str
    endings: tuple[str, ...] = ()
    batch_size: int = 100
    limit: int | None = None
    query: str = "query"
    texts: str = "documents"
    count: str | None = "top_n"
    as_objects: bool = False
    names_model: bool = True
    instruction: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] | None = None
    results: str | None = "results"
    score: str = "relevance_score"
    hosts: tuple[str, ...] = ()
    key_variables: tuple[str, ...] = ()

    def request(
        self, query: str, texts: Sequence[str], *, model: str | None, raw: bool, instruction: str | None = None
    ) -> dict[str, Any]:
        """The body of a request."""
        if instruction is not None and self.instruction == self.query:
            query, instruction = f"{instruction}\n{query}", None
        return {
            self.query: {"text": query} if self.as_objects else query,
            self.texts: [{"text": text} for text in texts] if self.as_objects else list(texts),
            **({"model": model} if self.names_model and model is not None else {}),
            **({self.instruction: instruction} if self.instruction and instruction else {}),
            **self.options,
            **((self.raw or {}) if raw else {}),
            **({self.count: len(texts)} if self.count else {}),
        }

    @property
    def fields(self) -> frozenset[str]:
        """Every field of a request that may be set here."""
        named = (self.query, self.texts, "model", self.count, self.instruction)
        return frozenset((*(name for name in named if name), *self.options, *(self.raw or {})))

    def scores_in(self, answer: Any) -> list[tuple[Any, Any]]:
        """(place, score) of each result in an answer; LookupError or TypeError if it is not of this dialect."""
        results = answer if self.results is None else answer[self.results]
        if not isinstance(results, list):
            raise TypeError
        return [(result["index"], result[self.score]) for result in results]


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
    ),
    "vllm": Dialect(
        path="/v1/rerank",
        instruction="instruction",
        options={"truncate_prompt_tokens": -1},
        raw={"use_activation": False},
    ),
    "adacur": Dialect(path="/v1/rerank", options={"return_documents": False}, raw={"raw_scores": True}),
    "infinity": Dialect(path="/rerank", options={"return_documents": False}, raw={"raw_scores": True}),
    # Whether these two answer with logits or with probabilities depends on the model: HttpScorer looks at the scores.
    "sglang": Dialect(
        path="/v1/rerank",
        instruction="instruct",
        options={"return_documents": False},
        raw={},
        results=None,
        score="score",
    ),
    "llamacpp": Dialect(path="/v1/rerank", endings=("/reranking",), raw={}),
    "nim": Dialect(
        path="/v1/ranking",
        # NVIDIA's own service: /v1/retrieval/nvidia/MODEL/reranking.
        endings=("/reranking",),
        limit=512,
        texts="passages",
        count=None,
        as_objects=True,
        options={"truncate": "END"},
        raw={},
        results="rankings",
        score="logit",
        hosts=("api.nvidia.com",),
        key_variables=("NVIDIA_API_KEY",),
    ),
    "cohere": Dialect(
        path="/v2/rerank",
        limit=10_000,
        hosts=("cohere.com", "cohere.ai"),
        key_variables=("CO_API_KEY", "COHERE_API_KEY"),
    ),
    "jina": Dialect(
        path="/v1/rerank",
        options={"return_documents": False},
        hosts=("jina.ai",),
        key_variables=("JINA_API_KEY",),
    ),
    "voyage": Dialect(
        path="/v1/rerank",
        limit=1_000,
        count="top_k",
        instruction="query",
        options={"return_documents": False, "truncation": True},
        results="data",
        hosts=("voyageai.com",),
        key_variables=("VOYAGE_API_KEY",),
    ),
    "mixedbread": Dialect(
        path="/v1/reranking",
        limit=1_000,
        texts="input",
        count="top_k",
        options={"return_input": False},
        results="data",
        score="score",
        hosts=("mixedbread.com", "mixedbread.ai"),
        key_variables=("MXBAI_API_KEY",),
    ),
    "zeroentropy": Dialect(
        path="/v1/models/rerank",
        hosts=("zeroentropy.dev",),
        key_variables=("ZEROENTROPY_API_KEY",),
    ),
    "contextual": Dialect(
        path="/v1/rerank",
        instruction="instruction",
        hosts=("contextual.ai",),
        key_variables=("CONTEXTUAL_API_KEY",),
    ),
    "dashscope": Dialect(
        path="/compatible-api/v1/reranks",
        limit=500,
        instruction="instruct",
        # Not all of aliyuncs.com: anyone can have a bucket there.
        hosts=("dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com", "maas.aliyuncs.com"),
        key_variables=("DASHSCOPE_API_KEY",),
    ),
}

# The kind of a language model, and as `hosts` and `key_variables` of a dialect, the keys of judges.
JUDGE = "judge"
JUDGE_KEYS = {
    "openai.com": ("OPENAI_API_KEY",),
    "deepinfra.com": ("DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN"),
    "fireworks.ai": ("FIREWORKS_API_KEY",),
    "openrouter.ai": ("OPENROUTER_API_KEY",),
    "together.xyz": ("TOGETHER_API_KEY",),
}
