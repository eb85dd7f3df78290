"""One collection with every score known: any search can be replayed on it without a model.

A score folder holds scores.npz (whole numbers, `scores`: anchor queries first, then test queries × items),
dense_items.npy and dense_queries.npy (embeddings in the same order, optional; dense-NAME_items.npy and
dense-NAME_queries.npy those of further dual encoders), and meta.json: "decode" ("logit = value / 2048 - 16"),
"n_anchor_queries", "anchor_query_ids", "test_query_ids", "item_ids" and, if it pleases, "domain" and "scorer".
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import FileFormatError, InputError, UnknownName, WrongScorer
from adacur.first_stages import BM25, Dense, Encoder, Matrix, as_hits
from adacur.protocols import FirstStage, Scorer
from adacur.records import Item, ItemList, Query
from adacur.results import Hits
from adacur.scorers import MatrixScorer
from adacur.scores import check_grid
from adacur.search import AnchorIndex
from adacur.spelling import did_you_mean
from adacur.store import AnchorTable, Progress, build_scores, check_scorer, is_finished
from adacur_lab.first_stages import MultiVector, TfIdf, TokenEncoder, token_encoder

__all__ = ["Embeddings", "ItemsAlone", "Testbed", "TokenVectors", "check_first_stage", "first_stage_names", "is_scored"]

Judgements = Mapping[str, Mapping[str, int]]
# Made from the items' texts, when first asked for.
_FROM_TEXTS: dict[str, Callable[[Sequence[Item]], FirstStage]] = {
    "bm25": lambda items: BM25.build(items),
    "tfidf": lambda items: TfIdf.build(items),
}
_DENSE = "dense-"
_NEEDS = {"dense": "embeddings, or an encoder to make them", "multi-vector": "texts and an encoder"}


@dataclass(frozen=True, slots=True, eq=False)
class ItemsAlone:
    """Items to search, without anchor scores."""

    items: ItemList


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """A dual encoder's vectors, a row each; those of anchor queries may be missing."""

    items: FloatArray
    test_queries: FloatArray
    anchor_queries: FloatArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TokenVectors:
    """What the first stage "multi-vector" is made by, when first asked for, and the folder that keeps it."""

    encoder: TokenEncoder
    folder: Path
    progress: bool = False


