"""What importing costs, and what happens where an optional dependency is missing."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import adacur
from adacur.requirements import install_command

LIBRARIES = {
    *(
        "sklearn",
        "matplotlib",
        "httpx2",
        "torch",
        "transformers",
        "onnxruntime",
        "tokenizers",
        "scipy",
        "typer",
    ),
    *("rich", "bm25s", "sentence_transformers"),
}
HOSTS = {"langchain_core", "llama_index", "haystack", "pyterrier", "mcp", "huggingface_hub"}
MODULES = [found.name for found in pkgutil.walk_packages(adacur.__path__, "adacur.")]

# An import that fails as it does where the package is not installed.
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

missing = set()

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
CALLS = [
    ("onnxruntime", "adacur.scorers.OnnxCrossEncoder('model')", "onnx"),
    ("tokenizers", "adacur.scorers.OnnxCrossEncoder('model')", "onnx"),
    ("onnxruntime", "adacur.first_stages.OnnxEncoder('model')", "onnx"),
    ("tokenizers", "adacur.first_stages.OnnxEncoder('model')", "onnx"),
    ("torch", "adacur.scorers.TorchCrossEncoder('model')", "torch"),
    ("transformers", "adacur.scorers.TorchCrossEncoder('model')", "torch"),
    (
        "sentence_transformers",
        "adacur.first_stages.SentenceTransformerEncoder('model')",
        "sentence-transformers",
    ),
    (
        "sentence_transformers",
        "adacur.scorers.SentenceTransformersScorer('model')",
        "sentence-transformers",
    ),
    ("onnxscript", "adacur.extras.train.export_onnx('.', 'onnx')", "training"),
    ("httpx2", "adacur.scorers.HttpScorer('http://127.0.0.1:9', kind='tei')", "http"),
    ("pyterrier", "import adacur.extras.pyterrier", "pyterrier"),
    ("mcp", "from adacur.extras.server.mcp import create_server; create_server(None)", "mcp"),
    ("langchain_core", "import adacur.extras.langchain", "langchain"),
    ("llama_index", "import adacur.extras.llama_index", "llama-index"),
    ("haystack", "import adacur.extras.haystack", "haystack"),
    ("fastapi", "import adacur.extras.server; adacur.extras.server.create_app({})", "serving"),
]


def python(script: str, *, cwd: Path | None = None) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=cwd, capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_adacur_and_its_integrations_imports_no_library_that_they_may_never_need() -> None:
    loaded = "print(*{name.split('.')[0] for name in sys.modules})"
    ours, integrations = python(f"import sys, adacur; {loaded}; import adacur.extras; {loaded}").splitlines()

    assert "adacur" in ours.split()
    assert LIBRARIES & set(ours.split()) == set()
    assert HOSTS & set(integrations.split()) == set()


def test_every_public_name_is_there_and_dir_tells_them_all() -> None:
    assert [name for name in adacur.__all__ if not hasattr(adacur, name)] == []
    assert {*adacur.__all__, "__version__"} <= set(dir(adacur))
    with pytest.raises(AttributeError):
        adacur.nonsense


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_imported_and_a_room_names_what_exists(name: str) -> None:
    if name.endswith(".gpu_kernels"):
        pytest.importorskip("triton", reason="Triton has no build for this machine")
    module = importlib.import_module(name)
    named = getattr(module, "__all__", [])

    assert len(set(named)) == len(named)
    assert [public for public in named if not hasattr(module, public)] == []


def test_a_missing_extra_is_named_with_the_line_that_installs_it() -> None:
    # What is not missing is an empty module: nothing of it is used before the missing one is looked for.
    script = f"""
{WITHOUT}
from types import ModuleType
import adacur.scorers, adacur.first_stages
from adacur.errors import MissingExtra

names = {sorted({missing for missing, _, _ in CALLS})!r}
for name, call, _ in {CALLS!r}:
    for other in names:
        sys.modules[other] = ModuleType(other)
    del sys.modules[name]
    missing = {{name}}
    try:
        exec(call)
    except MissingExtra as error:
        assert isinstance(error, adacur.AdacurError) and isinstance(error, ImportError)
        print(error)
    else:
        print(f"{{call}} without {{name}}: no error")
"""
    expected = [f"{missing} is not installed. Install it with: {install_command(extra)}" for missing, _, extra in CALLS]
    assert python(script).splitlines() == expected


def test_a_function_and_bm25_need_no_extra(tmp_path: Path) -> None:
    optional = {"torch", "transformers", "onnxruntime", "tokenizers", "sentence_transformers", "huggingface_hub"}
    script = f"""
{WITHOUT}
missing = {optional!r}
import adacur

def shared_words(pairs):
    return [len(set(query.split()) & set(text.split())) for query, text in pairs]

items = [adacur.Item(f"i{{n}}", f"a text about the number {{n}} and nothing else") for n in range(40)]
queries = adacur.pseudo_queries(items, 6)
index = adacur.build(items, queries, scorer=shared_words, path="i.adacur", progress=False)
hits = index.search("the number 17", k=3, budget=20, first="bm25")
again = adacur.load("i.adacur", scorer=shared_words).search("the number 17", k=3, budget=20, first="bm25")
assert hits.ids == again.ids and adacur.store.verify("i.adacur").ok
print(hits.ids[0], hits.trace.calls, hits.trace.settings["first"])
"""
    assert python(script, cwd=tmp_path) == "i17 20 bm25\n"
