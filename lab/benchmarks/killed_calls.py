"""Kills builds, edits and compactions at every call that changes a file, one call after the other.

A shim in C, loaded before the C library, counts a process's calls of unlink, rename, link, mkdir, rmdir, ftruncate,
fsync, fdatasync, write and pwrite (SQLite's own among them), and kills it with SIGKILL before the N-th, after it, or,
where it writes, in the middle of it. The same command is then run again: it must continue, and the index must be that
of an uninterrupted one: items, scores, manifest, files, what `verify` says, and the answers of searches.

    python lab/benchmarks/killed_calls.py [--every 1] [--only build,edit,compact] [--seed 0]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import importlib
import itertools
import json
import mmap
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import adacur
from adacur.first_stages import EncoderCard
from adacur.scorers import FunctionScorer
from adacur.store import IndexFolder, prune

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long seen;
static long at = -1;
static int when;  /* 0 before the call, 1 after it, 2 when half is written */

long shim_seen(void) { return seen; }
void shim_arm(long number, int moment) { seen = 0; at = number; when = moment; }

static int is_file(int descriptor) {
    struct stat about;
    return fstat(descriptor, &about) == 0 && (S_ISREG(about.st_mode) || S_ISDIR(about.st_mode));
}
static void stop(void) { kill(getpid(), SIGKILL); for (;;) pause(); }

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define CALL(returns, name, given, passed, counts) \
    returns name given { REAL(name); long number = (counts) ? seen++ : -2; if (number == at && when == 0) stop(); \
        returns result = real passed; if (number == at) stop(); return result; }
#define WRITES(name, given, passed, half) \
    ssize_t name given { REAL(name); long number = is_file(fd) ? seen++ : -2; if (number == at && when == 0) stop(); \
        if (number == at && when == 2) { real half; stop(); } \
        ssize_t result = real passed; if (number == at) stop(); return result; }

CALL(int, unlink, (const char *path), (path), 1)
CALL(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags), 1)
CALL(int, rename, (const char *from, const char *to), (from, to), 1)
CALL(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), 1)
CALL(int, link, (const char *from, const char *to), (from, to), 1)
CALL(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), 1)
CALL(int, mkdir, (const char *path, mode_t mode), (path, mode), 1)
CALL(int, rmdir, (const char *path), (path), 1)
CALL(int, fsync, (int fd), (fd), 1)
CALL(int, fdatasync, (int fd), (fd), 1)
CALL(int, ftruncate, (int fd, off_t size), (fd, size), is_file(fd))
CALL(int, ftruncate64, (int fd, off64_t size), (fd, size), is_file(fd))
WRITES(write, (int fd, const void *from, size_t n), (fd, from, n), (fd, from, n / 2))
WRITES(pwrite, (int fd, const void *from, size_t n, off_t at_), (fd, from, n, at_), (fd, from, n / 2, at_))
WRITES(pwrite64, (int fd, const void *from, size_t n, off64_t at_), (fd, from, n, at_), (fd, from, n / 2, at_))
"""

MOMENTS = ("before", "after", "half-way through")
WORDS = ("red", "green", "blue", "round", "square", "heavy", "light", "old", "new", "odd")
ASKED = ("which red thing is round", "an old and heavy thing", "thing7")


