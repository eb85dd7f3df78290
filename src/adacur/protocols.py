"""The shapes that the rooms agree on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.records import Item, Pair, Query

_RUN_HERE = ("onnx", "torch", "sentence-transformers")
_WITNESSES = ("onnx", "torch", "sentence-transformers", "http")


@dataclass(frozen=True, slots=True)
class ScorerCard:
    """Who a scorer is, as the manifest of an index remembers it.

    `weights` is a hash of the weights, or None where there are none to hash (a function, a service); `settings` one of
    what else decides the scores of a model (its tokenizer, template and configuration).
    `arithmetic` says how a quantised model multiplied here, which differs between processors. `source` is what opens
    it again (a path, a name, "module:function"), or None. `prompt` is the text that pairs are written into, with its
    instruction, None for plain pairs; `readout` says how the model's numbers become a score, None for its one logit.
    `limited_by` says what set `max_tokens`: a file of the model, "given" or "default"; None for the model's positions.
    """

    name: str
    backend: str
    weights: str | None = None
    dtype: str | None = None
    max_tokens: int | None = None
    max_item_tokens: int | None = None
    source: str | None = None
    settings: str | None = None
    arithmetic: str | None = None
    prompt: str | None = None
    readout: str | None = None
    limited_by: str | None = None

    @property
    def is_witness(self) -> bool:
        """Whether its order is one opinion on what is relevant, to be blended with the first stage's by default.

        So it is for rerankers, which judge what they were not trained for. A function, known scores and a judge are the
        truth: their own order is the answer.
        """
        return self.backend in _WITNESSES

    @property
    def runs_here(self) -> bool:
        """Whether it is a model in this process, and not a service or a function that may ask one."""
        return self.backend in _RUN_HERE

    @property
    def saturates(self) -> bool:
        """Whether int8 products were cut off where this scorer ran."""
        return self.arithmetic == "saturating products"

    def __str__(self) -> str:
        """One line for people."""
        why = f" ({self.limited_by})" if self.limited_by else ""
        parts = (
            self.name,
            self.backend,
            self.dtype,
            # What is as it should be is not worth a word, and differs from one processor to the next.
            self.arithmetic if self.saturates else None,
            f"up to {self.max_tokens} tokens{why}" if self.max_tokens else None,
            f"items cut to {self.max_item_tokens} tokens" if self.max_item_tokens else None,
            f"reads {self.readout}" if self.readout else None,
            f"from {self.source}" if self.source else None,
        )
        return " · ".join(part for part in parts if part)


@runtime_checkable
class Scorer(Protocol):
    """The expensive f(query, item). Higher is nearer; raw logits, never sigmoids."""

    @property
    def card(self) -> ScorerCard: ...

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Reopening:
    """How a scorer is opened in another process, on this machine or another, and what it takes there.

    `open` can be pickled. `share` is the pace of such a process, compared with that of the scorer as it is here.
    """

    open: Callable[[], Scorer]
    cpus: int = 1
    gpus: int = 0
    share: float = 1.0


@runtime_checkable
class MovableScorer(Scorer, Protocol):
    """A scorer that does not pickle, but knows how to be opened again elsewhere."""

    def reopening(self) -> Reopening: ...


@runtime_checkable
class AsyncScorer(Scorer, Protocol):
    """A scorer that can be awaited."""

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        ...


@runtime_checkable
class PositionScorer(Scorer, Protocol):
    """A scorer that can be asked for items by position, and keeps what it made of them while the collection lives."""

    def score_at(self, items: Items, queries: Sequence[Query], query_of: IntArray, positions: IntArray) -> FloatArray:
        """Score i is that of queries[query_of[i]] with the item at positions[i], as `score` would give it."""
        ...


class Ranking(NamedTuple):
    """What a first stage returns for one query: positions of items and their scores, best first, no position twice."""

    positions: IntArray
    scores: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """One vector per item: `rows(positions)` reads some as float32, in the order given; `shape` counts all.

    `embed_queries` makes vectors of queries, shape (queries, dimension); None where no encoder is known.
    """

    shape: tuple[int, int]
    rows: Callable[[IntArray], FloatArray]
    embed_queries: Callable[[Sequence[Query]], FloatArray] | None

    def all_rows(self) -> FloatArray:
        """All vectors in memory, float32; read some at a time."""
        vectors = np.empty(self.shape, dtype=np.float32)
        for start in range(0, self.shape[0], 8192):
            positions = np.arange(start, min(start + 8192, self.shape[0]))
            vectors[start : start + len(positions)] = self.rows(positions)
        return vectors


@runtime_checkable
class FirstStage(Protocol):
    """A cheap search for the items to start from: BM25, a dual encoder, known scores.

    A position is the row of an item among those that it was built from (`first_stages.placed` translates where an
    index has them in another order). `needs_encoder` says whether `build` does.
    """

    name: str
    needs_encoder: ClassVar[bool] = False

    @property
    def ids(self) -> Sequence[str]:
        """The ids of its items, by position."""
        ...

    @classmethod
    def build(
        cls, items: Iterable[Item], *, encoder: Any = None, folder: Path | None = None, progress: bool = False
    ) -> FirstStage:
        """A first stage of these items, which are read once.

        - `encoder`: what turns texts into vectors, where the stage needs it;
        - `folder`: where it will be saved; what is too large for memory may go there at once;
        - `progress`: show a bar.
        """
        ...

    def check_can_grow(self) -> None:
        """Refuse where new items could not be taken in: an edit asks before it pays for scores."""
        return

    def updated(
        self,
        items: Iterable[Item],
        *,
        unchanged: IntArray,
        new: Iterable[Item],
        folder: Path | None = None,
        progress: bool = False,
    ) -> FirstStage:
        """The same first stage of other items; `folder` and `progress` as in `build`.

        `items` are all of them: first those at the positions `unchanged` of this stage, then the `new` ones.
        """
        ...

    def settings(self) -> dict[str, Any]:
        """What it was built with, as JSON holds it."""
        ...

    def save(self, folder: Path) -> None:
        """Write all that `load` needs; `folder` is new or empty, or the one that it was built in."""
        ...

    @classmethod
    def load(cls, folder: Path, *, encoder: Any = None, allow_code: bool = False) -> FirstStage:
        """Open what `save` wrote; `allow_code` lets the folder name an encoder that takes consent."""
        ...

    def search(self, queries: Sequence[Query | str], k: int) -> list[Ranking]:
        """At most k items per query, in the order of the queries; equal scores in the order of their ids."""
        ...

    def vectors(self) -> Vectors | None:
        """Its item vectors; None where it has none."""
        return None


class Items(Protocol):
    """The items of a collection, by position and by id.

    One by one they are `items[position]` (from the end where it is negative) and `for item in items`, which reads some
    at a time; several at once are `items.at(positions)`.
    """

    @property
    def ids(self) -> Sequence[str]: ...

    @property
    def keys(self) -> KeyArray:
        """A random key per item, `seeds.item_keys(ids)`, computed once."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> Item:
        at, n = operator.index(position), len(self)
        if not -n <= at < n:
            raise IndexError(f"There are {n} items; none has position {at}.")
        return self.at([at % n])[0]

    def __iter__(self) -> Iterator[Item]:
        for start in range(0, len(self), 1024):
            yield from self.at(range(start, min(start + 1024, len(self))))

    def at(self, positions: Iterable[int]) -> list[Item]:
        """The items at these positions, in that order."""
        ...

    def positions(self, ids: Iterable[str]) -> IntArray:
        """The positions of these ids, in that order."""
        ...


