"""What the largest bodies that clients can make up cost a server: seconds that everybody else waits, and memory.

    python -m lab.benchmarks.large_bodies [--only rerank]

Each body meets a fresh server process on loopback. While it is answered, another client asks for /healthz without
pause: the longest wait of that client is how long the event loop was blocked. Memory is the process's peak, before the
body and after it.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

MIB = 2**20


def bodies() -> dict[str, tuple[str, bytes]]:
    """Paths and bodies by name: three that once stopped a server, and the largest of each kind that fits in 4 MiB."""

    def rerank(documents: Any, **more: Any) -> tuple[str, bytes]:
        return "/v1/rerank", _json({"query": "x", "documents": documents, **more})

    def search(**asked: Any) -> tuple[str, bytes]:
        return "/v1/search", _json({"query": "x", **asked})

    def filtered(values: Any) -> tuple[str, bytes]:
        return search(filter={"metadata": values})

    return {
        "rerank 100,000 ints": rerank([0] * 100_000),
        "filter.metadata 100,000 nulls": filtered({"a": [None] * 100_000}),
        "rerank 500,000 ints": rerank([0] * 500_000),
        "rerank 2,000,000 ints": rerank([0] * 2_000_000),
        "rerank 1,000,000 empty objects": rerank([{}] * 1_000_000),
        "rerank a document of 350,000 fields": rerank([{f"{at:06d}": 0 for at in range(350_000)}]),
        "rerank 1,000 documents of 4,000 characters": rerank(["ab " * 1300] * 1000),
        "search 2,000,000 ints": ("/v1/search", _json({"queries": [0] * 2_000_000})),
        "search 1,000,000 texts": ("/v1/search", _json({"queries": [""] * 1_000_000})),
        "search 350,000 unknown fields": search(**{f"{at:06d}": 0 for at in range(350_000)}),
        "search a query of 4 MB": ("/v1/search", _json({"query": " " * 4_000_000})),
        "filter.ids 2,000,000 ints": search(filter={"ids": [0] * 2_000_000}),
        "filter.ids 400,000 texts": search(filter={"ids": [f"i{at}" for at in range(400_000)]}),
        "filter.ids 99,000 texts": search(filter={"ids": [f"i{at}" for at in range(99_000)]}),
        "filter.metadata 800,000 nulls": filtered({"a": [None] * 800_000}),
        "filter.metadata 290,000 fields": filtered({f"{at:06d}": None for at in range(290_000)}),
        "filter.metadata 99,000 values": filtered({"a": list(range(99_000))}),
        "filter 350,000 unknown fields": search(filter={f"{at:06d}": 0 for at in range(350_000)}),
        "nested 900 deep": ("/v1/search", b'{"query":' + b"[" * 900 + b"]" * 900 + b"}"),
        "nested 2,000,000 deep": ("/v1/search", b"[" * 2_000_000 + b"]" * 2_000_000),
        "1,300,000 empty lists": ("/v1/search", _json([[]] * 1_300_000)),
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def serve() -> None:
    """A server of thirty items, on a port that it prints."""
    import uvicorn

    from adacur import AnchorIndex, Item
    from adacur.extras.server import create_app

    items = [Item(f"i{at}", f"text {at}", {"group": at % 3}) for at in range(30)]
    index = AnchorIndex.from_items(items, scorer=lambda pairs: [float(len(item)) for _, item in pairs])
    at = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{at.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(create_app({"small": index}), log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[at])


@contextmanager
def server() -> Iterator[tuple[str, int]]:
    """A server process: its URL and its id."""
    command = [sys.executable, "-m", "lab.benchmarks.large_bodies", "--serve"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        while httpx.get(f"{url}/readyz", timeout=60).status_code != 200:
            time.sleep(0.02)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def peak_mb(process: int) -> float:
    """The most memory that a process has had, in MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000


def measure(path: str, body: bytes) -> tuple[int, str, float, float, float, float]:
    """Status, code, seconds to the answer, longest wait of another client, peak memory before and after."""
    with server() as (url, process), httpx.Client(timeout=300) as client, httpx.Client(timeout=300) as other:
        headers = {"Content-Type": "application/json"}
        client.post(f"{url}{path}", content=b"{}", headers=headers)
        before = peak_mb(process)
        waits: list[float] = []
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                started = time.perf_counter()
                other.get(f"{url}/healthz")
                waits.append(time.perf_counter() - started)

        looking = threading.Thread(target=look)
        looking.start()
        time.sleep(0.3)
        waits.clear()
        started = time.perf_counter()
        response = client.post(f"{url}{path}", content=body, headers=headers)
        seconds = time.perf_counter() - started
        done.set()
        looking.join()
        code = response.json()["error"]["code"] if response.status_code != 200 else ""
        return response.status_code, code, seconds, max(waits), before, peak_mb(process)


def main() -> None:
    """Print a line per body."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names that hold this")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve()
        return
    out = sys.stdout
    out.write(f"{'body':45} {'MB':>5} {'answer':32} {'seconds':>7} {'blocked':>7} {'peak MB':>13}\n")
    for name, (path, body) in bodies().items():
        if asked.only not in name:
            continue
        status, code, seconds, blocked, before, after = measure(path, body)
        memory = f"{before:.0f} -> {after:.0f}"
        answer = f"{status} {code}"
        out.write(f"{name:45} {len(body) / 1e6:5.2f} {answer:32} {seconds:7.2f} {blocked:7.2f} {memory:>13}\n")
        out.flush()


if __name__ == "__main__":
    main()
