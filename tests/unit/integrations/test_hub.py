"""An index on the hub: what goes up, what comes back, and what is refused, against a server that speaks its API."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants
import pytest
import yaml

import adacur
from adacur import AnchorIndex
from adacur.core.errors import (
    FetchError,
    IndexMismatch,
    InputError,
    NotTrusted,
    StorageUnavailable,
    WrongScorer,
)
from adacur.integrations.hub import from_pretrained, push_to_hub
from adacur.tuning import compress, decompress, tune
from tests.editing import Edited
from tests.living_world import Encoder, build, item, query, score

ITEMS = [item(number) for number in range(40)]
ANCHORS = [query(number) for number in range(6)]
REPO = "someone/things"


class Hub:
    """Repositories of commits, each a set of files; branches name the newest."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, bytes]] = {"0" * 40: {".gitattributes": b""}}
        self.branches: dict[str, str] = {}
        self.endpoint = ""

    def files(self, revision: str = "main") -> dict[str, bytes] | None:
        return self.commits.get(self.branches.get(revision, revision))

    def get(self, path: str) -> tuple[int, Any, dict[str, str]]:
        if path == f"/api/datasets/{REPO}":
            path += "/revision/main"
        if found := re.fullmatch(rf"/api/datasets/{REPO}/(revision|tree)/([^/]+)", path):
            files = self.files(found[2])
            if files is None:
                error = "RevisionNotFound" if self.branches else "RepoNotFound"
                return 404, {"error": "not there"}, {"X-Error-Code": error}
            if found[1] == "revision":
                return 200, {"id": REPO, "sha": self.branches.get(found[2], found[2])}, {}
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in files.items()
            ]
            return 200, entries, {}
        if found := re.fullmatch(rf"/datasets/{REPO}/resolve/([^/]+)/(.+)", path):
            content = (self.files(found[1]) or {})[found[2]]
            return 200, content, {"X-Repo-Commit": found[1], "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        return 404, {"error": f"no {path}"}, {"X-Error-Code": "RepoNotFound"}

    def post(self, path: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}, {}
        if path == "/api/repos/create":
            there = bool(self.branches)
            self.branches.setdefault("main", "0" * 40)
            return (409 if there else 200), {"url": f"{self.endpoint}/datasets/{REPO}"}, {}
        if found := re.fullmatch(rf"/api/datasets/{REPO}/branch/([^/]+)", path):
            there = found[1] in self.branches
            self.branches.setdefault(found[1], self.branches["main"])
            return (409 if there else 200), {}, {}
        if re.fullmatch(rf"/api/datasets/{REPO}/preupload/[^/]+", path):
            asked = json.loads(body)["files"]
            return (
                200,
                {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]},
                {},
            )
        if found := re.fullmatch(rf"/api/datasets/{REPO}/commit/([^/]+)", path):
            files = dict(self.files(found[1]) or {})
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "header" and line["value"].get("parentCommit") != self.branches[found[1]]:
                    return 412, {"error": "the branch has moved on"}, {}
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del files[line["value"]["path"]]
            oid = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
            self.commits[oid], self.branches[found[1]] = files, oid
            return (
                200,
                {"success": True, "commitOid": oid, "commitUrl": f"{self.endpoint}/datasets/{REPO}/commit/{oid}"},
                {},
            )
        return 404, {"error": f"no {path}"}, {}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub on loopback, with nothing on it, and a cache of its own."""
    made = Hub()

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content, headers = made.post(path, body) if self.command == "POST" else made.get(path)
            sent = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(sent))}.items():
                self.send_header(name, value)
            if not isinstance(content, bytes):
                self.send_header("Content-Type", "application/json")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(sent)

        do_GET = do_HEAD = do_POST = answer  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # What the variable HF_ENDPOINT sets when the library is imported.
    endpoint = made.endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def living(tmp_path: Path) -> Iterator[AnchorIndex]:
    """An index that was changed, with a version before its own still in the folder, since somebody reads it."""
    path = tmp_path / "living.adacur"
    index = build(path, ITEMS[:30], ANCHORS, first=["bm25", "dense"], encoder=Encoder())
    Edited(index).remove(["i3"])
    reader = adacur.load(path, scorer=score)
    Edited(index).add(ITEMS[30:])
    assert {version.name for version in (path / "versions").iterdir()} == {"2", "3"}
    yield index
    reader.close()


def fetched(repo: str | Path, **options: Any) -> AnchorIndex:
    return from_pretrained(repo, scorer=score, encoder=Encoder(), **options)


def told(index: AnchorIndex) -> list[tuple[str, float, int]]:
    return [(hit.id, hit.score, hit.round) for hit in index.search("a heavy ship", k=5, budget=20, first="bm25")]


def test_what_is_pushed_comes_back_as_the_same_index(hub: Hub, living: AnchorIndex) -> None:
    address = push_to_hub(living, REPO, license="cc-by-sa-4.0", token="hf_x")

    index = fetched(REPO)

    assert address == f"{hub.endpoint}/datasets/{REPO}/commit/{hub.branches['main']}"
    assert told(index) == told(living)
    assert (index.matrix == living.matrix).all()
    assert index.first_stages == living.first_stages
    assert adacur.index.verify(index.path).ok


def test_only_what_the_current_version_needs_goes_up(hub: Hub, living: AnchorIndex) -> None:
    push_to_hub(living, REPO, token="hf_x")

    names = set(hub.files() or {})
    assert not [name for name in names if name.endswith((".lock", ".partial", "-wal", "-shm"))]
    assert {name.split("/")[1] for name in names if name.startswith("versions/")} == {str(living.version)}
    # The first stages of the first build are those of a version that is gone.
    assert not [name for name in names if name.startswith("first/")]
    assert {"manifest.json", "part.json", "items.sqlite", "pt_meta.json", "README.md"} <= names


def test_a_second_push_removes_what_is_no_longer_needed_and_nothing_of_others(hub: Hub, living: AnchorIndex) -> None:
    push_to_hub(living, REPO, token="hf_x")
    first = hub.branches["main"]
    hub.commits[first]["figure.png"] = b"somebody's own"
    Edited(living).compact()

    push_to_hub(living, REPO, token="hf_x")

    names = set(hub.files() or {})
    assert "figure.png" in names
    assert {name.split("/")[1] for name in names if name.startswith("versions/")} == {str(living.version)}
    assert "part.json" not in names
    # The commit before stays what it was.
    assert told(fetched(REPO, revision=first)) == told(living)
    assert fetched(REPO).version == living.version


def test_a_revision_pins_what_is_opened(hub: Hub, tmp_path: Path) -> None:
    index = build(tmp_path / "i.adacur", ITEMS[:20], ANCHORS)
    push_to_hub(index, REPO, revision="v1", token="hf_x")
    Edited(index).add(ITEMS[20:25])
    push_to_hub(index, REPO, token="hf_x")

    assert len(fetched(REPO, revision="v1")) == 20
    assert len(fetched(REPO)) == 25
    # What was fetched once is there without the hub.
    hub.branches.clear()
    hub.commits.clear()
    assert len(fetched(REPO, revision="v1", local_files_only=True)) == 20


def test_a_downloaded_index_can_be_changed_in_a_folder_of_its_own(
    hub: Hub, living: AnchorIndex, tmp_path: Path
) -> None:
    push_to_hub(living, REPO, token="hf_x")

    own = fetched(REPO, folder=tmp_path / "own.adacur")
    Edited(own).remove(["i5"])

    assert adacur.index.verify(tmp_path / "own.adacur").ok
    assert len(fetched(REPO)) == len(own) + 1
    with pytest.raises(IndexMismatch, match="in use already"):
        fetched(REPO, folder=tmp_path / "own.adacur")


def test_a_downloaded_index_stays_the_commit_that_it_is(hub: Hub, tmp_path: Path) -> None:
    push_to_hub(build(tmp_path / "i.adacur", ITEMS, [query(n) for n in range(20)]), REPO, token="hf_x")
    index = fetched(REPO)
    files = sorted(index.path.rglob("*"))

    for change in (
        lambda: Edited(index).remove(["i5"]),
        Edited(index).compact,
        lambda: compress(index),
        lambda: decompress(index),
    ):
        with pytest.raises(InputError, match=r"opened for reading.*folder="):
            change()
    tune(index, k=2, budget=10, quick=True)

    assert index.tunings
    assert sorted(index.path.rglob("*")) == files
    assert not fetched(REPO).tunings


def test_the_card_says_what_the_index_is(hub: Hub, living: AnchorIndex) -> None:
    push_to_hub(living, REPO, license="cc-by-4.0", about="Things | of all colours.", token="hf_x")

    card = (hub.files() or {})["README.md"].decode()
    _, front, body = card.split("---\n", 2)
    facts = yaml.safe_load(front)
    assert facts["license"] == "cc-by-4.0"
    assert "adacur" in facts["tags"]
    for told_there in (
        "# things",
        "Things | of all colours.",
        "| items | 39 |",
        "| anchor queries | 6 |",
        "score · function",
    ):
        assert told_there in body
    assert f'from_pretrained("{REPO}")' in body


@pytest.mark.parametrize(
    "others",
    [{"data.parquet": b"rows"}, {"data.csv": b"", "manifest.json": b'{"parts": ["a"]}', "parts/a": b"rows"}],
    ids=["no manifest", "a manifest of its own"],
)
def test_a_repository_of_other_files_is_not_overwritten(hub: Hub, tmp_path: Path, others: dict[str, bytes]) -> None:
    index = build(tmp_path / "i.adacur", ITEMS, ANCHORS)
    hub.branches["main"] = "1" * 40
    hub.commits["1" * 40] = {**others, "README.md": b"mine"}

    with pytest.raises(IndexMismatch, match="other"):
        push_to_hub(index, REPO, token="hf_x")
    assert hub.files() == {**others, "README.md": b"mine"}


def test_a_push_does_not_undo_what_another_pushed_meanwhile(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(tmp_path / "i.adacur", ITEMS, ANCHORS)
    push_to_hub(index, REPO, token="hf_x")
    asked = hub.get

    def and_then_another_pushes(path: str) -> tuple[int, Any, dict[str, str]]:
        answer = asked(path)
        if "/tree/" in path:
            hub.commits["2" * 40] = {**(hub.files() or {}), "note.txt": b"new"}
            hub.branches["main"] = "2" * 40
        return answer

    monkeypatch.setattr(hub, "get", and_then_another_pushes)
    with pytest.raises(StorageUnavailable, match="cannot be pushed"):
        push_to_hub(index, REPO, token="hf_x")
    assert hub.branches["main"] == "2" * 40


def test_hidden_files_of_a_repository_are_not_fetched(hub: Hub, tmp_path: Path) -> None:
    push_to_hub(build(tmp_path / "i.adacur", ITEMS, ANCHORS), REPO, token="hf_x")
    # Scores would be read from there.
    elsewhere = b'{"url": "s3://somebody/else", "objects": {}}'
    hub.commits[hub.branches["main"]] |= {".object-store.json": elsewhere, "scores.zarr/.object-store.json": elsewhere}

    index = fetched(REPO)

    assert told(index)
    assert not [file for file in index.path.rglob(".*") if file.is_file()]


def test_the_wrong_scorer_is_refused_as_by_load(hub: Hub, living: AnchorIndex) -> None:
    push_to_hub(living, REPO, token="hf_x")

    with pytest.raises(WrongScorer):
        from_pretrained(REPO, scorer=lambda pairs: [float(len(text)) for _, text in pairs])


def test_a_download_does_not_choose_the_function_that_is_called(hub: Hub, tmp_path: Path) -> None:
    built = build(tmp_path / "i.adacur", ITEMS, ANCHORS, scorer="tests.living_world:score")
    push_to_hub(built, REPO, token="hf_x")

    for folder in (None, tmp_path / "copied.adacur"):
        with pytest.raises(NotTrusted, match=r"'tests\.living_world:score'"):
            from_pretrained(REPO, folder=folder).search("a thing", k=1, budget=5)
    # The copy is no better than the download.
    with pytest.raises(NotTrusted, match=r"'tests\.living_world:score'"):
        adacur.load(tmp_path / "copied.adacur").search("a thing", k=1, budget=5)
    assert from_pretrained(REPO, scorer="tests.living_world:score").search("a thing", k=1, budget=5)
    assert from_pretrained(REPO, trust=True).search("a thing", k=1, budget=5)


def test_what_is_not_there_is_told(hub: Hub, living: AnchorIndex) -> None:
    with pytest.raises(FetchError, match=f"{REPO} cannot be fetched"):
        from_pretrained(REPO)
    push_to_hub(living, REPO, token="hf_x")
    with pytest.raises(FetchError, match=f"{REPO} at v9 cannot be fetched"):
        from_pretrained(REPO, revision="v9")
    with pytest.raises(StorageUnavailable, match="pushed"):
        push_to_hub(living, "no/such/name", token="hf_x")


def test_an_index_in_memory_and_a_path_are_pushed_too(hub: Hub, tmp_path: Path) -> None:
    built = build(tmp_path / "i.adacur", ITEMS, ANCHORS)
    held = AnchorIndex.from_arrays(items=ITEMS, anchor_queries=ANCHORS, scores=built.matrix.T, scorer=score)

    for index in (held, tmp_path / "i.adacur"):
        push_to_hub(index, REPO, token="hf_x")
        assert (fetched(REPO).matrix == built.matrix).all()