class AnchorScores(Protocol):
    """Anchor scores at rest: R_anc, item-major, so that an item's latent embedding is one contiguous row."""

    @property
    def items(self) -> Items: ...

    @property
    def anchor_queries(self) -> Sequence[Query]: ...

    @property
    def matrix(self) -> FloatArray:
        """Shape (items, anchor queries), float32 or float64."""
        ...


@runtime_checkable
class BlockedScores(Protocol):
    """Anchor scores that need not be in memory all at once."""

    # Without `matrix`: before Python 3.12, asking whether something is one of these would read it.

    def blocks(self) -> Iterator[tuple[int, FloatArray]]:
        """The rows of `matrix` as they are stored, float16 perhaps, in order: the position of the first, and some."""
        ...


class Approximation(Protocol):
    """Predictions for a batch of queries; the first axis is the query."""

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query: positions[i] were scored scores[i]."""
        ...

    def predict(self) -> Any:
        """A row of predictions per query, a value per item: the higher, the higher the score.

        An array of shape (queries, items), or a list of rows that stay on a device.
        """
        ...

    def in_scores(self, query: int, predicted: FloatArray) -> FloatArray:
        """Predictions for one query, by its place in the batch, as scores of the scorer (Ŝ), whatever their shape."""
        ...


@runtime_checkable
class UncertainApproximation(Approximation, Protocol):
    """An approximation that knows how far it may be off, which is what stopping early needs."""

    def chance_above(self, query: int, predicted: FloatArray, best: FloatArray, *, ranks: IntArray) -> FloatArray:
        """How likely unscored items are to score above the best scored, shape (predicted, best).

        `query` is its place in the batch; `predicted` are predictions as `predict` gives them, `best` exact scores and
        `ranks` their ranks among all scored, counted from 1.
        """
        ...


class Approximator(Protocol):
    """How the scores of all items follow from a few exact ones."""

    def begin(self, anchors: AnchorScores, queries: Sequence[Query]) -> Approximation:
        """A fresh approximation for these queries, without any exact score yet."""
        ...


class Acquisition(Protocol):
    """Which unscored items to spend the next calls on (SampleItems, 𝒜 in the paper)."""

    def choose(self, predicted: FloatArray, *, unscored: BoolArray, n: int, keys: KeyArray, stream: int) -> IntArray:
        """n different positions where `unscored` holds, best first.

        `keys` are the items' random keys and break ties; `stream` names this query's and round's draws.
        """
        ...
