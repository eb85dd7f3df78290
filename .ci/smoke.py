"""Try an installed adacur in an empty folder, as its first user would: demo, an index of one's own, the server.

    fresh-environment/bin/python .ci/smoke.py

Nothing of the repository is imported: the package must bring all that it needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import Request, urlopen

import adacur

ADACUR = str(Path(sys.executable).with_name("adacur"))
PORT = os.environ.get("PORT", "8765")
ITEMS = [
    ("kettle", "An electric kettle of brushed steel that boils 1.7 litres in three minutes."),
    ("lamp", "A reading lamp with a warm light and an arm that bends."),
    ("tent", "A tent for two, under two kilograms, that stands up to a storm."),
    ("boots", "Leather boots for walking in wet hills."),
    ("stove", "A gas stove the size of a fist, for cooking outdoors."),
    ("chair", "An office chair with a back that follows yours."),
    ("pan", "A cast-iron pan that outlives its owner."),
    ("rope", "Forty metres of climbing rope, dry-treated."),
]


def run(*arguments: str) -> str:
    sys.stdout.write(f"$ adacur {' '.join(arguments)}\n")
    done = subprocess.run([ADACUR, *arguments], stdout=subprocess.PIPE, encoding="utf-8", check=True)
    sys.stdout.write(done.stdout)
    return done.stdout


def ask(path: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        return answer.read()


def serve_and_search() -> None:
    server = subprocess.Popen([ADACUR, "serve", "shop.adacur", "--port", PORT])
    try:
        for _ in range(240):
            try:
                sys.stdout.write(f"GET /readyz: {ask('/readyz').decode()}\n")
                break
            except OSError:
                assert server.poll() is None, "adacur serve ended"
                time.sleep(0.5)
        found = json.loads(ask("/v1/search", {"query": "boil water for tea", "k": 2, "budget": 8}))
        sys.stdout.write(f"POST /v1/search: {json.dumps(found)[:400]}\n")
        assert found["results"][0]["hits"][0]["id"] == "kettle", found
        assert b"<html" in ask("/").lower()
    finally:
        server.terminate()
        server.wait(timeout=60)


if __name__ == "__main__":
    assert "site-packages" in adacur.__file__, f"not the installed package: {adacur.__file__}"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run("--version")
        run("demo")
        lines = (json.dumps({"id": name, "text": text}) for name, text in ITEMS)
        Path("shop.jsonl").write_text("\n".join(lines), encoding="utf-8")
        run("build", "shop.jsonl", "shop.adacur", "--number", "4")
        assert "kettle" in run("search", "shop.adacur", "boil water for tea", "-k", "2", "--budget", "8")
        serve_and_search()
        os.chdir(Path(folder).parent)
