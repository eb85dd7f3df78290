"""One machine and more items than memory: what a compressed index of HotpotQA's size costs to search.

    python lab/benchmarks/five_million.py [--items 5233329] [--folder FOLDER]
    python lab/benchmarks/five_million.py --device cuda
    python lab/benchmarks/five_million.py --compress 100000 400000

The first two write an index folder of synthetic compressed features (int8; 512 columns, as 384 dimensions of embeddings
and rank 128 make; their spreads fall like the singular values of a real domain's anchor scores) and search it in a new
process: B = 100, 5 rounds, k = 10. The scorer looks its answers up; its time and a first stage's are not counted.
The floor is what reading the bytes of a round once takes, measured in the same run. The third compresses folders of
anchor scores and tells seconds and peak memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import adacur
from adacur import Gaussian
from adacur.model import PackedRows
from adacur.protocols import FirstStage, Ranking, ScorerCard
from adacur.records import Item, Query
from adacur.replay import compress
from adacur.store.blocks import ScoreBlocks
from adacur.store.database import connect, load, seal
from adacur.store.manifest import Manifest, write_manifest

N_ANCHORS, DIMENSIONS, RANK = 500, 384, 128
BUDGET, ROUNDS, K = 100, 5, 10
ROWS_PER_BLOCK = 65_536
SPECTRA = Path(__file__).parents[1] / "reproduction" / "spectrum" / "results" / "spectra.json"
NOISE = 0.5


def anchor_queries(n_anchors: int) -> list[Query]:
    return [Query(f"a{number}", f"anchor {number}") for number in range(n_anchors)]


def write_items(path: Path, n_items: int, anchors: list[Query]) -> Manifest:
    """Items whose text is their position, and a manifest."""
    path.mkdir(parents=True)
    with contextlib.closing(connect(path, writable=True)) as connection:
        items = (Item(f"item-{position:08d}", str(position)) for position in range(n_items))
        count, items_digest, _, anchors_digest = load(connection, items, anchors, check=lambda item: None)
        seal(connection)
    manifest = Manifest(
        status="complete",
        n_items=count,
        n_anchors=len(anchors),
        dtype="float32",
        block_items=4096,
        items_digest=items_digest,
        anchors_digest=anchors_digest,
        scorer=None,
        # Those of a bare checkout are not known.
        packages={},
    )
    write_manifest(path, manifest)
    return manifest


def spreads(domain: str, n: int) -> np.ndarray:
    """The domain's singular values relative to the first; beyond the last stored, the last."""
    found = next(own for own in json.loads(SPECTRA.read_text()) if own["collection"] == domain)
    values = np.array(found["singular_values"], dtype=np.float32)[:n]
    return np.concatenate([values, np.full(n - len(values), values[-1], dtype=np.float32)]) / values[0]


def write_features(path: Path, manifest: Manifest, *, domain: str) -> None:
    """What `adacur compress` would leave, block by block, on all cores."""
    folder = path / "gaussian"
    folder.mkdir()
    n_items, columns = manifest.n_items, DIMENSIONS + RANK
    spread = spreads(domain, columns)
    ends = [columns // 4, columns]

    def allocate(name: str, shape: tuple[int, ...], dtype: str) -> Any:
        return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.dtype(dtype), shape=shape)

    parts = [
        PackedRows.unfilled((n_items, stop - start), storage="int8", allocate=allocate, name=f"part{number}")
        for number, (start, stop) in enumerate(zip([0, ends[0]], ends, strict=True))
    ]
    means = allocate("means", (n_items,), "float32")
    keys = allocate("keys", (n_items,), "uint64")

    def fill(start: int) -> None:
        rng = np.random.default_rng([1, start])
        size = min(ROWS_PER_BLOCK, n_items - start)
        means[start : start + size] = 0.3 * rng.standard_normal(size, dtype=np.float32)
        # Any keys will do: nothing else here knows those that belong to the ids.
        keys[start : start + size] = rng.integers(0, 2**63, size=size, dtype=np.uint64)
        for first in range(start, start + size, 4096):
            block = rng.standard_normal((min(4096, start + size - first), columns), dtype=np.float32) * spread
            for part, own in zip(parts, np.split(block, ends[:-1], axis=1), strict=True):
                part.fill(first, own)

    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        list(threads.map(fill, range(0, n_items, ROWS_PER_BLOCK)))
    rng = np.random.default_rng(2)
    small = {
        "scale_scores": np.array([0.0, 1.0]),
        "scale_rarities": np.array([0.0, 1.0]),
        "trust": np.zeros(N_ANCHORS),
        "centre": np.zeros(columns),
        "mixing": rng.normal(size=(columns, N_ANCHORS + DIMENSIONS)) / columns**0.5,
    }
    for name, array in small.items():
        np.save(folder / f"{name}.npy", array)
    settings = {
        "format": 1,
        "items_digest": manifest.items_digest,
        "anchors_digest": manifest.anchors_digest,
        "encoder": None,
        "dense": False,
        "n_parts": 2,
        "leading": True,
        # The mean square of a feature; embeddings have none of their own here.
        "variance": float(np.square(spread).sum()) / columns,
        "embedding_variance": float(np.square(spread).sum()) * DIMENSIONS / columns,
    }
    (folder / "features.json").write_text(json.dumps(settings))