def start_with_shim(folder: Path, arguments: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this file with the shim loaded; FileNotFoundError or CalledProcessError where it cannot be made."""
    source, shim = folder / "shim.c", folder / "shim.so"
    source.write_text(SHIM, encoding="utf-8")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True, capture_output=True)
    environment = os.environ | {"LD_PRELOAD": str(shim), "KILLED_CALLS_SHIM": str(shim)}
    command = [sys.executable, "-u", __file__, *arguments]
    return subprocess.run(command, env=environment, check=False, text=True, **options)


def numbers(text: str, count: int) -> Any:
    """Numbers that follow from a text."""
    digest = hashlib.blake2b(text.encode(), digest_size=4 * count).digest()
    return np.frombuffer(digest, dtype="<u4").astype(np.float32) / 2**31 - 1


class Encoder:
    """A dual encoder that needs no model."""

    dimension = 6
    card = EncoderCard(kind="numbers", dimension=6)

    def encode_queries(self, texts: Sequence[str]) -> Any:
        return np.stack([numbers(text, 6) for text in texts])

    encode_items = encode_queries


@dataclass(frozen=True)
class Case:
    """A command, the index that it begins with, and how far a repeated one may pay twice."""

    name: str
    run: Callable[[Path, Any], object]
    begin: Callable[[Path, Any], object] | None = None
    most_paid_again: int = 0


def item(number: int, edition: int = 0) -> adacur.Item:
    words = [WORDS[(number * step + edition) % len(WORDS)] for step in (1, 3, 7)]
    about = {"edition": edition} | ({"document": f"d{number // 2}"} if number % 5 == 0 else {})
    return adacur.Item(f"i{number}", f"{' '.join(words)} thing{number} edition{edition}", about)


def query(number: int) -> adacur.Query:
    return adacur.Query(f"q{number}", f"which {WORDS[number % len(WORDS)]} thing is {number}?")


def build(n_items: int, n_anchors: int, first: Sequence[str], **options: Any) -> Callable[[Path, Any], object]:
    def run(path: Path, scorer: Any) -> object:
        given = {"first": list(first), "encoder": Encoder() if "dense" in first else None} | options
        items, anchors = [item(n) for n in range(n_items)], [query(n) for n in range(n_anchors)] or 0
        return adacur.build(items, anchors, scorer=scorer, path=path, progress=False, **given).close()

    return run


def edit(*changes: tuple[Any, ...]) -> Callable[[Path, Any], object]:
    def run(path: Path, scorer: Any) -> object:
        with adacur.load(path, scorer=scorer, encoder=Encoder(), check=False) as index:
            with index.edit(progress=False) as editing:
                for name, *given in changes:
                    getattr(editing, name)(*given)
            return index.version

    return run


def one_after_the_other(*runs: Callable[[Path, Any], object]) -> Callable[[Path, Any], object]:
    def run(path: Path, scorer: Any) -> object:
        return [one(path, scorer) for one in runs]

    return run


def cases(seed: int) -> list[Case]:
    """What is killed; with another seed the sizes differ."""
    more = seed % 7
    small = build(20 + more, 5, ["bm25"], tune=False, block_items=8)
    larger = build(26 + more, 6, ["bm25", "dense"], tune=False, block_items=10)
    added, asked = [item(n) for n in range(100, 106)], [query(n) for n in range(20, 22)]
    edited = one_after_the_other(larger, edit(("add", added)), edit(("remove", ["i3", "i7"]), ("add_anchors", asked)))
    changes: dict[str, tuple[tuple[Any, ...], ...]] = {
        "add": (("add", [item(n) for n in range(200, 204)]),),
        "remove": (("remove", ["i1", "i2", "i101"]),),
        "replace": (("replace", [item(4, 1), item(102, 1)]),),
        "add_anchors": (("add_anchors", [query(30)]),),
        "drop_anchors": (("drop_anchors", ["q1", "q20"]),),
        "all": (
            ("add", [item(300)]),
            ("remove", ["i6"]),
            ("replace", [item(8, 2)]),
            ("add_anchors", [query(31)]),
            ("drop_anchors", ["q2"]),
        ),
    }
    block = 10 * 6
    return [
        Case("build small", small, most_paid_again=2 * block),
        Case("build two stages", larger, most_paid_again=2 * block),
        Case("build without anchors", build(15 + more, 0, ["bm25"])),
        Case("build tuned", build(104 + more, 20, ["bm25"], block_items=60), most_paid_again=2 * 60 * 20),
        *(Case(f"edit {name}", edit(*change), edited, 2 * 400) for name, change in changes.items()),
        Case(
            "edit a first build",
            edit(*changes["replace"][:1]),
            one_after_the_other(larger, edit(("add", added))),
            2 * 400,
        ),
        Case("compact", edit(("compact",)), edited),
        Case("compact and add", edit(("add", [item(400)]), ("compact",)), edited, 2 * 400),
    ]


def state(path: Path) -> dict[str, Any]:
    """All that an index is, as far as it follows from what was asked for; with what its searches answer."""
    folder = IndexFolder.open(path)
    manifest = json.loads((folder.home / "manifest.json").read_text())
    for name in ("created", "packages", "digest"):
        manifest.pop(name, None)
    parts = manifest.pop("parts", ())
    files = {
        re.sub(r"parts/[0-9a-f]{16}/", "parts/*/", file.relative_to(path).as_posix())
        for file in path.rglob("*")
        if file.is_file()
        and file.suffix != ".lock"
        and ("/versions/" not in str(file) or file.is_relative_to(folder.home))
    }
    told: dict[str, Any] = {
        "items": folder.items.at(range(len(folder.items))),
        "anchor queries": folder.anchor_queries,
        "scores": folder.matrix.tobytes() if folder.manifest.n_anchors else b"",
        "manifest": manifest,
        "parts": len(parts),
        "files": sorted(files),
        "model": {file.name: file.read_bytes() for file in (folder.home / "model").glob("*")},
        "verify": [str(problem) for problem in adacur.store.verify(path).problems],
    }
    stages = folder.first_names()
    folder.release()
    with adacur.load(path, scorer=FunctionScorer(answer, name="numbers"), encoder=Encoder(), check=False) as index:
        for first in stages:
            hits = index.search(list(ASKED), 4, budget=10, first=first)
            told[f"answers from {first}"] = [[(hit.id, hit.score, hit.item) for hit in one] for one in hits]
    return told


def answer(pairs: Sequence[tuple[str, str]]) -> list[float]:
    return [float(numbers(query, 6) @ numbers(item, 6)) for query, item in pairs]


class Killer:
    """Runs a case in forks of this process, which has the shim, and kills some of them."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._shim = ctypes.CDLL(os.environ["KILLED_CALLS_SHIM"])
        self._shim.shim_seen.restype = ctypes.c_long
        self._shim.shim_arm.argtypes = [ctypes.c_long, ctypes.c_int]
        self._shared = mmap.mmap(-1, 16)  # pairs that were scored, and calls that were counted
        # What a build and a search import on the way is imported once, here; they themselves would leave threads.
        for name in self._forked(self._imported)[1]:
            with contextlib.suppress(Exception):
                importlib.import_module(name)

    def _imported(self) -> list[str]:
        build(104, 20, ["bm25", "dense"])(self._place / "first", self._scorer())
        state(self._place / "first")
        return sorted(sys.modules)

    def _forked(self, work: Callable[[], object], *, kill_at: int = -1, moment: int = 0) -> tuple[bool, Any, int]:
        """Whether the fork was killed, what the work returned or raised, and the pairs that it scored."""
        self._shared[:16] = bytes(16)
        out = self._place / "out.pickle"
        out.unlink(missing_ok=True)
        with warnings.catch_warnings():
            # Python warns of threads at a fork; the child uses none that it has not started.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            try:
                self._shim.shim_arm(kill_at, moment)
                try:
                    came: Any = work()
                except BaseException as error:
                    came = error
                self._shared[8:16] = self._shim.shim_seen().to_bytes(8, "little")
                self._shim.shim_arm(-1, 0)
                failed = f"{type(came).__name__}: {came}" if isinstance(came, BaseException) else None
                out.write_bytes(pickle.dumps(failed or came))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        pairs = int.from_bytes(self._shared[:8], "little")
        return killed, pickle.loads(out.read_bytes()) if out.exists() else None, pairs

    def _score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self._shared[:8] = (int.from_bytes(self._shared[:8], "little") + len(pairs)).to_bytes(8, "little")
        return answer(pairs)

    def _scorer(self) -> FunctionScorer:
        return FunctionScorer(self._score, name="numbers")

    def run(self, case: Case, *, every: int, offset: int = 0) -> Iterator[tuple[str, str | None]]:
        """For each kill what was killed, and what was wrong afterwards, if anything."""
        fresh, whole, path = (self._place / name for name in ("fresh", "whole.adacur", "killed.adacur"))
        for one in (fresh, whole, path):
            shutil.rmtree(one, ignore_errors=True)
        if case.begin is not None:
            began = self._forked(lambda: case.begin(fresh, self._scorer()))
            assert fresh.exists(), began
            shutil.copytree(fresh, whole)
        before = self._forked(lambda: state(whole))[1] if case.begin else None
        _, came, whole_pairs = self._forked(lambda: case.run(whole, self._scorer()))
        calls = int.from_bytes(self._shared[8:16], "little")
        expected = self._forked(lambda: state(whole))[1]
        if not isinstance(expected, dict):
            raise SystemExit(f"{case.name} fails by itself: {came} {expected}")
        for number, moment in list(itertools.product(range(calls), range(len(MOMENTS))))[offset % every :: every]:
            shutil.rmtree(path, ignore_errors=True)
            if case.begin is not None:
                shutil.copytree(fresh, path)
            killed, _, paid = self._forked(lambda: case.run(path, self._scorer()), kill_at=number, moment=moment)
            if not killed:
                continue
            wrong, again = [], 0
            found = self._forked(lambda: state(path))[1] if case.begin else None
            if before is not None and isinstance(found, dict) and version(found) == version(expected):
                # It had been switched to; what no longer counts goes with the next edit, or now.
                self._forked(lambda: prune(path))
            else:
                wrong += differences(before, found, but=("files",)) if before is not None else []
                _, came, again = self._forked(lambda: case.run(path, self._scorer()))
                wrong += [came] if isinstance(came, str) else []
            wrong += differences(expected, self._forked(lambda: state(path))[1])
            if paid + again > whole_pairs + case.most_paid_again:
                wrong.append(f"{paid} + {again} pairs were paid for {whole_pairs}")
            yield f"{case.name}, {MOMENTS[moment]} call {number} of {calls}", "; ".join(wrong) or None


def version(told: dict[str, Any]) -> int:
    return int(told["manifest"].get("version", 1))


def differences(expected: dict[str, Any], now: Any, *, but: Sequence[str] = ()) -> list[str]:
    """What of an index is not as it is to be."""
    if not isinstance(now, dict):
        return [str(now)]
    wrong = []
    for name in expected:
        if name == "files" and name not in but:
            more, fewer = ([*sorted(set(a[name]) - set(b[name]))] for a, b in ((now, expected), (expected, now)))
            wrong += [f"files: {more} more, {fewer} fewer"] if more or fewer else []
        elif name not in but and expected[name] != now.get(name):
            wrong.append(f"{name}: {now.get(name)!r:.150} and not {expected[name]!r:.150}")
    return wrong


def kill_all(*, every: int, seed: int, only: Sequence[str], say: Callable[[str], None] = print) -> list[str]:
    """Kill at every so-many-th call of each case; what was wrong."""
    # tqdm, which bm25s uses, shares a lock between a process and its forks: a killed fork would keep it for ever.
    tqdm.set_lock(threading.RLock())
    wrong: list[str] = []
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="killed-calls-") as place:
        killer = Killer(Path(place))
        for case in cases(seed):
            if only and not any(case.name.startswith(name) for name in only):
                continue
            began, kills, bad = time.perf_counter(), 0, 0
            for what, problem in killer.run(case, every=every, offset=seed):
                kills += 1
                if problem is not None:
                    bad += 1
                    wrong.append(f"{what}: {problem}")
            counts.update(kills=kills, equal=kills - bad)
            say(f"{case.name:24} {kills:5} kills, {kills - bad:5} equal, {time.perf_counter() - began:4.0f} s")
    say(f"{'all':24} {counts['kills']:5} kills, {counts['equal']:5} equal")
    return wrong


def main() -> None:
    """Run all, and fail if an index was not continued or is not equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="kill at every so-many-th moment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose names begin so, with commas")
    given = parser.parse_args()
    if "KILLED_CALLS_SHIM" not in os.environ:
        with tempfile.TemporaryDirectory() as place:
            raise SystemExit(start_with_shim(Path(place), sys.argv[1:]).returncode)
    wrong = kill_all(every=given.every, seed=given.seed, only=[name for name in given.only.split(",") if name])
    print("\n".join(wrong))
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
