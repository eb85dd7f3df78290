"""An index in PyTerrier: pipelines, experiments, artifacts."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest

import adacur
from adacur import AdaCUR, AnchorIndex
from adacur.errors import NotTrusted, UnknownName
from adacur.extras.pyterrier import Adacur
from tests.editing import Edited
from tests.living_world import build, item, query, score

ITEMS = [item(number) for number in range(150)]
ANCHORS = [query(number) for number in range(24)]
TOPICS = pd.DataFrame(
    {"qid": ["7", "8", "9"], "query": ["a heavy ship", "an old red thing", "which thing is light?"], "lang": "en"}
)
COLUMNS = ["docno", "score", "rank", "iteration"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pyterrier") / "things.adacur"
    build(path, ITEMS, ANCHORS, first=["bm25"])
    return path


@pytest.fixture
def index(folder: Path) -> AnchorIndex:
    return adacur.load(folder, scorer=score)


def truth(text: str) -> dict[str, float]:
    return {item.id: own for item, own in zip(ITEMS, score([(text, item.text) for item in ITEMS]), strict=True)}


def backwards(docnos: list[str]) -> pt.Transformer:
    """A first stage that gives every query the same documents, the last of them first."""
    results = [
        (qid, text, docno, float(place), len(docnos) - 1 - place)
        for qid, text in zip(TOPICS["qid"], TOPICS["query"], strict=True)
        for place, docno in enumerate(docnos)
    ]
    return pt.Transformer.from_df(pd.DataFrame(results, columns=["qid", "query", "docno", "score", "rank"]))


def test_queries_retrieve_what_a_search_of_the_index_finds(index: AnchorIndex) -> None:
    found = Adacur(index, k=5, budget=40)(TOPICS)

    assert list(found.columns) == ["qid", "query", "lang", *COLUMNS]
    for _, topic in TOPICS.iterrows():
        rows = found[found["qid"] == topic["qid"]]
        hits = index.search(adacur.Query(topic["qid"], topic["query"]), k=5, budget=40)
        assert tuple(rows["docno"]) == hits.ids
        np.testing.assert_array_equal(rows["score"], hits.scores)
        assert list(rows["rank"]) == [0, 1, 2, 3, 4]
        assert list(rows["iteration"]) == [number - 1 for number in hits.rounds]
        assert set(rows["lang"]) == {"en"}


def test_results_of_a_first_stage_are_the_first_round(index: AnchorIndex) -> None:
    given = [item.id for item in ITEMS[40:48]]
    pipeline = backwards(given) >> Adacur(index, k=20, budget=20, method=AdaCUR(rounds=4))

    found = pipeline(TOPICS)

    for _, rows in found.groupby("qid"):
        # Four rounds of five: the five that rank highest, which lie last in the frame.
        assert set(rows["docno"][rows["iteration"] == 0]) == set(given[3:])
        assert len(rows) == 20
        assert (rows["iteration"].value_counts() == 5).all()
        expected = truth(rows["query"].iloc[0])
        assert list(rows["score"]) == [expected[docno] for docno in rows["docno"]]


def test_a_search_goes_beyond_the_documents_that_it_was_given(index: AnchorIndex) -> None:
    given = [item.id for item in ITEMS[:20]]

    found = (backwards(given) >> Adacur(index, k=5, budget=60))(TOPICS)

    assert not set(found["docno"]) <= set(given)
    for text, rows in found.groupby("query"):
        best = sorted(truth(str(text)).values(), reverse=True)[:5]
        np.testing.assert_allclose(rows["score"], best)


def test_documents_that_the_index_does_not_have_are_named(index: AnchorIndex) -> None:
    with pytest.raises(UnknownName):
        (backwards([ITEMS[0].id, "elsewhere"]) >> Adacur(index))(TOPICS)


@pytest.mark.parametrize("columns", [["qid", "query"], ["qid", "query", "docno", "score", "rank"]])
def test_no_queries_find_nothing_in_the_columns_of_something(index: AnchorIndex, columns: list[str]) -> None:
    found = Adacur(index)(pd.DataFrame(columns=columns))

    assert len(found) == 0
    assert list(found.columns) == ["qid", "query", *COLUMNS]


def test_a_frame_that_is_neither_queries_nor_results_is_refused(index: AnchorIndex) -> None:
    with pytest.raises(pt.validate.InputValidationError):
        Adacur(index)(pd.DataFrame({"docno": ["i1"], "text": ["a thing"]}))


def test_fused_documents_are_in_the_order_of_their_scores(index: AnchorIndex) -> None:
    found = Adacur(index, k=6, budget=40, first="bm25", fuse=0.8)(TOPICS)

    for text, rows in found.groupby("query", sort=False):
        assert rows["score"].is_monotonic_decreasing
        expected = truth(str(text))
        assert list(rows["exact"]) == [expected[docno] for docno in rows["docno"]]
    assert not (found["exact"] == found["score"]).any()


def test_the_folder_is_an_artifact_that_loads_as_a_transformer(folder: Path) -> None:
    loaded = pt.Artifact.load(str(folder), scorer=score, k=4, budget=30)

    assert isinstance(loaded, Adacur)
    assert isinstance(loaded, pt.Artifact)
    assert loaded.path == folder
    assert pt.inspect.artifact_type_format(loaded) == ("adacur_index", "adacur")
    assert len((loaded % 2)(TOPICS)) == 6


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the URL under which it is served."""
    root = tmp_path / "web"
    root.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=root))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield root, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_packed_index_is_the_current_version_and_loads_from_a_url(
    tmp_path: Path, web: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTERRIER_HOME", str(tmp_path / "home"))
    root, url = web
    changed = build(tmp_path / "changed.adacur", ITEMS[:60], ANCHORS[:8])
    Edited(changed).remove(["i3"])
    Edited(changed).add(ITEMS[60:70])
    packed = Adacur(changed, k=3, budget=20)

    packed.build_package(str(root / "index.tar.lz4"), verbose=False)
    loaded = pt.Artifact.from_url(f"{url}/index.tar.lz4", scorer=score, k=3, budget=20)

    pd.testing.assert_frame_equal(loaded(TOPICS), packed(TOPICS))
    assert adacur.store.verify(loaded.path).ok
    assert not [file for file in loaded.path.rglob("*") if file.name.endswith(".lock")]
    assert [version.name for version in (loaded.path / "versions").iterdir()] == [str(changed.version)]


def test_a_downloaded_artifact_does_not_choose_the_function_that_is_called(
    tmp_path: Path, web: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTERRIER_HOME", str(tmp_path / "home"))
    root, url = web
    built = build(tmp_path / "i.adacur", ITEMS[:20], ANCHORS[:3], scorer="tests.living_world:score")
    Adacur(built).build_package(str(root / "index.tar.lz4"), verbose=False)

    for opened in (pt.Artifact.from_url(f"{url}/index.tar.lz4"), pt.Artifact.load(str(tmp_path / "i.adacur"))):
        with pytest.raises(NotTrusted):
            opened(TOPICS)
    assert len(pt.Artifact.from_url(f"{url}/index.tar.lz4", scorer=score, k=1, budget=5)(TOPICS)) == 3
    assert len(pt.Artifact.load(str(tmp_path / "i.adacur"), allow_code=True, k=1, budget=5)(TOPICS)) == 3
