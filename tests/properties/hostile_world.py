"""Index folders as an attacker would hand them over, each used as people use an index, under an audit hook.

Run as a program: `python -m tests.properties.hostile_world INDEX SANDBOX TRIES`. SANDBOX becomes the current folder,
with victims and an importable module in it; what was touched, imported, called or contacted is printed as JSON.

Every target lies in the sandbox or is not there, so that a defect that these folders find harms nobody's files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.editing import Edited

SOURCES = (
    *("evil:score", "wiki.evil:score", "wiki.first.evil:score", "antigravity:fly", "this:s", "turtledemo.clock:main"),
    *("os:environ.update", "sys:path.extend", "sys:modules.update", "sys:exit", "os:system", "builtins:exec"),
    *("http://127.0.0.1:9/rerank", "https://127.0.0.1:9/", "HTTP://127.0.0.1:9", "file:///etc/passwd", "s3://b/x"),
    *(
        "wiki/model",
        "./wiki/model",
        "../sandbox/wiki/model",
        "{sandbox}/wiki/model",
        "model",
        "//127.0.0.1/share/model",
    ),
    *("\\\\127.0.0.1\\share", "", ".", "..", "evil.py", "evil", "\0", "\x1b[31m", "a" * 5000, "wiki:first", "x:y:z"),
)
PATHS = (
    *(
        "..",
        "../victim",
        "{sandbox}/victim",
        "parts/../../victim",
        "parts/..",
        "parts/.",
        "/no-such-folder-of-tests",
        "",
        "./../victim",
        "victim",
    ),
    *(
        "parts/../../sandbox/victim",
        "parts//victim",
        "parts\\..\\..\\victim",
        "versions",
        "C:\\victim",
        "parts/a/../..",
        "\0",
    ),
    *("first", "parts", "parts/", "parts/x/", "~", "parts/\n", "parts/nothing"),
)
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")
WATCHED = ("evil", "wiki", "antigravity", "this", "turtledemo")
KINDS = ("source", "parts", "stale", "link") * 2 + ("encoder", "checksums", "pickle", "sqlite")
SEEN: list[str] = []
ALLOWED: list[str] = []
WATCHING = False


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what an index folder must not bring about."""
    if not WATCHING:
        return
    if event == "import" and str(arguments[0]).split(".")[0] in WATCHED:
        SEEN.append(f"import {arguments[0]}")
    elif event in ("socket.connect", "socket.getaddrinfo", "os.system", "subprocess.Popen", "os.exec", "os.fork"):
        SEEN.append(f"{event} {arguments!r}"[:200])
    elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        mode, flags = arguments[1], arguments[2]
        writes = any(sign in (mode or "") for sign in "wax+") or (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes:
            _note(event, arguments[0])
        elif Path(os.fsdecode(arguments[0])).resolve().name == "secret.txt":
            SEEN.append(f"read {arguments[0]!r}")
    elif event in (
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.mkdir",
        "os.link",
        "os.symlink",
        "os.truncate",
        "shutil.rmtree",
    ):
        for path in arguments[: 2 if event in ("os.rename", "os.link") else 1]:
            # Inside a tree that is being removed, names are relative to an open folder.
            if isinstance(path, str | os.PathLike) and os.path.isabs(path):
                _note(event, path)


def _note(event: str, path: Any) -> None:
    place = Path(os.fsdecode(path)).resolve()
    if not any(place.is_relative_to(root) for root in ALLOWED):
        SEEN.append(f"{event} {place}")


def snapshot(folder: Path, *, without: str) -> dict[str, str]:
    """What lies in a folder: names and digests."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
        if path.relative_to(folder).parts[0] != without and "__pycache__" not in path.parts
    }


def manifests(index: Path) -> list[Path]:
    return [
        *sorted(index.glob("versions/*/manifest.json")),
        *index.glob("parts/*/manifest.json"),
        index / "manifest.json",
    ]


def _edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(file.read_bytes())
    change(content)
    file.write_text(json.dumps(content))


class _Evil:
    """Imports a module where a pickle of it is read."""

    def __reduce__(self) -> Any:
        return __import__, ("evil",)


def tamper(index: Path, sandbox: Path, rng: np.random.Generator) -> str:
    """Do to a folder what an attacker would; what that was."""

    def one(choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    kind = one(
        (
            "source",
            "source",
            "parts",
            "parts",
            "stale",
            "link",
            "link",
            "encoder",
            "checksums",
            "pickle",
            "sqlite",
        )
    )
    if kind == "source":
        source = one(SOURCES).replace("{sandbox}", str(sandbox))
        for file in manifests(index):
            if "scorer" in json.loads(file.read_bytes()):
                _edit(file, lambda content: content["scorer"].update(source=source, weights=None))
        return f"source {source!r}"
    if kind == "parts":
        path, file = one(PATHS).replace("{sandbox}", str(sandbox)), sorted(index.glob("versions/*/manifest.json"))[-1]
        at = int(rng.integers(len(json.loads(file.read_bytes())["parts"])))
        _edit(file, lambda content: content["parts"].__setitem__(at, path))
        return f"part {path!r}"
    if kind == "stale":
        path, old = one(PATHS).replace("{sandbox}", str(sandbox)), index / "versions" / one(("1", "2", "99", "x"))
        if old.exists():
            shutil.rmtree(old)
        shutil.copytree(sorted((index / "versions").iterdir())[-1], old)
        _edit(old / "manifest.json", lambda content: content["parts"].__setitem__(0, path))
        return f"stale {old.name} part {path!r}"
    if kind == "link":
        there = [path for path in sorted(index.rglob("*")) if path != index]
        place = one([*there, index / "manifest.json.partial", index / "tuned.json.partial", index / "notes.txt"])
        target = one((sandbox / "victim", sandbox / "victim" / "secret.txt", sandbox, Path("..") / "victim"))
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        place.symlink_to(target)
        return f"link {place.relative_to(index)} -> {target}"
    if kind == "encoder":
        source = one(SOURCES).replace("{sandbox}", str(sandbox))
        card = {"kind": one(("onnx", "sentence-transformers", "numbers")), "dimension": 6, "source": source}
        for file in index.rglob("first/dense/retriever.json"):
            _edit(file, lambda content: content.update(encoder=card))
        return f"encoder {card}"
    if kind == "checksums":
        name = one((f"{sandbox}/victim/secret.txt", "../" * 8 + "dev/zero", "../../victim/secret.txt", "/dev/zero"))
        for file in index.rglob("checksums.json"):
            _edit(file, lambda content: content.update({name: "0"}))
        return f"checksum of {name}"
    if kind == "pickle":
        name = one(("0.npy", "places.npy", "keys.npy", "part0.npy"))
        for file in index.rglob(name):
            with file.open("wb") as stream:
                np.lib.format.write_array(stream, np.array([_Evil()], dtype=object), allow_pickle=True)
        return f"pickle in {name}"
    import sqlite3

    statement = one(
        (
            f"ATTACH '{sandbox}/victim/new.sqlite' AS other",
            "CREATE VIEW forever AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
            "CREATE TRIGGER t AFTER DELETE ON items BEGIN DELETE FROM anchors; END",
            "UPDATE items SET metadata = '[1]'",
            "UPDATE items SET text = x'00ff'",
            "UPDATE items SET position = position + 1000000000000",
            "ALTER TABLE items RENAME TO hidden",
        )
    )
    for file in index.rglob("items.sqlite"):
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute(statement)
            connection.commit()
    if statement.startswith("ATTACH"):
        (sandbox / "victim" / "new.sqlite").unlink(missing_ok=True)
    return statement[:60]


def use(index: Path, out: Path, rng: np.random.Generator) -> list[str]:
    """Search, check, serve, copy and change an index, without saying whom to trust; the errors that are not ours."""
    import adacur
    from adacur import AdacurError
    from adacur.extras.server.open_indexes import open_indexes
    from adacur.store import IndexFolder, verify
    from adacur.store.versions import version_files

    def searched(**options: Any) -> None:
        with adacur.load(index, **options) as opened:
            opened.search("which red thing number7", k=2, budget=12, first="bm25")

    def dense() -> None:
        with adacur.load(index, check=False) as opened:
            opened.first_stage("dense").search(["red thing"], 2)

    def removed() -> None:
        with adacur.load(index) as opened:
            Edited(opened).remove(["i1"])

    def compacted() -> None:
        with adacur.load(index) as opened:
            Edited(opened).compact()

    def served() -> None:
        for opened in open_indexes({"wiki": index}).values():
            opened.close()

    does: list[Callable[[], Any]] = [
        searched,
        dense,
        lambda: verify(index),
        served,
        lambda: version_files(index, IndexFolder.open(index).home),
        removed,
        compacted,
    ]
    raw = []
    for do in does:
        try:
            do()
        except AdacurError:
            pass
        except BaseException as error:
            raw.append(f"{getattr(do, '__name__', 'do')}: {type(error).__name__}: {error}"[:300])
    return raw


def main() -> None:
    global WATCHING
    pristine, sandbox, tries = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), int(sys.argv[3])
    sandbox.mkdir(parents=True, exist_ok=True)
    os.chdir(sandbox)
    # As the command line has it.
    sys.path.append("")
    (sandbox / "victim" / "deep").mkdir(parents=True)
    (sandbox / "victim" / "secret.txt").write_text("TOP SECRET")
    (sandbox / "victim" / "deep" / "precious.txt").write_text("precious")
    (sandbox / "evil.py").write_text("raise SystemExit('evil was imported')")
    index, out = sandbox / "wiki", sandbox.parent / "out"
    environment, path = dict(os.environ), list(sys.path)
    rng = np.random.default_rng(5)
    warnings.simplefilter("ignore")
    # The folder itself, what the test asked to be written, temporary files and the cache.
    ALLOWED.extend(map(str, (index, out, os.environ["TMPDIR"], os.environ["ADACUR_CACHE"], "/dev/null")))
    # Libraries are imported, and what they open of their own is opened, before anything is watched.
    shutil.copytree(pristine, index)
    out.mkdir()
    use(index, out, rng)
    sys.addaudithook(watch)
    told: dict[str, Any] = {"tries": tries, "seen": [], "changed": [], "raw": []}
    for number in range(tries):
        for folder in (index, out):
            shutil.rmtree(folder)
        shutil.copytree(pristine, index)
        out.mkdir()
        (index / "evil.py").write_text("raise SystemExit('evil was imported')")
        (index / "model").mkdir()
        (index / "model" / "modules.json").write_text('[{"type": "wiki.evil.Module", "path": ""}]')
        (index / "model" / "config_sentence_transformers.json").write_text('{"model_type": "CrossEncoder"}')
        what = tamper(index, sandbox, rng)
        before = snapshot(sandbox, without="wiki")
        WATCHING = True
        raw = use(index, out, rng)
        WATCHING = False
        told["raw"] += [f"{number} {what}: {one}" for one in raw]
        told["seen"] += [f"{number} {what}: {one}" for one in SEEN]
        SEEN.clear()
        told["changed"] += [
            f"{number} {what}: {name}" for name, digest in snapshot(sandbox, without="wiki").items() ^ before.items()
        ]
        if (dict(os.environ), sys.path) != (environment, path):
            told["changed"].append(f"{number} {what}: the environment or sys.path")
        if any("TOP SECRET" in file.read_text(errors="replace") for file in out.rglob("*") if file.is_file()):
            told["changed"].append(f"{number} {what}: the secret was copied")
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
