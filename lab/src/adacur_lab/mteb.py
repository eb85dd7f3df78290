"""MTEB: a cross-encoder that searches whole collections of its retrieval tasks, within a budget."""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mteb.models import ModelMeta

from adacur import __version__
from adacur.budget import Budget, check_k
from adacur.building import build
from adacur.data import pseudo_queries
from adacur.errors import InputError
from adacur.first_stages.encoders import encoder as open_encoder
from adacur.protocols import Scorer
from adacur.records import Item, Query
from adacur.results import Hits
from adacur.scorers import scorer as open_scorer
from adacur.search import AnchorIndex, search_options

__all__ = ["AdacurSearch"]


class AdacurSearch:
    """A scorer as an MTEB model that retrieves (`SearchProtocol`): each corpus is indexed, then searched.

    A search aims at the best `k` and returns all items that it scored, at most MTEB's `top_k`: documents without an
    exact score are not returned, so that measures beyond the budget see fewer documents. In re-ranking tasks, all
    documents given are scored. A document without a text is never found, and a query without one finds nothing.

    - `n_anchors`: anchor queries of each index, pseudo-queries unless `anchor_queries` are given; an index costs this
      many scorer calls a document;
    - `first`: the name of the first stage ("dense" needs an `encoder`);
    - `folder`: where indexes stay, a folder for each task, split and subset, and an interrupted run goes on; by
      default each lives as long as this object;
    - `name`: what MTEB calls the model;
    - `options`: `budget` and `method` of `AnchorIndex.search`.
    """

    def __init__(
        self,
        *,
        scorer: Any,
        first: str = "bm25",
        n_anchors: int = 250,
        anchor_queries: Iterable[Query] | None = None,
        encoder: Any = None,
        k: int = 10,
        folder: str | Path | None = None,
        seed: int = 0,
        name: str | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(first, str):
            raise InputError(
                f"The first stage is built for each corpus, so it must be a name, bm25 or dense for example; got "
                f"{type(first).__name__}."
            )
        if "fuse" in options or "filter" in options:
            raise InputError("MTEB orders documents by their exact scores and searches all; leave fuse and filter out.")
        self._scorer: Scorer = open_scorer(scorer)
        self._first = first
        self._n_anchors = n_anchors
        self._anchor_queries = None if anchor_queries is None else list(anchor_queries)
        self._encoder = open_encoder(encoder)
        self._k = k
        self._folder = None if folder is None else Path(folder)
        self._seed = seed
        self._name = name or f"adacur/{re.sub(r'[^A-Za-z0-9._-]+', '-', self._scorer.card.name)}"
        method = options.get("method", "gaussian")
        self._options = {
            "method": method,
            "fuse": 0.0,
            **({"seed": seed} if isinstance(method, str) else {}),
            **options,
        }
        # Refuse what the searches would refuse, before an index is paid for.
        example = AnchorIndex.from_items([Item("item", "an item")], first="random", progress=False)
        budget = search_options(example, **self._options).get("budget") or Budget(100)
        check_k(k, Budget.of(budget).calls)
        self._index: AnchorIndex | None = None
        self._without_text: set[str] = set()
        self._remove_temporary: Callable[[], object] = lambda: None

    def index(
        self,
        corpus: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: Mapping[str, Any] | None = None,
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Score the corpus for the anchor queries; re-ranking tasks need no scores here."""
        documents = [Item(row["id"], _text_of(row)) for row in corpus]
        items = [item for item in documents if item.text]
        self._without_text = {item.id for item in documents if not item.text}
        if "Reranking" in task_metadata.type:
            self._index = AnchorIndex.from_items(items, scorer=self._scorer)
            return
        anchors = self._anchor_queries or pseudo_queries(items, min(self._n_anchors, len(items)), seed=self._seed)
        self._index = build(
            items,
            anchors,
            scorer=self._scorer,
            path=self._place(f"{task_metadata.name}-{hf_subset}-{hf_split}.adacur"),
            first=[self._first],
            encoder=self._encoder,
            seed=self._seed,
            progress=bool((encode_kwargs or {}).get("show_progress_bar", True)),
        )

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Mapping[str, Any] | None = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Documents and their exact scores by query; of those given in `top_ranked`, all."""
        if self._index is None:
            raise InputError("A corpus must be indexed before it is searched. Call index(corpus, …) first.")
        every = [Query(row["id"], _query_text(row)) for row in queries]
        searched = [query for query in every if query.text.strip()]
        answers: dict[str, dict[str, float]] = {query.id: {} for query in every}
        if top_ranked is not None:
            return answers | {
                query.id: self._reranked(query, top_ranked.get(query.id, ()), top_k) for query in searched
            }
        hits = self._index.search(searched, self._k, **search_options(self._index, first=self._first, **self._options))
        ids = self._index.items.ids
        return answers | {query.id: _all_scored(one, ids, top_k) for query, one in zip(searched, hits, strict=True)}

    @property
    def mteb_model_meta(self) -> Any:
        """What MTEB files results under: the scorer, and every setting that changes them."""
        card = self._scorer.card
        n_anchors = len(self._anchor_queries) if self._anchor_queries else self._n_anchors
        options = {
            name: value if isinstance(value, str | int | float | bool) else repr(value)
            for name, value in self._options.items()
        }
        settings = {"first": self._first, "n_anchors": n_anchors, "k": self._k, **options}
        return ModelMeta.create_empty(
            overwrites={
                "name": self._name,
                "revision": f"{(card.weights or card.backend)[:12]}-adacur-{__version__}",
                "model_type": ["cross-encoder"],
                "max_tokens": card.max_tokens,
                "experiment_kwargs": settings,
            }
        )

    def _place(self, name: str) -> Path:
        if self._folder is not None:
            return self._folder / name
        # One corpus at a time.
        self._index = None
        self._remove_temporary()
        folder = tempfile.mkdtemp(prefix="adacur-mteb-")
        self._remove_temporary = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder) / name

    def _reranked(self, query: Query, given: Sequence[str], top_k: int) -> dict[str, float]:
        scored = [id_ for id_ in given if id_ not in self._without_text]
        if self._index is None or not scored:
            return {}
        hits = self._index.search(query, min(top_k, len(scored)), method="exact", filter=scored)
        return dict(zip(hits.ids, map(float, hits.scores), strict=True))


def _text_of(row: Mapping[str, Any]) -> str:
    """A document's title and text, as MTEB hands them to cross-encoders."""
    return f"{row.get('title') or ''} {row['text']}".strip()


def _query_text(row: Mapping[str, Any]) -> str:
    text = row["text"]
    if not isinstance(text, str):
        raise InputError(f"Query {row['id']!r} is a {type(text).__name__}, not a text; such tasks cannot be searched.")
    instruction = row.get("instruction")
    return f"{text} {instruction}" if instruction else text


def _all_scored(hits: Hits, ids: Sequence[str], top_k: int) -> dict[str, float]:
    scored = [
        (float(score), ids[position])
        for round_ in hits.trace.rounds
        for position, score in zip(round_.positions.tolist(), round_.exact.tolist(), strict=True)
    ]
    scored.sort(key=lambda pair: -pair[0])
    return {id_: score for score, id_ in scored[:top_k]}
