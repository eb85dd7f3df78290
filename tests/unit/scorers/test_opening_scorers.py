from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

import adacur.scorers
from adacur.errors import FileFormatError, InputError, MissingExtra, UnknownName, UnknownOption
from adacur.protocols import ScorerCard
from adacur.records import Item, Query
from adacur.requirements import install_command
from adacur.scorers import (
    FunctionScorer,
    HttpScorer,
    MatrixScorer,
    OnnxCrossEncoder,
    SentenceTransformersScorer,
    TorchCrossEncoder,
    scorer,
)
from tests.rerank_servers import RerankServer, logit_of
from tests.unit.scorers.cross_encoders.tiny_models import tiny_onnx, tiny_transformer

PAIR = (Query("q", "xx"), Item("i", "yyy"))


def lengths(pairs):
    return [len(query) + len(item) for query, item in pairs]


NOTHING = None
KNOWN = MatrixScorer(["q"], ["i"], [[1.0]])


def test_a_scorer_stays_what_it_is() -> None:
    assert scorer(KNOWN) is KNOWN
    with pytest.raises(InputError, match="'threads'"):
        scorer(KNOWN, threads=2)


def test_a_function_is_found_by_its_name_and_keeps_it() -> None:
    opened = scorer(f"{__name__}:lengths")
    assert opened.score([PAIR]).tolist() == [5.0]
    assert opened.card.source == f"{__name__}:lengths"
    assert scorer(f"{__name__}:KNOWN") is KNOWN


def test_folders_and_files_are_told_apart(tmp_path) -> None:
    graph, checkpoint = tiny_onnx(tmp_path / "graph"), tiny_transformer(tmp_path / "checkpoint")
    for source in (graph, str(graph), graph / "model.onnx"):
        with scorer(source, threads=1, max_tokens=40) as opened:
            assert isinstance(opened, OnnxCrossEncoder)
            assert opened.card.max_tokens == 40
    with scorer(str(checkpoint), device="cpu") as opened:
        assert isinstance(opened, TorchCrossEncoder)


async def awaited_lengths(pairs):
    return lengths(pairs)


class Callable:
    api_key = "secret"

    def __call__(self, pairs):
        return lengths(pairs)

    def __repr__(self) -> str:
        return f"Callable({self.api_key})"


@pytest.mark.parametrize("function", [lengths, awaited_lengths, Callable()])
def test_plain_and_async_functions_and_callable_objects_are_taken(function) -> None:
    opened = scorer(function)
    assert isinstance(opened, FunctionScorer)
    assert opened.score([PAIR]).tolist() == [5.0]
    assert "secret" not in str(opened.card)


def cross_encoder(folder):
    library = pytest.importorskip("sentence_transformers")
    return library.CrossEncoder(str(tiny_transformer(folder)), device="cpu")


def langchain_encoder(_):
    class Lengths(pytest.importorskip("langchain_core.cross_encoders").BaseCrossEncoder):
        def score(self, text_pairs):
            return lengths(text_pairs)

    return Lengths()


def ranker(folder):
    library = pytest.importorskip("rerankers")
    return library.Reranker(str(tiny_transformer(folder)), model_type="cross-encoder", device="cpu", verbose=0)


def test_a_cross_encoder_of_sentence_transformers_is_recognised(tmp_path, monkeypatch) -> None:
    made = cross_encoder(tmp_path)
    opened = scorer(made, name="mine")
    assert type(opened) is SentenceTransformersScorer
    assert opened.card.name == "mine"
    assert opened.score([PAIR]).shape == (1,)
    monkeypatch.setattr(sys.modules[__name__], "MADE", made, raising=False)
    again = scorer(f"{__name__}:MADE")
    assert type(again) is SentenceTransformersScorer
    assert again.card.source == f"{__name__}:MADE", "so that an index can open it again"


def test_objects_of_other_libraries_are_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="card"):
        scorer(langchain_encoder(tmp_path))


def test_a_function_of_pairs_is_the_adapter_of_other_libraries(tmp_path) -> None:
    encoder, ranked = langchain_encoder(tmp_path), ranker(tmp_path / "ranker")
    assert scorer(encoder.score, name="encoder").score([PAIR]).tolist() == [5.0]
    wrapped = scorer(lambda pairs: [ranked.rank(q, [text]).results[0].score for q, text in pairs], name="ranker-v1")
    with scorer(tmp_path / "ranker", device="cpu") as ours:
        assert wrapped.score([PAIR]) == pytest.approx(ours.score([PAIR]), abs=1e-4)


