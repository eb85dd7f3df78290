"""Changing an index: a change is a new version, written next to the current one and switched to in one step."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import BoolArray
from adacur.data import ItemFile, Passages
from adacur.errors import DuplicateId, EmptyInput, InputError, UnknownName
from adacur.protocols import Scorer, ScorerCard
from adacur.records import Item, Query, as_queries, check_item, check_texts, repeats
from adacur.scores import check_grid
from adacur.store.anchor_table import distinct_anchors
from adacur.store.database import digest_given, metadata_as_json
from adacur.store.executor import On
from adacur.store.folder import IndexFolder
from adacur.store.manifest import Origin
from adacur.store.new_version import NewVersion
from adacur.store.versions import prune_locked
from adacur.store.writing import folder_at, full_disk_reported, locked

_log = logging.getLogger("adacur.change")
_IDS_SHOWN = 3

OpenScorer = Callable[[IndexFolder], tuple[Scorer, int]]
"""The scorer of an index, recognised by the scores of this version, and how many calls that took."""


@dataclass(frozen=True, slots=True)
class Change:
    """The result of an edit: the new `version`, its items and anchor queries, and the scorer `calls` for new scores.

    Further calls went into `recognising` the scorer. `lost` names what the old version had and must be made again:
    "compressed features", "tunings"; the latter were for the pairs of k and budget in `tuned_for`.
    """

    version: int
    items: int
    anchors: int
    calls: int
    recognising: int = 0
    lost: tuple[str, ...] = ()
    tuned_for: tuple[tuple[int, int], ...] = ()


@contextlib.contextmanager
def editing(
    path: str | Path,
    *,
    scorer: OpenScorer | None = None,
    check_can_grow: Callable[[IndexFolder], None] = lambda _: None,
    executor: On = None,
    progress: bool = False,
) -> Iterator[Edit]:
    """Hold an index against other writers and begin an edit; what a crash left behind is removed first.

    - scorer, check_can_grow: asked before anything is paid for, where there is something to score or items to add.
    - executor: where new pairs are scored.
    - progress: show bars.
    """
    index = folder_at(path)
    # Before locking, which would create a folder at a path where there is no index.
    IndexFolder.open(index).release()
    with locked(index):
        prune_locked(index)
        new = NewVersion(IndexFolder.open(index), executor=executor, progress=progress)
        edit = Edit(new, scorer=scorer, check_can_grow=check_can_grow)
        safe = "the index is as it was, and scores that were paid for are stored"
        try:
            with full_disk_reported(index, lambda: safe, what="change"):
                yield edit
        finally:
            edit._is_over = True
            new.current.release()
            prune_locked(index, unused_parts=new.compacted)


class Edit:
    """The changes of an index that are made together; `change` describes the result after the `with` block.

    Readers see nothing of the new version before its end.
    """

    def __init__(
        self, new: NewVersion, *, scorer: OpenScorer | None, check_can_grow: Callable[[IndexFolder], None]
    ) -> None:
        self.new = new
        self._index = new.current.path
        self._open_scorer = scorer
        self._check_can_grow = check_can_grow
        self._scorer: Scorer | None = None
        self._is_over = False
        self._change: Change | None = None

    @property
    def change(self) -> Change:
        """The result and its cost; after the `with` block."""
        if self._change is None:
            raise InputError("edit.change is known after the `with` block, where no error ended it.")
        return self._change

    def made(self, change: Change) -> None:
        """Keep the result."""
        self._change = change

    def add(self, items: Iterable[Item] | str | Path) -> None:
        """Add items, at one scorer call per anchor query each; an interrupted call continues when it is repeated.

        A path is read by the fields that the index was built with.
        """
        self._add(self._split(self._given(items)))

    def _add(self, items: Iterable[Item]) -> None:
        new, view = self.new, self._view()
        n_items, n_anchors = self._check_new_items(items), len(view.anchor_queries)
        self._check_can_grow(new.current)
        if n_anchors:
            new.score(digest_given(items), items, view.anchor_queries, self._opened_scorer(n_items, n_anchors))
        else:
            _log_calls(n_items, 0)
            new.save(items, (), lambda *_: np.empty((n_items, 0)), dtype=view.manifest.dtype)
        new.new_ids = new.new_ids | {item.id for item in items}
        new.has_documents = new.has_documents or any(item.document != item.id for item in items)

    def replace(self, items: Iterable[Item] | str | Path) -> None:
        """Give items of the index new texts and metadata, at the cost of adding them.

        A document is replaced as a whole, with all its passages; replacing only some of them is refused.
        """
        given = self._given(items)
        _check_all_passages(map(check_item, given), self._documents())
        items = self._split(given)
        # Repeated ids are refused when they are added; passages of one document are not repetitions.
        documents = [check_item(item).document for item in items]
        names = [item.id for item in items if item.document == item.id]
        whole = set(names)
        passages = dict.fromkeys(name for name in documents if name not in whole)
        with self.new.undone_on_error():
            self._remove([*names, *passages], replaced=True)
            self._add(items)

    def remove(self, ids: Iterable[str]) -> None:
        """Remove items by their ids, or documents with all their passages by theirs; one item must stay.

        Calls no scorer.
        """
        self._remove(ids, replaced=False)

    def _remove(self, ids: Iterable[str], *, replaced: bool) -> None:
        names, items = _distinct(ids, "item"), self._view().items
        if self.new.has_documents:
            names = _whole_documents(names, self._documents())
        there = items.known_positions(names)
        if missing := [id_ for id_ in names if id_ not in there]:
            remedy = " Use add for new items." if replaced else ""
            raise UnknownName(f"Not in {self._index}: {_shown(missing)}.{remedy}")
        if len(names) == len(items) and not replaced:
            raise EmptyInput(f"An index must keep an item; these are all {len(names)} of {self._index}.")
        self.new.remove(items=[there[id_] for id_ in names])
        self.new.new_ids = self.new.new_ids - set(names)

    def add_anchors(self, queries: Iterable[Query | str]) -> None:
        """Add anchor queries, at one scorer call per item each; an interrupted call continues when it is repeated."""
        queries, view = self._check_new_anchors(queries), self._view()
        scorer = self._opened_scorer(len(view.items), len(queries))
        self.new.score(view.manifest.items_digest, (), queries, scorer, there=view.items)

    def add_anchor_scores(
        self,
        queries: Iterable[Query | str],
        scores: Any,
        *,
        exact: BoolArray | None = None,
        card: ScorerCard | None = None,
    ) -> None:
        """Add anchor queries whose scores are known, without a scorer call.

        - scores: (queries, items), items in the order of the index.
        - exact: of the same shape, false where a score was predicted; the index remembers it.
        - card: the scorer whose index this becomes where it has no anchor queries.
        """
        new, view = self._check_new_anchors(queries), self._view()
        items = view.items
        if card is not None and not view.anchor_queries:
            self.new.card = card
        values = np.asarray(scores)
        if values.shape != (len(new), len(items)):
            raise InputError(f"scores must have shape (queries, items), {(len(new), len(items))}; got {values.shape}.")
        values = check_grid(values, new, items)
        cells = None if exact is None else np.asarray(exact, dtype=np.bool_)
        if cells is not None and cells.shape != values.shape:
            raise InputError(f"exact must have the shape of the scores, {values.shape}; got {cells.shape}.")
        dtype = "float64" if view.manifest.dtype == "float64" else "float32"
        rows = np.ascontiguousarray(values.T, dtype=dtype)
        given: dict[str, Any] = {"dtype": dtype, "exact": None if cells is None else cells.T, "there": items}
        self.new.save((), new, lambda start, stop: rows[start:stop], **given)

    def drop_anchors(self, ids: Iterable[str], *, replaced: bool = False) -> None:
        """Remove anchor queries by their ids; one must stay, unless they are to be `replaced`. Calls no scorer."""
        names = _distinct(ids, "anchor query")
        there = {query.id: column for column, query in enumerate(self._view().anchor_queries)}
        if missing := [id_ for id_ in names if id_ not in there]:
            raise UnknownName(f"Not among the anchor queries of {self._index}: {_shown(missing)}.")
        if len(names) == len(there) and not replaced:
            raise EmptyInput(f"An index must keep an anchor query; these are all {len(names)} of {self._index}.")
        self.new.remove(anchors=[there[id_] for id_ in names])

    def compact(self) -> None:
        """Copy the live scores into one part and delete what no version in use needs; tunings and the like stay."""
        self._view()
        self.new.compact()

    def _view(self) -> IndexFolder:
        """The new version so far."""
        if self._is_over:
            raise InputError("This edit is over. Start another: with index.edit() as edit: …")
        return self.new.view()

    def _given(self, items: Iterable[Item] | str | Path) -> Iterable[Item]:
        """Items that can be read several times."""
        if isinstance(items, str | Path):
            return ItemFile(items, id_field=self._origin.id_field, text_fields=self._origin.text_fields)
        if isinstance(items, Item):
            raise InputError("Expected a list of items and got one. Wrap it in a list: [item].")
        return list(items) if iter(items) is items else items

    def _split(self, items: Iterable[Item]) -> Iterable[Item]:
        """Split into passages as the build did, if it did."""
        return items if self._origin.passages is None else Passages(items, self._origin.passages)

    @property
    def _origin(self) -> Origin:
        return self.new.current.manifest.origin or Origin()

    def _check_new_items(self, items: Iterable[Item]) -> int:
        """Refuse bad items, repeated ones, and ids that are in the index; how many items there are."""
        ids: list[str] = []
        for item in items:
            check_item(item)
            metadata_as_json(item)
            ids.append(item.id)
        if not ids:
            raise EmptyInput("There are no items. Give at least one.")
        if len(set(ids)) < len(ids):
            raise DuplicateId(f"Item ids must be unique; {repeats(ids)} more than once.")
        if known := list(self._view().items.known_positions(ids)):
            raise DuplicateId(
                f"Ids of new items must be new; already in {self._index}: {_shown(known)}. Use replace to change the "
                "texts of items."
            )
        named = [item.document for item in items if item.document != item.id]
        if self.new.has_documents or named:
            there = self._documents() if self.new.has_documents else self._view().items.known_positions(named)
            if split := sorted({item.document for item in items} & set(there)):
                raise DuplicateId(
                    f"All passages of a document must come together, and {self._index} has some of {_shown(split)} "
                    "already. Replace a document with all its passages."
                )
        return len(ids)

    def _check_new_anchors(self, queries: Iterable[Query | str]) -> list[Query]:
        """Refuse anchor queries that come twice or are in the index."""
        new = list(distinct_anchors(as_queries(queries)))
        there = {query.id for query in self._view().anchor_queries}
        if known := [query.id for query in new if query.id in there]:
            raise DuplicateId(f"Ids of new anchor queries must be new; already in {self._index}: {_shown(known)}.")
        return new

    def _documents(self) -> dict[str, list[str]]:
        """The ids of the items of every document of the new version so far."""
        return _items_of_documents(self._view().items)

    def _opened_scorer(self, n_items: int, n_anchors: int) -> Scorer:
        """The scorer of the index, recognised once; called last, when all else has been checked."""
        if self._scorer is None:
            assert self._open_scorer is not None
            self._scorer, recognising = self._open_scorer(self.new.current)
            self.new.recognising += recognising
        _log_calls(n_items, n_anchors)
        return self._scorer


def _log_calls(n_items: int, n_anchors: int) -> None:
    _log.info(f"{n_items:,} items × {n_anchors:,} anchor queries: {n_items * n_anchors:,} scorer calls.")


def _distinct(ids: Iterable[str], what: str) -> list[str]:
    if isinstance(ids, str):
        raise InputError(f"Expected a list of ids and got one. Wrap it in a list: [{ids!r}].")
    names = list(ids)
    if not names:
        raise EmptyInput(f"There are no ids. Name at least one {what}.")
    if not all(isinstance(id_, str) for id_ in names):
        raise InputError("Ids must be strings.")
    for id_ in names:
        check_texts(what.capitalize(), id_, "")
    if len(set(names)) < len(names):
        raise DuplicateId(f"Each {what} must be named once; {repeats(names)} more than once.")
    return names


def _shown(ids: Sequence[str]) -> str:
    some = ", ".join(repr(id_) for id_ in ids[:_IDS_SHOWN])
    return some if len(ids) <= _IDS_SHOWN else f"{some} and {len(ids) - _IDS_SHOWN} more"


def _items_of_documents(items: Iterable[Item]) -> dict[str, list[str]]:
    """The ids of the items of every document."""
    ids: dict[str, list[str]] = {}
    for item in items:
        ids.setdefault(item.document, []).append(item.id)
    return ids


def _whole_documents(names: Sequence[str], documents: Mapping[str, Collection[str]]) -> list[str]:
    """The ids of these items, and of the items of these documents; refuses a part of a document."""
    ids = list(dict.fromkeys(id_ for name in names for id_ in documents.get(name, (name,))))
    going = set(ids)
    for document, passages in documents.items():
        if going.isdisjoint(passages) or going.issuperset(passages):
            continue
        part = next(id_ for id_ in passages if id_ in going)
        raise InputError(
            f"A document is changed or removed as a whole; {part!r} is one of {len(passages)} passages of "
            f"{document!r}. Name the document."
        )
    return ids


def _check_all_passages(given: Iterable[Item], documents: Mapping[str, Collection[str]]) -> None:
    """Refuse some of the passages that a document has, and no others: the rest would go without a word."""
    passages = _items_of_documents(item for item in given if item.document != item.id)
    for document, ids in passages.items():
        there = documents.get(document, ())
        if set(ids) < set(there):
            raise InputError(
                f"A document is replaced as a whole, and of the {len(there)} passages of {document!r} only {len(ids)} "
                f"came, such as {ids[0]!r}. Give all of them, or the whole text under the id of the document."
            )
