"""Parts of an index: scored block by block, or written from known scores; a finished block is never scored again."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import BoolArray, FloatArray
from adacur.errors import AdacurError, DamagedIndex, EmptyInput, ScorerError, ScorerFailed
from adacur.protocols import Items, Scorer, ScorerCard
from adacur.records import Item, Query
from adacur.scorers.calling import score_grid
from adacur.store.blocks import SCORES, ScoreBlocks, as_stored, largest_block, usual_block
from adacur.store.database import load
from adacur.store.estimate import Estimate, count_cut
from adacur.store.executor import On, WorkersLost, executor_for
from adacur.store.manifest import Manifest, manifest_in, write_manifest
from adacur.store.parts import EXACT
from adacur.store.probes import Drift, choose_probes, compare_scores, same_scorer
from adacur.store.progress import Progress
from adacur.store.writing import digest_file, sync_path

_log = logging.getLogger("adacur.build")

_PAIRS_TO_RECOGNISE = 8
_CONTINUES = "Finished blocks are kept: the same call, or command, again goes on from there."


@dataclass(frozen=True, slots=True)
class _Block:
    """A unit of work: items that follow one another, to be scored against every anchor query."""

    number: int
    items: list[Item]


_ScoreBlock = Callable[[_Block], FloatArray]


@dataclass(frozen=True, slots=True)
class Scoring:
    """How pairs are scored and stored: by whom, where, in blocks of how many items (`usual_block` by default)."""

    scorer: Scorer
    dtype: str = "float32"
    seed: int = 0
    executor: On = None
    block_items: int | None = None
    progress: Progress = field(default_factory=Progress)


def begin_part(
    part: Path,
    items: Iterable[Item],
    anchors: Sequence[Query],
    *,
    dtype: str,
    there: Items | None = None,
    brings_anchors: bool = True,
    block_items: int | None = None,
    **facts: Any,
) -> Manifest:
    """Begin a part: the texts that it brings, an array without scores, and a manifest, which comes last.

    It brings these items, or scores for those that are `there`.
    """
    part.mkdir(parents=True)
    loaded = load(part, items, anchors if brings_anchors else ())
    brought = loaded.pop("n_items")
    n_items = brought if there is None else len(there)
    if not n_items:
        raise EmptyInput("There are no items. Give at least one.")
    size = min(n_items, block_items or usual_block(n_items, len(anchors), dtype))
    about: dict[str, Any] = loaded | {"brings_items": there is None, "brings_anchors": brings_anchors} | facts
    manifest = Manifest("building", n_items, len(anchors), dtype, size, **about)  # type: ignore[arg-type]
    (part / SCORES).mkdir()
    write_manifest(part, manifest)
    sync_path(part.parent)
    return manifest


def write_part(
    part: Path,
    items: Iterable[Item],
    anchors: Sequence[Query],
    rows: Callable[[int, int], FloatArray],
    *,
    dtype: str,
    exact: BoolArray | None = None,
    **facts: Any,
) -> Manifest:
    """Write a part from `rows(start, stop)`: known scores of items in these positions, (items, anchor queries).

    `exact`, of the shape of the scores, is false where one was predicted.
    """
    manifest = begin_part(part, items, anchors, dtype=dtype, block_items=largest_block(len(anchors), dtype), **facts)
    if exact is not None and not exact.all():
        np.save(part / EXACT, exact)
        sync_path(part / EXACT)
        manifest = replace(manifest, exact=digest_file(part / EXACT))
    blocks = ScoreBlocks(part, manifest)
    for number in range(manifest.n_blocks):
        some = manifest.block(number)
        blocks.write(number, rows(some.start, some.stop))
    return _seal(blocks, exact=exact)


def score_part(part: Path, scoring: Scoring, anchors: Sequence[Query], items: Items) -> Manifest:
    """Score what is left of a part that was begun, and seal it; its manifest."""
    manifest = manifest_in(part)
    if manifest.status == "complete":
        return manifest
    blocks = ScoreBlocks(part, manifest)
    finished = blocks.finished()
    # A name proves little where there are no weights to compare.
    if finished and not same_scorer(manifest.scorer, scoring.scorer.card):
        scoring.progress.drift = _recognise(blocks, finished[0], anchors, items, scoring.scorer)
    _score_blocks(blocks, finished, scoring, anchors, items)
    return _seal(blocks, cut=count_cut(scoring.scorer, anchors, items) if manifest.brings_items else None)


def _seal(blocks: ScoreBlocks, *, exact: BoolArray | None = None, **facts: Any) -> Manifest:
    """Read all scores once more, choose those by which the scorer is recognised, and write the manifest."""
    begun = blocks.manifest
    written = ((begun.block(block).start, _read_back(blocks, block)) for block in range(begun.n_blocks))
    probes = choose_probes(written, seed=begun.seed, exact=exact)
    blocks.tidy()
    manifest = replace(begun, status="complete", probes=probes, scores_digest=blocks.digest(), **facts)
    write_manifest(blocks.folder, manifest)
    return manifest


def _read_back(blocks: ScoreBlocks, block: int) -> FloatArray:
    """The scores of a finished block; one that is damaged is finished no more."""
    try:
        return blocks.read(block)
    except DamagedIndex as error:
        # What could not be read just now, where too many files are open for example, was paid for and may be whole.
        if not isinstance(error.__cause__, OSError):
            blocks.file(block).unlink(missing_ok=True)
        raise


def _recognise(blocks: ScoreBlocks, finished: int, anchors: Sequence[Query], items: Items, scorer: Scorer) -> Drift:
    """Compare a few scores of a finished block, so that one index never holds the scores of two scorers."""
    values, some = _read_back(blocks, finished), items.at(blocks.manifest.block(finished))
    rows, columns = (np.linspace(0, n - 1, _PAIRS_TO_RECOGNISE).astype(int) for n in (len(some), len(anchors)))
    rows, columns = np.unique([rows, columns], axis=1)
    pairs = [(anchors[column], some[row]) for row, column in zip(rows, columns, strict=True)]
    return compare_scores(scorer, pairs, values[rows, columns], blocks.manifest, where=blocks.folder)


def _scoring(scorer: Scorer, *, anchors: Sequence[Query], dtype: str) -> _ScoreBlock:
    def score(block: _Block) -> FloatArray:
        scores = score_grid(scorer, anchors, block.items)
        values = as_stored(scores, dtype, lambda at: (anchors[at[0]], block.items[at[1]]))
        return np.ascontiguousarray(values.T)

    return score


def _scoring_elsewhere(
    open_scorer: Callable[[], Scorer], *, card: ScorerCard, anchors: Sequence[Query], dtype: str
) -> _ScoreBlock:
    """Called in another process, perhaps on another machine."""
    try:
        scorer = open_scorer()
    except AdacurError:
        raise
    except Exception as error:
        raise ScorerFailed(
            f"Scorer {card.name!r} could not be opened in a second process: {type(error).__name__}: {error}"
        ) from error
    # One index never holds the scores of two scorers.
    if comparable(scorer.card) != comparable(card):
        raise ScorerFailed(f"The scorers of all processes must be alike; got {scorer.card} beside {card}.")
    return _scoring(scorer, anchors=anchors, dtype=dtype)


def comparable(card: ScorerCard) -> ScorerCard:
    """A card without what may differ between the machines of one build."""
    return replace(card, source=None, arithmetic=card.arithmetic if card.saturates else None)


def _score_blocks(
    blocks: ScoreBlocks, finished: Sequence[int], scoring: Scoring, anchors: Sequence[Query], items: Items
) -> None:
    """Read the next block and write the last one while a block is scored.

    The scorer runs in this thread, or in other processes; reading and writing each have a thread of their own. Only one
    finished block may wait to be written.
    """
    manifest, progress = blocks.manifest, scoring.progress
    done = len(finished)
    left = sorted(set(range(manifest.n_blocks)).difference(finished))
    pairs = manifest.n_items * manifest.n_anchors
    if pairs and not done:
        size = Estimate(len(items), len(anchors), pairs, bytes=pairs * np.dtype(scoring.dtype).itemsize)
        _log.info("%s", size.summary())
    progress.begin(blocks=manifest.n_blocks, pairs=pairs, blocks_done=done, pairs_done=manifest.pairs(finished))
    if not left:
        return
    what: dict[str, Any] = {"anchors": anchors, "dtype": scoring.dtype}
    there = functools.partial(_scoring_elsewhere, card=scoring.scorer.card, **what)
    here = _scoring(scoring.scorer, **what)
    executor = executor_for(scoring.executor, scoring.scorer, here=here, elsewhere=there, blocks_left=len(left))

    def store(block: int, scores: FloatArray) -> None:
        blocks.write(block, scores)
        progress.add_block(scores.size, workers=executor.workers)

    # However this ends, the executor is stopped first and what was scored is then still written.
    with (
        ThreadPoolExecutor(1, thread_name_prefix="adacur-write") as writer,
        contextlib.closing(executor.run(_Block(one, items.at(manifest.block(one))) for one in left)) as scored_blocks,
    ):
        writing: Future[None] | None = None
        try:
            for block, scores in scored_blocks:
                last, writing = writing, writer.submit(store, block.number, scores)
                # Names that live on into the next turn would keep a block in memory for nothing.
                del block, scores
                if last is not None:
                    last.result()
        except WorkersLost as error:
            raise ScorerFailed(f"{error} {_CONTINUES}") from error
        except ScorerError as error:
            if progress.blocks_done or writing is not None:
                error.args = (f"{error} {_CONTINUES}",)
            raise
        if writing is not None:
            writing.result()