@pytest.mark.parametrize("shown", ["http", "HTTP"])
def test_a_url_is_a_service_and_its_key_is_shown_nowhere(tmp_path, caplog, shown) -> None:
    with RerankServer("tei", key="secret") as server, caplog.at_level(logging.DEBUG):
        url = server.root.replace("http", shown, 1)
        with adacur.scorer(url, kind="tei", api_key="secret", batch_size=4) as opened:
            assert isinstance(opened, HttpScorer)
            assert opened.score([PAIR])[0] == pytest.approx(logit_of("xx", "yyy"), abs=1e-4)
            items = [Item(f"i{n}", f"text {n}") for n in range(4)]
            adacur.build(items, [Query("a", "one")], scorer=opened, path=tmp_path / "i", progress=False)
    assert f"Scorer: {opened.card}" in caplog.messages
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"secret" not in written
    assert "secret" not in caplog.text + repr(opened) + str(opened.card)


def test_an_option_that_a_service_does_not_know_is_refused_without_showing_a_key() -> None:
    for source, error in (("https://user:secret@example.org", InputError), ("https://example.org", UnknownOption)):
        with pytest.raises(error) as refused:
            scorer(source, api_kez="secret")
        assert "secret" not in str(refused.value)


def test_cross_encoder_folders_go_to_the_fastest_class_that_can_run_them(tmp_path) -> None:
    model = cross_encoder(tmp_path / "plain")
    model.save_pretrained(str(tmp_path / "saved"))
    with scorer(tmp_path / "saved", device="cpu") as opened:
        assert isinstance(opened, TorchCrossEncoder)
    settings = tmp_path / "saved" / "config_sentence_transformers.json"
    prompted = json.loads(settings.read_text()) | {"prompts": {"ask": "w1 "}, "default_prompt_name": "ask"}
    settings.write_text(json.dumps(prompted))
    with scorer(tmp_path / "saved", device="cpu") as opened:
        assert isinstance(opened, SentenceTransformersScorer)
    (tmp_path / "saved" / "modules.json").write_text("[")
    with pytest.raises(FileFormatError, match=r"modules\.json"):
        scorer(tmp_path / "saved")


@pytest.mark.parametrize(
    ("settings", "modules"), [({"model_type": "SentenceTransformer"}, [{}]), ({}, [{}, {}]), (None, [{}, {}])]
)
def test_the_folder_of_a_dual_encoder_is_refused(tmp_path, settings, modules) -> None:
    tiny_transformer(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    if settings is not None:
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=r"dual encoder.*`encoder`"):
        scorer(tmp_path)


def test_models_that_are_no_function_of_pairs_are_refused_before_anything_is_called(tmp_path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = cross_encoder(tmp_path)
    dual = library.SentenceTransformer(modules=[library.sentence_transformer.modules.Pooling(4)])
    for source in (dual, model.model, library.CrossEncoder, FunctionScorer):
        with pytest.raises(InputError):
            scorer(source)


def test_a_model_with_two_labels_is_refused_whoever_brings_it(tmp_path) -> None:
    two = tiny_transformer(tmp_path / "two", labels=2)
    library = pytest.importorskip("sentence_transformers")
    for source in (
        two,
        tiny_onnx(tmp_path / "graph", labels=2),
        library.CrossEncoder(str(two), device="cpu"),
    ):
        with pytest.raises(InputError):
            scorer(source)


@pytest.mark.parametrize("content", [b"", b"not a model", None])
def test_an_onnx_file_that_cannot_be_read_is_refused(tmp_path, content) -> None:
    file = tiny_onnx(tmp_path) / "model.onnx"
    file.write_bytes(file.read_bytes()[:300] if content is None else content)
    with pytest.raises(InputError, match=r"model\.onnx"):
        scorer(file)


@pytest.mark.parametrize(
    "source",
    [
        *("no-such-thing", "", "no.such.module:f", f"{__name__}:missing", f"{__name__}:NOTHING", "a/b/c", 3, None),
        *(
            "empty",
            "notes.jsonl",
            "no/such/folder",
            "/nowhere/model",
            "letters_of_nobody.py",
            "letters_of_nobody:word",
            {"api_key": "secret"},
        ),
        *("127.0.0.1:8765", "htp://127.0.0.1:8765", "http:/127.0.0.1:8765"),
    ],
)
def test_what_nobody_knows_is_refused_and_no_object_is_shown(tmp_path, monkeypatch, source) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.jsonl").write_text("{}")
    (tmp_path / "letters_of_nobody.py").write_text("def words(pairs):\n    return [0.0] * len(pairs)\n")
    with pytest.raises(UnknownName) as refused:
        scorer(source)
    assert "secret" not in str(refused.value)


def test_a_scorer_without_a_card_is_told_to_get_one() -> None:
    class Nameless:
        def score(self, pairs):
            return lengths(pairs)

    with pytest.raises(InputError, match=r"`score`.*`card`"):
        scorer(Nameless())


def test_what_was_opened_is_logged_once_and_only_when_asked(tmp_path, caplog) -> None:
    folder = tiny_onnx(tmp_path / "tiny", dynamic=True)
    with caplog.at_level(logging.INFO, logger="adacur.scorers"):
        with scorer(folder, max_tokens=40) as opened:
            assert scorer(opened) is opened
        scorer(lengths, name="mine")
    line = f"Scorer: tiny · onnx · int8 · up to 40 tokens (given) · from {folder.resolve() / 'model.onnx'}"
    assert [record.getMessage() for record in caplog.records] == [
        line,
        f"Scorer: mine · function · from {__name__}:lengths",
    ]
    assert line == f"Scorer: {opened.card}"
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="adacur.scorers"), scorer(folder) as quiet:
        assert "card" not in vars(quiet), "hashing large weights takes seconds"
    assert not caplog.records