@dataclass(frozen=True, eq=False)
class Testbed:
    """Items, anchor queries and test queries with the exact scores of all, ready to replay searches on.

    `anchor_scores` and `exact_scores` are (queries × items); `item_embeddings`, `query_embeddings` (of the test
    queries) and `anchor_embeddings` are a dual encoder's, a row each, and `others` those of further ones, for first
    stages "dense-NAME". `has_texts` says whether the records carry texts or only repeat their ids, `pseudo_anchors`
    whether the anchor queries were cut from the items (None: unknown); `qrels` are judgements by query and item id;
    `tokens` bring the first stage "multi-vector".
    """

    __test__: ClassVar[bool] = False  # pytest takes every name that begins so for tests

    name: str
    items: Sequence[Item]
    anchor_queries: Sequence[Query]
    test_queries: Sequence[Query]
    anchor_scores: FloatArray
    exact_scores: FloatArray
    item_embeddings: FloatArray | None = None
    query_embeddings: FloatArray | None = None
    anchor_embeddings: FloatArray | None = None
    others: Mapping[str, Embeddings] = field(default_factory=dict, repr=False)
    qrels: Judgements | None = None
    has_texts: bool = True
    pseudo_anchors: bool | None = None
    scored_by: str | None = None
    tokens: TokenVectors | None = field(default=None, repr=False)
    _opened: dict[str, FirstStage] = field(default_factory=dict, init=False, repr=False)
    _first_hits: dict[str, tuple[int, list[Hits]]] = field(default_factory=dict, init=False, repr=False)
    _indexes: dict[int, AnchorIndex] = field(default_factory=dict, init=False, repr=False)
    _encoded: dict[str, Testbed] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_grid(self.anchor_scores, self.anchor_queries, self.items)
        check_grid(self.exact_scores, self.test_queries, self.items)
        for what, embeddings, records in (
            ("item", self.item_embeddings, self.items),
            ("test query", self.query_embeddings, self.test_queries),
            ("anchor query", self.anchor_embeddings, self.anchor_queries),
            *(("item", own.items, self.items) for own in self.others.values()),
            *(("test query", own.test_queries, self.test_queries) for own in self.others.values()),
            *(("anchor query", own.anchor_queries, self.anchor_queries) for own in self.others.values()),
        ):
            if embeddings is not None and len(embeddings) != len(records):
                raise InputError(f"One embedding per {what} is needed; got {len(embeddings)} for {len(records)}.")

    @classmethod
    def from_score_folder(
        cls,
        folder: str | Path,
        *,
        n_queries: int | None = None,
        held_out: int = 0,
        items: Iterable[Item] | None = None,
        queries: Iterable[Query] | None = None,
        qrels: Judgements | None = None,
        name: str | None = None,
    ) -> Testbed:
        """Read a score folder; `n_queries` takes its first test queries.

        With `held_out`, the last so many anchor queries take the place of the test queries: to choose by, since test
        queries are for reporting. `items` and `queries` bring the texts that a score folder lacks, by id.
        """
        folder = Path(folder)
        meta = _meta(folder)
        first_test = len(meta["anchor_query_ids"])
        query_ids = [*meta["anchor_query_ids"], *meta["test_query_ids"]]
        if not 0 <= held_out < first_test:
            raise InputError(f"{folder} has {first_test} anchor queries, too few to hold out {held_out} of them.")
        chosen = slice(first_test - held_out, first_test) if held_out else slice(first_test, len(query_ids))
        if n_queries is not None:
            chosen = slice(chosen.start, min(chosen.stop, chosen.start + n_queries))
        logits = _logits(folder, meta, shape=(len(query_ids), len(meta["item_ids"])))
        item_embeddings, query_embeddings = (_embeddings(folder / f"dense_{of}.npy") for of in ("items", "queries"))
        before = slice(0, chosen.start if held_out else first_test)
        item_texts = None if items is None else {item.id: item for item in items}
        query_texts = None if queries is None else {query.id: query for query in queries}
        return cls(
            name=name or str(meta.get("domain", folder.name)),
            items=_with_texts(meta["item_ids"], item_texts, Item, folder),
            anchor_queries=_with_texts(query_ids[before], query_texts, Query, folder),
            test_queries=_with_texts(query_ids[chosen], query_texts, Query, folder),
            anchor_scores=logits(before),
            exact_scores=logits(chosen),
            item_embeddings=item_embeddings,
            query_embeddings=None if query_embeddings is None else query_embeddings[chosen],
            anchor_embeddings=None if query_embeddings is None else query_embeddings[before],
            others={
                name: Embeddings(items=of_items, test_queries=of_queries[chosen], anchor_queries=of_queries[before])
                for name, of_items, of_queries in _other_embeddings(folder)
            },
            qrels=qrels,
            has_texts=items is not None and queries is not None,
            scored_by=meta.get("scorer"),
        )

    @classmethod
    def from_live(
        cls,
        items: Iterable[Item],
        anchor_queries: Iterable[Query],
        test_queries: Iterable[Query],
        *,
        scorer: Scorer,
        folder: str | Path,
        name: str,
        encoder: Any = None,
        qrels: Judgements | None = None,
        pseudo_anchors: bool | None = None,
        progress: bool = True,
    ) -> Testbed:
        """Score every item for every query into a folder, once, and replay from there.

        Costs (anchor + test queries) × items scorer calls, and the encoder's embeddings of all if there is one. The
        same call continues where it was interrupted; finished scores are read again. There need be no anchor queries,
        for methods that use none.
        """
        items, anchor_queries, test_queries = list(items), list(anchor_queries), list(test_queries)
        target = Path(folder)
        scores = {
            kind: _scored(items, queries, scorer=scorer, path=_scores_folder(target, kind, queries), progress=bar)
            for kind, queries, bar in (
                ("test", test_queries, "scoring test queries" if progress else None),
                ("anchors", anchor_queries, "scoring anchor queries" if progress else None),
            )
        }
        embeddings: dict[str, Any] = {}
        if encoder is not None:
            dense = kept_dense(items, encoder=encoder, folder=target, progress=progress)
            embeddings = {
                "item_embeddings": dense.vectors().all_rows(),
                "query_embeddings": dense.embed_queries(test_queries),
                "anchor_embeddings": dense.embed_queries(anchor_queries) if anchor_queries else None,
            }
        return cls(
            name=name,
            items=items,
            anchor_queries=anchor_queries,
            test_queries=test_queries,
            anchor_scores=scores["anchors"],
            exact_scores=scores["test"],
            qrels=qrels,
            pseudo_anchors=pseudo_anchors,
            scored_by=str(replace(scorer.card, source=None)),
            tokens=TokenVectors(tokens, target, progress) if (tokens := token_encoder(encoder)) else None,
            **embeddings,
        )

    @functools.cached_property
    def collection(self) -> ItemsAlone:
        """The items for methods that need no anchor scores."""
        return ItemsAlone(ItemList(self.items))

    @functools.cached_property
    def scorer(self) -> MatrixScorer:
        """The exact scores of the test queries, looked up."""
        return MatrixScorer(queries=self.test_queries, items=self.items, scores=self.exact_scores)

    @property
    def first_stages(self) -> tuple[str, ...]:
        """Names that `first_stage` accepts, the best one to start from first."""
        has_dense = self.item_embeddings is not None and self.query_embeddings is not None
        names = first_stage_names(has_dense=has_dense, has_texts=self.has_texts, has_tokens=self.tokens is not None)
        return (*names[:-1], *(f"{_DENSE}{name}" for name in self.others), names[-1])

    def encoded_by(self, first: str) -> Testbed:
        """With the embeddings of the dual encoder behind a first stage "dense-NAME"; as it is for any other stage."""
        other = self.others.get(first.removeprefix(_DENSE)) if first.startswith(_DENSE) else None
        if other is None:
            return self
        if first not in self._encoded:
            self._encoded[first] = replace(
                self,
                item_embeddings=other.items,
                query_embeddings=other.test_queries,
                anchor_embeddings=other.anchor_queries,
            )
        return self._encoded[first]

    def first_stage(self, name: str) -> FirstStage | None:
        """A first stage by name, made when first asked for; None for "random", which needs none."""
        if name == "random":
            return None
        check_first_stage(name, self.first_stages, collection=self.name)
        if name not in self._opened:
            known = {"dense": self._dense_first, "multi-vector": self._multi_vector_first}
            known |= {f"{_DENSE}{other}": self.encoded_by(f"{_DENSE}{other}")._dense_first for other in self.others}
            self._opened[name] = known[name]() if name in known else _FROM_TEXTS[name](self.items)
        return self._opened[name]

    def first_hits(self, name: str, n: int) -> list[Hits]:
        """What a first stage finds for the test queries, n deep; looked up once."""
        if name not in self._first_hits or self._first_hits[name][0] < n:
            stage = self._stage(name)
            found = as_hits(self.test_queries, stage.search(self.test_queries, n), stage.ids)
            self._first_hits[name] = (n, found)
        return self._first_hits[name][1]

    def index(self, n_anchors: int | None = None) -> AnchorIndex:
        """An index of the first `n_anchors` anchor queries (default: all), with the scorer and the first stages."""
        n = len(self.anchor_queries) if n_anchors is None else n_anchors
        if not 0 <= n <= len(self.anchor_queries):
            raise InputError(f"n_anchors must be from 0 to {len(self.anchor_queries)}, all of {self.name!r}; got {n}.")
        if n not in self._indexes:
            # One is enough: runs come sorted by the number of anchors, and each index is a copy of the scores.
            self._indexes.clear()
            dtype = np.promote_types(self.anchor_scores.dtype, np.float32)
            matrix = np.ascontiguousarray(self.anchor_scores[:n].T, dtype=dtype)
            table = AnchorTable(self.collection.items, tuple(self.anchor_queries[:n]), matrix)
            stages = {name: functools.partial(self._stage, name) for name in self.first_stages if name != "random"}
            self._indexes[n] = AnchorIndex(table, scorer=self.scorer, first=stages, card=self.scorer.card)
        return self._indexes[n]

    def of_anchors(self) -> Testbed:
        """The anchor queries in place of the test queries: to choose settings by."""
        return replace(
            self,
            test_queries=self.anchor_queries,
            exact_scores=self.anchor_scores,
            query_embeddings=self.anchor_embeddings,
            others={
                name: replace(own, test_queries=own.anchor_queries)
                for name, own in self.others.items()
                if own.anchor_queries is not None
            },
        )

    def embed_queries(self, queries: Sequence[Query]) -> FloatArray:
        """The dual encoder's vectors of test and anchor queries, looked up."""
        if self.query_embeddings is None:
            raise InputError(f"The queries of {self.name!r} come without embeddings.")
        known = [(self.test_queries, self.query_embeddings)]
        if self.anchor_embeddings is not None:
            known.append((self.anchor_queries, self.anchor_embeddings))
        vectors = {query.id: vector for records, rows in known for query, vector in zip(records, rows, strict=True)}
        return np.stack([vectors[query.id] for query in queries])

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of what every result depends on: ids, texts, scores, embeddings, judgements of the test queries."""
        digest = hashlib.blake2b(digest_size=16)
        for records in (self.items, self.anchor_queries, self.test_queries):
            for record in records:
                digest.update(f"{record.id}\0{record.text}\0".encode(errors="surrogatepass"))
            digest.update(b"\1")
        for array in (
            self.anchor_scores,
            self.exact_scores,
            self.item_embeddings,
            self.query_embeddings,
            self.anchor_embeddings,
            *(array for own in self.others.values() for array in (own.items, own.test_queries, own.anchor_queries)),
        ):
            if array is not None:
                digest.update(f"{array.shape}{array.dtype}".encode())
                digest.update(np.ascontiguousarray(array).data)
        judged = {query.id: dict(self.qrels.get(query.id, {})) for query in self.test_queries} if self.qrels else None
        digest.update(json.dumps(judged, sort_keys=True).encode())
        return digest.hexdigest()

    def fingerprint_with(self, first: str) -> str:
        """The fingerprint of a result from this first stage, the encoder of token vectors included."""
        # The other stages follow from texts and embeddings; no result but its own changes with this encoder.
        if first != "multi-vector" or self.tokens is None:
            return self.fingerprint
        return f"{self.fingerprint}-{_encoder_digest(self.tokens.encoder)}"

    def _stage(self, name: str) -> FirstStage:
        stage = self.first_stage(name)
        assert stage is not None
        return stage

    def _dense_first(self) -> FirstStage:
        assert self.query_embeddings is not None
        assert self.item_embeddings is not None
        scores = self.query_embeddings @ self.item_embeddings.T
        return Matrix(queries=self.test_queries, items=self.items, scores=scores)

    def _multi_vector_first(self) -> FirstStage:
        """MaxSim with every item, once: it takes minutes, and every run asks for it."""
        assert self.tokens is not None
        searched = _kept_multi_vector(self.items, self.tokens).search(self.test_queries, len(self.items))
        scores = np.empty((len(self.test_queries), len(self.items)), dtype=np.float32)
        for row, answer in zip(scores, searched, strict=True):
            row[answer.positions] = answer.scores
        return Matrix(queries=self.test_queries, items=self.items, scores=scores)


def first_stage_names(*, has_dense: bool, has_texts: bool, has_tokens: bool) -> tuple[str, ...]:
    """The first stages that a collection can have with what is installed, the best one to start from first."""
    from_texts = list(_FROM_TEXTS) if has_texts else []
    return (*(["dense"] if has_dense else []), *from_texts, *(["multi-vector"] if has_tokens else []), "random")


def check_first_stage(name: str, known: Sequence[str], *, collection: str) -> None:
    """Refuse a first stage that the collection does not have, and say what it would take."""
    if name in known:
        return
    needs = "texts" if name in _FROM_TEXTS else _NEEDS.get(name)
    why = f" That one needs {needs}." if needs else did_you_mean(name, known)
    raise UnknownName(f"The collection {collection!r} has no first stage {name!r}.{why} It has: {', '.join(known)}.")


def is_scored(folder: str | Path, anchor_queries: Sequence[Query], test_queries: Sequence[Query]) -> bool:
    """Whether `Testbed.from_live` would find all scores in the folder."""
    kinds = (("test", test_queries), ("anchors", anchor_queries))
    return all(is_finished(_scores_folder(Path(folder), kind, queries)) for kind, queries in kinds if queries)


def _scores_folder(folder: Path, kind: str, queries: Sequence[Query]) -> Path:
    # Other queries, other folder: what was paid for is never mixed with them, nor lost to them.
    digest = hashlib.blake2b(digest_size=4)
    for query in queries:
        digest.update(f"{query.id}\0{query.text}\0".encode(errors="surrogatepass"))
    return folder / f"{kind}-{len(queries)}-{digest.hexdigest()}"


def _scored(items: list[Item], queries: list[Query], *, scorer: Scorer, path: Path, progress: str | None) -> FloatArray:
    """Scores of shape (queries, items), from the folder where they are kept."""
    if not queries:
        return np.empty((0, len(items)), dtype=np.float32)
    was_finished = is_finished(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with Progress(bool(progress) and not was_finished, title=progress or "") as show:
            folder = build_scores(items, queries, scorer=scorer, path=path, progress=show)
        if was_finished:
            check_scorer(folder, scorer)
    except WrongScorer as error:
        raise WrongScorer(
            f"{error} The results of each scorer need a folder of their own: --output (-o), or `folder` under [output] "
            "of the spec."
        ) from error
    return np.ascontiguousarray(folder.matrix.T)


def kept_dense(items: Sequence[Item], *, encoder: Encoder, folder: Path, progress: bool = False) -> Dense:
    """The items' embeddings, encoded once and kept in the folder."""
    target = _kept(folder, encoder, lambda path: Dense.build(items, encoder=encoder, progress=progress).save(path))
    return Dense.load(target, encoder=encoder)