def features_of(path: Path) -> Any:
    index = adacur.load(path, check=False)
    return index.snapshot.gaussian_model().features_of(index.anchors)


class Lookup:
    """Scores that follow from the features, and noise; knows how long it took."""

    card = ScorerCard(name="lookup", backend="numpy")

    def __init__(self, path: Path) -> None:
        # Rows of its own, so that a device is not asked for them.
        self.features = features_of(path)
        self.seconds = np.zeros(2)

    def score(self, pairs: Any) -> np.ndarray:
        """Scores of pairs of one query."""
        return self._scores(pairs[0][0], np.array([int(item.text) for _, item in pairs]))

    def score_at(self, items: Any, queries: Any, query_of: Any, positions: Any) -> np.ndarray:
        """The same by position, as a scorer that keeps the tokens of its items: none is read."""
        return self._scores(queries[query_of[0]], np.asarray(positions))

    def _scores(self, query: Query, positions: np.ndarray) -> np.ndarray:
        started = np.array([time.perf_counter(), time.process_time()])
        seed = int(query.text)
        rng = np.random.default_rng([3, seed])
        weights = rng.normal(size=self.features.factors.n_features) / N_ANCHORS**0.5
        noise = np.random.default_rng([4, seed, int(positions[0])]).normal(size=len(positions))
        rows = self.features.factors.rows(positions)
        scores = rows @ weights + self.features.means[positions]
        scores += NOISE * scores.std() * noise
        self.seconds += np.array([time.perf_counter(), time.process_time()]) - started
        return scores


class GivenFirst(FirstStage):
    """A first stage that costs nothing: 1,000 items by chance, by position as those of an index are."""

    name = "given"
    can_be_asked = False

    def __init__(self, items: Any) -> None:
        self.items = items

    @property
    def ids(self) -> Any:
        """Those of the index."""
        return self.items.ids

    def settings(self) -> dict[str, Any]:
        """None."""
        return {}

    def search(self, queries: Any, k: int) -> list[Ranking]:
        """Any k items."""
        found = []
        for query in queries:
            positions = np.random.default_rng([5, int(query.text)]).choice(len(self.items), size=k, replace=False)
            found.append(Ranking(positions, -np.arange(k, dtype=np.float64)))
        return found

    @staticmethod
    def _refused(*given: Any, **options: Any) -> NoReturn:
        raise NotImplementedError

    build = load = updated = save = check_can_grow = _refused


class Memory:
    """The most memory that a process held while this was open, its own and that of mapped files, in MB."""

    def __enter__(self) -> Memory:
        self.own = self.mapped = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            status = Path("/proc/self/status").read_text()
            sizes = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith("Rss")}
            self.own = max(self.own, int(sizes["RssAnon"]) / 1024)
            self.mapped = max(self.mapped, int(sizes["RssFile"]) / 1024)
            if self._done.wait(0.005):
                return