def test_a_card_is_one_line_of_what_is_known() -> None:
    assert str(ScorerCard(name="n", backend="b")) == "n · b"
    assert str(ScorerCard(name="n", backend="b", dtype="int8", arithmetic="exact products")) == "n · b · int8"
    wrong = ScorerCard(name="n", backend="b", dtype="int8", arithmetic="saturating products")
    assert str(wrong) == "n · b · int8 · saturating products"
    cut = ScorerCard(name="n", backend="b", dtype="float16", max_tokens=512, max_item_tokens=160, source="org/n")
    assert str(cut) == "n · b · float16 · up to 512 tokens · items cut to 160 tokens · from org/n"


def test_a_module_that_misses_an_import_of_its_own_is_not_called_absent(tmp_path, monkeypatch) -> None:
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        scorer("needs_more:f")


def test_a_name_of_the_catalogue_opens_wherever_a_scorer_is_taken(monkeypatch, tmp_path) -> None:
    name = "ms-marco-MiniLM-L-12-v2"
    monkeypatch.setattr("adacur.scorers.by_name.fetch", lambda asked: tiny_onnx(tmp_path / asked, dynamic=True))
    with scorer(name) as opened:
        assert isinstance(opened, OnnxCrossEncoder)
        assert opened.card.name == name
    index = adacur.AnchorIndex.from_items([Item("a", "w1"), Item("b", "w2")], scorer=name)
    assert index.scorer.card.name == name


@pytest.fixture
def without_torch(monkeypatch):
    for module in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, module, None)


def hub_model(tmp_path, monkeypatch, *, export: bool) -> list[list[str]]:
    """A hub with one model; returns the patterns that downloads are made with."""
    folder = tiny_onnx(tmp_path / "snapshot")
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx" / ("model.onnx" if export else "other.txt"))
    patterns: list[list[str]] = []

    def snapshot_download(name, *, allow_patterns):
        patterns.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr(pytest.importorskip("huggingface_hub"), "snapshot_download", snapshot_download)
    return patterns


def test_without_torch_a_hub_name_opens_the_onnx_export_of_its_checkpoint(tmp_path, monkeypatch, without_torch) -> None:
    patterns = hub_model(tmp_path, monkeypatch, export=True)
    with scorer("org/name") as opened:
        assert isinstance(opened, OnnxCrossEncoder)
        assert opened.card.name == "org/name"
    assert not any("safetensors" in pattern for pattern in patterns[0]), "weights that nothing here can run"


def test_without_torch_and_without_an_export_the_missing_extra_is_named(tmp_path, monkeypatch, without_torch) -> None:
    hub_model(tmp_path, monkeypatch, export=False)
    with pytest.raises(MissingExtra, match=r"onnx/model\.onnx") as refused:
        scorer("org/name")
    assert install_command("torch") in str(refused.value)


def test_with_no_runtime_at_all_both_extras_are_named(monkeypatch, without_torch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra) as refused:
        scorer("org/name")
    assert install_command("torch") in str(refused.value)
    assert install_command("onnx") in str(refused.value)


def test_every_public_name_can_be_imported() -> None:
    for name in adacur.scorers.__all__:
        assert getattr(adacur.scorers, name).__name__ == name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = adacur.scorers.nonsense


def test_recognising_an_object_imports_no_library() -> None:
    program = (
        "import sys, adacur\n"
        "adacur.scorer(lambda pairs: [0.0] * len(pairs))\n"
        "hosts = {'torch', 'sentence_transformers', 'langchain_core', 'rerankers', 'pyterrier', 'pandas', 'httpx2'}\n"
        "assert not hosts & set(sys.modules), hosts & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_named_scorer_of_a_module_is_known_by_where_it_was_found(tmp_path, monkeypatch) -> None:
    (tmp_path / "own_scorers.py").write_text(
        "import adacur\nwrapped = adacur.scorer(lambda pairs: [0.0 for _ in pairs], name='wrapped-1')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    opened = adacur.scorer("own_scorers:wrapped", name="wrapped-1")
    assert (opened.card.name, opened.card.source) == ("wrapped-1", "own_scorers:wrapped")
    with pytest.raises(InputError, match="name"):
        adacur.scorer("own_scorers:wrapped", name="another")
