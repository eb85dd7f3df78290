"""How rerank servers are spoken to, one entry per kind of server, and which kind is at an address.

A new kind is one entry in `DIALECTS`, and its name in KINDS of tests/contracts/test_scorers.py.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from adacur.core.errors import InputError, UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A request is {`query`, `texts`, model, `count`, `options`, `raw`}, an answer {`results`: [{`index`, `score`}]}.

    - path: the rerank address, below the root of the server;
    - batch_size: texts per request where the server does not give a limit;
    - query, texts, count: the fields of a request for the query, for the texts, and for the number of results (None:
      all come anyway);
    - names_model: whether a request names the model;
    - options: fields that every request has;
    - raw: the fields that ask for logits; empty where they come unasked, None where only probabilities can be had;
    - results, index, score: the fields of an answer for the list of results (None: the answer is that list), and of a
      result for the place of its text in the request, and for its score;
    - hosts: domains of a hosted service, and key_variables: environment variables with the key for these hosts alone.
    """

    path: str
    batch_size: int = 100
    query: str = "query"
    texts: str = "documents"
    count: str | None = "top_n"
    names_model: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] | None = None
    results: str | None = "results"
    index: str = "index"
    score: str = "relevance_score"
    hosts: tuple[str, ...] = ()
    key_variables: tuple[str, ...] = ()

    def request(self, query: str, texts: Sequence[str], *, model: str | None, raw: bool) -> dict[str, Any]:
        """The body of a request."""
        return {
            self.query: query,
            self.texts: list(texts),
            **({"model": model} if self.names_model and model is not None else {}),
            **self.options,
            **((self.raw or {}) if raw else {}),
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
    ),
    "vllm": Dialect(path="/v1/rerank", options={"truncate_prompt_tokens": -1}, raw={"use_activation": False}),
    "infinity": Dialect(path="/rerank", options={"return_documents": False}, raw={"raw_scores": True}),
    # Cohere charges a query with up to 100 documents as one.
    "cohere": Dialect(
        path="/v2/rerank", hosts=("cohere.com", "cohere.ai"), key_variables=("CO_API_KEY", "COHERE_API_KEY")
    ),
    "jina": Dialect(
        path="/v1/rerank", options={"return_documents": False}, hosts=("jina.ai",), key_variables=("JINA_API_KEY",)
    ),
}
# Servers whose list of models says "owned_by" them.
_OWNERS = ("vllm", "infinity")


@dataclass(frozen=True, slots=True)
class Address:
    """`root` is that of the server; `endpoint` the rerank address, where the URL names one; `service` who hosts it."""

    root: str
    endpoint: str | None
    host: str
    service: str | None
    remembered: Mapping[str, str]

    @classmethod
    def of(cls, url: str, kind: str | None = None) -> Address:
        """What a URL says, of a server of this `kind` if that is known.

        The part behind '#', which is never sent, holds what `Server.source` wrote there.
        """
        try:
            parts = urlsplit(str(url).strip())
            host, secret, _ = parts.hostname, parts.username or parts.password or parts.query, parts.port
        except ValueError as error:
            raise InputError(f"This is not the address of a server: {error}.") from None
        if secret:
            # They would be kept in every index built with this scorer; so they are not repeated here either.
            raise InputError(f"An address must not hold credentials or a '?' (for {host}). Give a key as api_key=.")
        if parts.scheme not in ("http", "https") or not host:
            raise InputError(f"An address must begin with http:// or https:// and a host; got {url!r}.")
        remembered = dict(parse_qsl(parts.fragment))
        dialect = DIALECTS.get(kind or remembered.get("kind", ""))
        ending = "/" + dialect.path.rpartition("/")[2] if dialect else "/rerank"
        path = parts.path.rstrip("/")
        if path.endswith(("/v1", "/v2")):
            path += ending
        base = path.removesuffix(ending).removesuffix("/v1").removesuffix("/v2")
        server = f"{parts.scheme}://{parts.netloc}"
        domains = {domain: kind for kind, dialect in DIALECTS.items() for domain in dialect.hosts}
        services = (kind for domain, kind in domains.items() if host == domain or host.endswith(f".{domain}"))
        return cls(
            root=server + base,
            endpoint=server + path if path.endswith(ending) else None,
            host=host,
            service=next(services, None) if parts.scheme == "https" else None,
            remembered=remembered,
        )

    def key(self, api_key: str | None) -> str | None:
        """The key given, else that of the environment, which goes only to the service it is meant for."""
        # Any index folder can name any address.
        variables = DIALECTS[self.service].key_variables if self.service else ()
        key = api_key or next((os.environ[variable] for variable in variables if os.environ.get(variable)), None)
        if key is None and variables:
            raise InputError(f"{self.host} needs a key. Set {variables[0]}, or give api_key=.")
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise InputError("api_key must be printable ASCII without spaces (not shown). Strip it.")
        return key


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of the server at an address."""

    kind: str
    endpoint: str
    model: str | None = None
    batch_size: int | None = None
    dtype: str | None = None
    max_tokens: int | None = None

    def source(self, scores: str) -> str:
        """A URL that opens the same scorer again."""
        remembered = {"kind": self.kind}
        if self.model is not None and DIALECTS[self.kind].names_model:
            remembered["model"] = self.model
        if scores != "auto":
            remembered["scores"] = scores
        return f"{self.endpoint}#{urlencode(remembered, quote_via=quote, safe='/')}"


async def find_server(
    get: Callable[[str], Awaitable[Any]], address: Address, *, kind: str | None, model: str | None
) -> Server:
    """What the server says of itself, else what the address says; `get` gives the JSON at a URL, or None."""
    info = await get(f"{address.root}/info") if kind in (None, "tei") else None
    if isinstance(info, dict) and "max_client_batch_size" in info:
        task, limit = info.get("model_type"), info["max_client_batch_size"]
        if isinstance(task, dict) and "reranker" not in task:
            raise InputError(
                f"{address.root} serves {info.get('model_id')!r} for {', '.join(task)}, not as a reranker."
            )
        return Server(
            "tei",
            address.endpoint or address.root + DIALECTS["tei"].path,
            model=_one_model([str(info.get("model_id"))], model, address),
            batch_size=limit if isinstance(limit, int) and limit > 0 else None,
            dtype=info.get("model_dtype"),
            max_tokens=info.get("max_input_length"),
        )
    if kind is None or (kind in _OWNERS and model is None):
        for root in (f"{address.root}/v1", address.root):
            listing = await get(f"{root}/models")
            entries = listing.get("data") if isinstance(listing, dict) else None
            models = [entry for entry in entries or [] if isinstance(entry, dict) and "id" in entry]
            owner = kind or next((entry["owned_by"] for entry in models if entry.get("owned_by") in _OWNERS), None)
            if models and owner:
                name = _one_model([str(entry["id"]) for entry in models], model, address)
                return Server(owner, address.endpoint or f"{root}/rerank", name)
    if kind is None:
        raise InputError(
            f"The server at {address.root} does not say what kind of rerank server it is (tried: /info, /models). "
            f"Give kind=, one of {', '.join(DIALECTS)}."
        )
    return Server(kind, address.endpoint or address.root + DIALECTS[kind].path, model)


def _one_model(served: list[str], model: str | None, address: Address) -> str:
    if model is None and len(served) == 1:
        return served[0]
    if model is None or model not in served:
        raise UnknownName(
            f"model must be one that {address.root} serves: {', '.join(map(repr, served))}; got {model!r}."
        )
    return model
