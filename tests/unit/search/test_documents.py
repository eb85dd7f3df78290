"""Items that are passages of documents: k counts documents, the budget counts passages, edits keep them whole."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Budget, Item
from adacur.as_json import as_json
from adacur.errors import DuplicateId, InputError, UnknownName
from adacur.search import plan_search
from adacur.search.rounds import search_iter
from adacur.store import IndexFolder, read_manifest
from tests.stopping import Stopping

WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "glade", "heath", "islet", "jetty"]
DOCUMENTS = {
    f"d{n}": [" ".join(WORDS[(n + at + i) % 10] for i in range(3)) + f" n{n}" for at in range(4)] for n in range(9)
}
ITEMS = [
    Item(f"{name}#{at}", text, {"document": name}) for name, texts in DOCUMENTS.items() for at, text in enumerate(texts)
] + [Item("alone", "amber jetty alone")]
ANCHORS = [f"{one} {two}" for one, two in itertools.islice(itertools.combinations(WORDS, 2), 12)]


def score(pairs):
    """Words in common, and a part that differs from passage to passage."""
    return [
        10.0 * len(set(query.split()) & set(item.split())) + zlib.crc32(item.encode()) / 2**29 for query, item in pairs
    ]


@pytest.fixture(name="index", scope="module")
def index_fixture(tmp_path_factory) -> AnchorIndex:
    path = tmp_path_factory.mktemp("documents") / "index"
    return adacur.build(ITEMS, ANCHORS, scorer=score, path=path, progress=False, tune=False)


def best_documents(query: str, k: int) -> list[tuple[str, str]]:
    scores = score([(query, item.text) for item in ITEMS])
    best: dict[str, tuple[float, str]] = {}
    for value, item in zip(scores, ITEMS, strict=True):
        best[item.document] = max(best.get(item.document, (-np.inf, "")), (value, item.id))
    ranked = sorted(best.items(), key=lambda one: -one[1][0])[:k]
    return [(document, passage) for document, (_, passage) in ranked]


@pytest.mark.parametrize("method", ["gaussian", "adacur", "anncur", "rerank", "exact"])
def test_a_budget_for_every_item_finds_the_exact_best_documents(index, method) -> None:
    budget = {} if method == "exact" else {"budget": len(ITEMS)}
    hits = index.search("birch delta glade", 9, method=method, **budget)

    assert [(hit.document, hit.id) for hit in hits] == best_documents("birch delta glade", 9)
    assert hits.trace.calls == len(ITEMS)


def test_the_budget_counts_passages_and_no_document_comes_twice(index) -> None:
    hits = index.search("birch delta", 5, budget=20)

    assert hits.trace.calls == 20
    assert len({hit.document for hit in hits}) == len(hits) <= 5
    assert all(hit.item.text == dict(zip(hits.ids, hits.items, strict=True))[hit.id].text for hit in hits)


def test_hits_show_the_passage_and_name_the_document(index) -> None:
    (hit, *_) = index.search("birch delta", 1, budget=len(ITEMS))
    rows = as_json(index.search("amber jetty alone", 2, budget=len(ITEMS)))["hits"]

    assert hit.id.startswith(f"{hit.document}#")
    assert hit.item.id == hit.id
    assert "document" not in rows[0]
    assert rows[0]["id"] == "alone"
    assert rows[1]["document"] == rows[1]["id"].partition("#")[0]


def test_hits_of_every_round_and_of_batches_count_documents(index) -> None:
    plan = plan_search(index, 4, budget=30, method=Stopping(rounds=3, stop_when=0.999999))

    for (hits,) in search_iter(plan, ["cedar ember"], 4):
        assert len({hit.document for hit in hits}) == len(hits)
    together = index.search(["cedar ember", "fjord heath"], 4, budget=30)
    assert [hits.ids for hits in together] == [index.search(hits.query, 4, budget=30).ids for hits in together]


def test_effort_is_refused_where_k_counts_documents(index) -> None:
    with pytest.raises(InputError, match="counts documents"):
        index.search("w1", 3, effort="auto")


def test_tokens_and_documents_go_together(index) -> None:
    hits = index.search("birch delta", 3, budget=Budget(tokens=600))

    assert hits.trace.tokens <= 600
    assert len({hit.document for hit in hits}) == 3


def test_in_memory_documents_count_too() -> None:
    index = AnchorIndex.from_items(ITEMS, scorer=score, progress=False)

    assert [hit.document for hit in index.search("birch delta glade", 9, budget=len(ITEMS))] == [
        document for document, _ in best_documents("birch delta glade", 9)
    ]


@pytest.fixture(name="editable")
def editable_fixture(tmp_path) -> AnchorIndex:
    return adacur.build(ITEMS, ANCHORS[:4], scorer=score, path=tmp_path / "index", progress=False, tune=False)


def documents_in(index: AnchorIndex) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in index.items:
        counts[item.document] = counts.get(item.document, 0) + 1
    return counts


def test_the_folder_says_how_many_documents_it_has(editable) -> None:
    assert read_manifest(editable.path).documents == 10
    with editable.edit(progress=False) as edit:
        edit.remove(["d0", "alone"])
    assert IndexFolder.open(editable.path).manifest.documents == 8


def test_removing_a_document_removes_all_its_passages(editable) -> None:
    with editable.edit(progress=False) as edit:
        edit.remove(["d3"])

    assert "d3" not in documents_in(editable)
    assert len(editable) == len(ITEMS) - 4
    assert all(hit.document != "d3" for hit in editable.search("n3 amber", 9, budget=40))


def test_replacing_a_document_replaces_all_its_passages(editable) -> None:
    new = [Item("d3#0", "amber new", {"document": "d3"}), Item("d3#9", "birch new", {"document": "d3"})]
    with editable.edit(progress=False) as edit:
        edit.replace(new)

    assert documents_in(editable)["d3"] == 2
    assert {item.id for item in editable.items if item.document == "d3"} == {"d3#0", "d3#9"}
    with editable.edit(progress=False) as edit:
        edit.replace([Item("d3", "one text now")])
    assert documents_in(editable)["d3"] == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda edit: edit.remove(["d3#1"]), "d3"),
        (lambda edit: edit.remove(["d3#0", "d3#1", "d3#2"]), "d3"),
        (lambda edit: edit.replace([Item("d3#1", "other", {"document": "d3"})]), "d3"),
        (lambda edit: edit.add([Item("d3#7", "more", {"document": "d3"})]), "d3"),
        (lambda edit: edit.add([Item("alone#1", "more", {"document": "alone"})]), "alone"),
    ],
)
def test_a_version_never_has_half_a_document(editable, change, named) -> None:
    before = documents_in(editable)

    with pytest.raises((InputError, DuplicateId), match=named), editable.edit(progress=False) as edit:
        change(edit)
    assert documents_in(editable) == before
    assert editable.version == 1


def test_all_passages_by_name_are_a_document(editable) -> None:
    with editable.edit(progress=False) as edit:
        edit.remove([f"d3#{at}" for at in range(4)])

    assert "d3" not in documents_in(editable)


def test_a_document_that_is_not_there_cannot_be_replaced(editable) -> None:
    with pytest.raises(UnknownName, match="d77"), editable.edit(progress=False) as edit:
        edit.replace([Item("d77#1", "text", {"document": "d77"})])


def test_edits_split_as_the_build_did(tmp_path) -> None:
    long = " ".join(WORDS * 12)
    items = [Item("long", long), *(Item(f"s{n}", f"{WORDS[n]} short") for n in range(9))]
    index = adacur.build(items, ANCHORS[:4], scorer=score, path=tmp_path / "i", passages=40, progress=False, tune=False)

    assert documents_in(index)["long"] > 2
    with index.edit(progress=False) as edit:
        edit.add([Item("other", long + " more")])
        edit.replace([Item("long", "amber short")])
    assert documents_in(index)["other"] > 2
    assert documents_in(index)["long"] == 1
    again = adacur.load(tmp_path / "i", scorer=score)
    assert again.search("amber", 1, budget=len(again))[0].document in ("long", "s0", "other")


def test_a_compacted_index_keeps_its_documents(editable) -> None:
    with editable.edit(progress=False) as edit:
        edit.remove(["d0"])
    with editable.edit(progress=False) as edit:
        edit.compact()

    assert IndexFolder.open(editable.path).manifest.documents == 9
    assert [hit.document for hit in editable.search("birch delta glade", 3, budget=len(editable))] == [
        document for document, _ in best_documents("birch delta glade", 4) if document != "d0"
    ][:3]


def test_a_filter_names_documents_whether_they_have_passages_or_are_one(index) -> None:
    hits = index.search("amber jetty", 9, budget=len(ITEMS), filter={"document": ["d3", "alone"]})

    assert {hit.document for hit in hits} == {"d3", "alone"}
    assert hits.trace.calls == 5
    with pytest.raises(UnknownName, match=r"'d3'.*'document'"):
        index.search("amber jetty", 9, budget=len(ITEMS), filter={"d3", "alone"})


@pytest.mark.parametrize("value", [{"a": 1}, [[1]], [{"a": 1}]])
def test_a_filter_by_values_that_cannot_be_compared_is_refused(index, value) -> None:
    with pytest.raises(InputError, match="texts and numbers"):
        index.search("a", k=1, budget=2, filter={"document": value})