def forget(path: Path) -> None:
    """Drop a folder's files from the page cache."""
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def read_once(values: np.ndarray) -> float:
    """Seconds to read an array once, on all cores; the best of five."""
    flat = values.reshape(-1)[: values.size // 8 * 8].view(np.int64)
    spans = np.array_split(flat, 8 * (os.cpu_count() or 1))
    best = np.inf
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        for _ in range(5):
            started = time.perf_counter()
            list(threads.map(np.add.reduce, spans))
            best = min(best, time.perf_counter() - started)
    return best


def searched(path: Path, *, device: str | None, queries: int, **options: Any) -> Iterator[tuple[float, float, Any]]:
    """Per query its seconds besides the scorer, of the clock and of processors, and its hits.

    The first includes opening the index.
    """
    started = np.array([time.perf_counter(), time.process_time()])
    scorer = Lookup(path)
    index = adacur.load(path, scorer=scorer, check=False, device=device)
    first = GivenFirst(index.items)
    for query in range(queries):
        scorer.seconds[:] = 0.0
        if query:
            started = np.array([time.perf_counter(), time.process_time()])
        hits = index.search(
            Query(f"q{query}", str(query)), K, budget=BUDGET, method=Gaussian(rounds=ROUNDS), first=first, **options
        )
        clock, processors = np.array([time.perf_counter(), time.process_time()]) - started - scorer.seconds
        yield float(clock), float(processors), hits


def steps(hits: Any) -> dict[str, float]:
    """Seconds of the rounds' steps, added up."""
    total: dict[str, float] = {}
    for round_ in hits.trace.rounds:
        for step, seconds in round_.seconds.items():
            total[step] = total.get(step, 0.0) + seconds
    return total


def on_the_cpu(path: Path, *, queries: int, cold: bool) -> None:
    with Memory() as memory:
        clock, processors, hits = zip(*searched(path, device=None, queries=1 if cold else queries), strict=True)
    if cold:
        print(f"{'cold, opening included':>30} {clock[0]:>8.2f} s")
        return
    features = features_of(path)
    leading, rest = features.factors.parts
    n_items = features.factors.n_items
    round_bytes = leading.nbytes + features.means.nbytes + n_items // 16 * (rest.shape[1] + 4)
    seconds = read_once(leading.values)
    floor = (ROUNDS - 1) * round_bytes / (leading.values.nbytes / seconds)
    own = [steps(one) for one in hits[1:]]
    print(f"{'first query, opening included':>30} {clock[0]:>8.2f} s")
    print(f"{'a query, warm':>30} {told(clock[1:], processors[1:])}")
    for step in ("first", "predict", "choose", "solve"):
        what = f"… {step}"
        print(f"{what:>30} {np.median([one.get(step, 0.0) for one in own]):>8.3f} s")
    print(
        f"{'bandwidth floor':>30} {floor:>8.3f} s  ({round_bytes / 1e6:,.0f} MB a round, "
        f"{leading.values.nbytes / seconds / 1e9:.1f} GB/s, {ROUNDS - 1} rounds that predict)"
    )
    print(f"{'peak memory of its own':>30} {memory.own:>8,.0f} MB, and {memory.mapped:,.0f} MB of mapped files")


def told(clock: Any, processors: Any) -> str:
    return (
        f"{np.median(clock):>8.3f} s  (best {min(clock):.3f}; processor seconds {np.median(processors):.3f}, best "
        f"{min(processors):.3f}; {len(clock)} queries)"
    )


def on_a_device(path: Path, *, device: str, queries: int) -> None:
    import torch

    def timed(run: Callable[[], object]) -> float:
        run()
        times = []
        for _ in range(10):
            torch.cuda.synchronize()
            started = time.perf_counter()
            run()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        return float(np.median(times))

    times, _, hits = zip(*searched(path, device=device, queries=queries), strict=True)
    features = features_of(path).on(device)
    size = features.factors.nbytes + features.device_means.nbytes
    read = torch.empty(size // 4, dtype=torch.float32, device=device)
    # A copy reads and writes as much; reading alone is half of it.
    floor = timed(read.clone) / 2
    own = [steps(one) for one in hits[2:]]
    # Those of the mean and of the level too.
    weights = torch.from_numpy(np.random.default_rng(0).normal(size=(1, features.factors.n_features + 2))).to(device)
    product = timed(lambda: features.predictions(weights))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {size / 1e9:.2f} GB on the device")
    print(f"{'first query, opening included':>30} {times[0]:>8.2f} s")
    print(f"{'a query':>30} {1000 * np.median(times[2:]):>8.2f} ms (best {1000 * min(times[2:]):.2f})")
    for step in ("first", "predict", "choose", "solve"):
        print(f"{step:>30} {1000 * np.median([one.get(step, 0.0) for one in own]):>8.2f} ms")
    print(f"{'predictions of a round':>30} {1000 * product:>8.3f} ms")
    print(f"{'reading the bytes of a round':>30} {1000 * floor:>8.3f} ms ({size / floor / 1e12:.2f} TB/s)")
    print(
        f"{'bandwidth floor of a query':>30} {(ROUNDS - 1) * 1000 * floor:>8.2f} ms ({ROUNDS - 1} rounds that predict)"
    )


def compressing(path: Path, n_items: int, *, domain: str) -> None:
    """Write anchor scores and embeddings block by block, compress them, and tell seconds and memory."""
    from adacur.first_stages import EncoderCard
    from adacur.first_stages.saved import write_ids, write_settings

    manifest = write_items(path, n_items, anchor_queries(N_ANCHORS))
    blocks = ScoreBlocks.create(path, manifest)
    dense = path / "first" / "dense"
    dense.mkdir(parents=True)
    embeddings = np.lib.format.open_memmap(
        dense / "embeddings.npy", mode="w+", dtype=np.float16, shape=(n_items, DIMENSIONS)
    )
    rng = np.random.default_rng(0)
    turn = rng.normal(size=(N_ANCHORS, N_ANCHORS)).astype(np.float32)
    for block in range(manifest.n_blocks):
        rows = manifest.block(block)
        latent = rng.standard_normal((len(rows), N_ANCHORS), dtype=np.float32) * spreads(domain, N_ANCHORS)
        blocks.write(block, latent @ turn)
        embeddings[rows.start : rows.stop] = latent[:, :DIMENSIONS]
    del embeddings
    write_ids(dense, (f"item-{position:08d}" for position in range(n_items)))
    card = EncoderCard(kind="numbers", dimension=DIMENSIONS)
    write_settings(dense, kind="dense", settings={"encoder": {"kind": card.kind, "dimension": card.dimension}})


class Numbers:
    """An encoder of nothing: a vector per text, by its hash."""

    dimension = DIMENSIONS

    @property
    def card(self) -> Any:
        from adacur.first_stages import EncoderCard

        return EncoderCard(kind="numbers", dimension=DIMENSIONS)

    def encode_queries(self, texts: Any) -> np.ndarray:
        seeds = [[6, *text.encode()] for text in texts]
        return np.stack([np.random.default_rng(seed).normal(size=DIMENSIONS) for seed in seeds]).astype(np.float32)

    encode_items = encode_queries


def compressed(path: Path) -> None:
    with Memory() as memory:
        started = time.perf_counter()
        done = compress(adacur.load(path, encoder=Numbers()))
        seconds = time.perf_counter() - started
    n_items = len(adacur.load(path, check=False))
    size = sum(file.stat().st_size for file in (path / "gaussian").iterdir())
    print(
        f"{n_items:>12,} {seconds:>9.1f} {1e6 * seconds / n_items:>10.1f} {done.bytes_before / 1e6:>12,.0f} "
        f"{size / 1e6:>10,.0f} {memory.own:>10,.0f} {done.items:>12,}",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=5_233_329)
    parser.add_argument("--domain", default="wikivital", help="whose singular values to use")
    parser.add_argument("--queries", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="where to write the index, and to leave it")
    parser.add_argument("--device", help="e.g. cuda: the features lie there")
    parser.add_argument("--compress", type=int, nargs="+", metavar="ITEMS", help="compress so many items instead")
    parser.add_argument("--step", choices=("cold", "warm", "device", "compress"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.step:
        if given.step == "device":
            on_a_device(given.folder, device=given.device, queries=given.queries)
        elif given.step == "compress":
            compressed(given.folder)
        else:
            on_the_cpu(given.folder, queries=given.queries, cold=given.step == "cold")
        return

    def apart(step: str, folder: Path) -> None:
        # A process of its own: what wrote the index does not count, nor does what it holds.
        options = ["--device", given.device] if given.device else []
        command = [sys.executable, __file__, "--folder", folder, "--queries", str(given.queries), "--step", step]
        sys.stdout.flush()
        subprocess.run([*map(str, command), *options], check=True)

    scratch = Path(tempfile.mkdtemp(prefix="five-million-"))
    try:
        if given.compress:
            print(f"compressing {N_ANCHORS} anchor queries × float32 and {DIMENSIONS} dimensions × float16")
            print(
                f"{'items':>12} {'seconds':>9} {'µs an item':>10} {'MB before':>12} {'MB after':>10} {'MB held':>10} "
                f"{'measured on':>12}"
            )
            for n_items in given.compress:
                compressing(scratch / str(n_items), n_items, domain=given.domain)
                apart("compress", scratch / str(n_items))
                shutil.rmtree(scratch / str(n_items))
            return
        folder = given.folder or scratch / "index"
        if not folder.exists():
            started = time.perf_counter()
            manifest = write_items(folder, given.items, anchor_queries(N_ANCHORS))
            write_features(folder, manifest, domain=given.domain)
            print(f"written in {time.perf_counter() - started:.0f} s")
        features = sum(file.stat().st_size for file in (folder / "gaussian").iterdir())
        texts = (folder / "parts/built/items.sqlite").stat().st_size
        n_items = len(adacur.load(folder, check=False))
        print(
            f"{n_items:,} items, {DIMENSIONS + RANK} columns in int8, spread as {given.domain}'s; B = {BUDGET}, "
            f"{ROUNDS} rounds, k = {K}; {os.cpu_count()} cores"
        )
        print(
            f"{'index':>30} {features / 1e9:>8.2f} GB of features ({features / n_items:.0f} bytes an item), "
            f"{texts / 1e9:.2f} GB of ids and texts"
        )
        if given.device:
            apart("device", folder)
        else:
            forget(folder)
            apart("cold", folder)
            apart("warm", folder)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
