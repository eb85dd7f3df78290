"""Try an installed adacur without any extra: a function as scorer, BM25, the best k, the command line.

fresh-environment/bin/python .ci/core_alone.py
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import adacur
from adacur.errors import MissingExtra

ITEMS = [f"a {kind} of the {place}" for kind in ("river", "city", "ship") for place in ("north", "south", "coast")]


def shared_words(pairs: list[tuple[str, str]]) -> list[float]:
    return [len(set(query.split()) & set(text.split())) for query, text in pairs]


if __name__ == "__main__":
    for module in ("torch", "onnxruntime", "fastapi", "qdrant_client", "ray", "httpx2", "langchain_core"):
        assert importlib.util.find_spec(module) is None, f"{module} is installed: nothing is shown here"
    index = adacur.AnchorIndex.from_items(ITEMS, scorer=shared_words, progress=False)
    best = index.search("a ship of the coast", k=1, budget=5)
    assert best[0].item.text == "a ship of the coast", best
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        adacur.build(ITEMS, 2, scorer=shared_words, path=path, progress=False).close()
        with adacur.load(path, scorer=shared_words) as again:
            assert len(again.search("a city of the north", k=2, budget=9)) == 2
    try:
        adacur.scorer("ms-marco-MiniLM-L-12-v2")
    except MissingExtra as error:
        refused = str(error)
    else:
        refused = ""
    assert "onnx" in refused, "a model was opened without its extra, or refused without a word of it"
    adacur_command = Path(sys.executable).with_name("adacur")
    shown = subprocess.run([adacur_command, "--help"], stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout
    assert all(name in shown for name in ("build", "search", "serve", "train")), shown
    missing = subprocess.run([adacur_command, "serve"], stderr=subprocess.PIPE, encoding="utf-8", check=False)
    assert missing.returncode == 1, missing
    assert "[serving]" in missing.stderr, missing.stderr
    sys.stdout.write("adacur works without extras.\n")