def _kept_multi_vector(items: Sequence[Item], tokens: TokenVectors) -> MultiVector:
    """The vectors of the items' tokens, encoded once and kept in the folder."""
    encoder = tokens.encoder

    def write(path: Path) -> None:
        path.mkdir()
        MultiVector.build(items, encoder=encoder, progress=tokens.progress, folder=path).save(path)

    return MultiVector.load(_kept(tokens.folder, encoder, write, kind="multi-vector"), encoder=encoder)


def _kept(folder: Path, encoder: Any, write: Callable[[Path], None], *, kind: str = "dense") -> Path:
    target = folder / f"{kind}-{_encoder_digest(encoder)}"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{kind}-{uuid.uuid4().hex}.partial"
        try:
            write(partial)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def _encoder_digest(encoder: Any) -> str:
    return hashlib.blake2b(repr(replace(encoder.card, source=None)).encode(), digest_size=4).hexdigest()


def _meta(folder: Path) -> dict[str, Any]:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{folder} is no folder of scores: meta.json cannot be read ({error}).") from error
    needed = ("decode", "anchor_query_ids", "test_query_ids", "item_ids")
    if missing := [name for name in needed if name not in meta]:
        raise FileFormatError(f"{folder}/meta.json lacks {', '.join(missing)}.")
    return dict(meta)


