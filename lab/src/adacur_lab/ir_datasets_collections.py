"""Collections of ir_datasets."""

from __future__ import annotations

from typing import Any

import ir_datasets

from adacur.data import JudgedCollection
from adacur.data.file_rows import warn_left_out
from adacur.data.files import joined
from adacur.errors import FetchError, InputError, UnknownName
from adacur.records import Item, Query
from adacur.spelling import did_you_mean


def from_ir_datasets(dataset_id: str) -> JudgedCollection:
    """A dataset such as "beir/scifact/test", in memory; ir_datasets downloads it on first use.

    The item's text is title and text joined as in `read_beir`, or what ir_datasets calls the default text. Items
    without a word are left out, as `read_beir` leaves them out. Of several judgements of a pair, the highest grade
    counts.
    """
    try:
        dataset = ir_datasets.load(dataset_id)
    except KeyError:
        near = did_you_mean(dataset_id, list(ir_datasets.registry))
        raise UnknownName(f"ir_datasets knows no dataset {dataset_id!r}.{near}") from None
    absent = [part for part in ("docs", "queries", "qrels") if not dataset.has(part)]
    if absent:
        raise InputError(
            f"The dataset {dataset_id!r} has no {' and no '.join(absent)}. Name a part of it that has "
            "(`ir_datasets.registry` lists them), such as 'beir/scifact/test'."
        )
    try:
        everything = list(map(_item_of, dataset.docs_iter()))
        warn_left_out(dataset_id, [item.id for item in everything if not item.text.strip()])
        return JudgedCollection(
            name=dataset_id,
            items=[item for item in everything if item.text.strip()],
            queries=[Query(query.query_id, _text_of(query)) for query in dataset.queries_iter()],
            qrels=_qrels(dataset),
        )
    except (OSError, RuntimeError) as error:
        raise FetchError(
            f"ir_datasets could not provide {dataset_id!r}. Check that this machine is online. It said: {error}"
        ) from error


def _item_of(document: Any) -> Item:
    title = getattr(document, "title", None)
    if isinstance(title, str) and isinstance(getattr(document, "text", None), str):
        return Item(document.doc_id, joined((title, document.text)), {"title": title})
    return Item(document.doc_id, _text_of(document))


def _text_of(record: Any) -> str:
    return str(record.default_text() if hasattr(record, "default_text") else record.text)


def _qrels(dataset: Any) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for qrel in dataset.qrels_iter():
        grades = qrels.setdefault(qrel.query_id, {})
        grades[qrel.doc_id] = max(int(qrel.relevance), grades.get(qrel.doc_id, int(qrel.relevance)))
    return qrels