def _logits(folder: Path, meta: dict[str, Any], *, shape: tuple[int, int]) -> Callable[[slice], FloatArray]:
    decode = re.fullmatch(r"logit = value / ([\d.]+) ([+-]) ([\d.]+)", meta["decode"])
    if decode is None:
        raise FileFormatError(
            f"{folder}/meta.json: cannot read the decoding rule {meta['decode']!r}; it should be like "
            "'logit = value / 2048 - 16'."
        )
    scale, sign, offset = decode.groups()
    try:
        with np.load(folder / "scores.npz") as stored:
            values = stored["scores"]
    except (OSError, ValueError, KeyError) as error:
        raise FileFormatError(f"{folder}/scores.npz cannot be read: {error}") from error
    if values.shape != shape:
        raise FileFormatError(
            f"{folder}/scores.npz has shape {values.shape}; meta.json names {shape[0]} queries and {shape[1]} items."
        )
    return lambda rows: values[rows].astype(np.float32) / float(scale) + float(sign + offset)


def _embeddings(file: Path) -> FloatArray | None:
    return np.load(file).astype(np.float32) if file.exists() else None


def _other_embeddings(folder: Path) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    for file in sorted(folder.glob(f"{_DENSE}*_items.npy")):
        name = file.name.removeprefix(_DENSE).removesuffix("_items.npy")
        of_items, of_queries = (_embeddings(folder / f"{_DENSE}{name}_{of}.npy") for of in ("items", "queries"))
        if of_items is None or of_queries is None:
            raise FileFormatError(f"{folder} holds {file.name}, but not {_DENSE}{name}_queries.npy beside it.")
        yield name, of_items, of_queries


def _with_texts(ids: Sequence[str], known: Mapping[str, Any] | None, kind: type, folder: Path) -> list[Any]:
    if known is None:
        return [kind(id_, id_) for id_ in ids]
    if (missing := next((id_ for id_ in ids if id_ not in known), None)) is not None:
        raise InputError(f"{folder} names the {kind.__name__.lower()} {missing!r}, of which no text was given.")
    return [known[id_] for id_ in ids]
