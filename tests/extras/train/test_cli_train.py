"""`adacur train` as its users meet it: real folders, and a model small enough to be made here.

Processes are real where one is killed or interrupted, and where its stdout or what it imports is the point; elsewhere
the command runs in this one, since importing torch takes longer than most of what is tested.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adacur
from adacur.data import read_beir
from adacur.extras.train import export_onnx, train_cross_encoder
from adacur.requirements import install_command
from tests.functional.commands import ADACUR, Ran, environment, here, run, write_lines
from tests.unit.scorers.cross_encoders.tiny_models import WORDS, tiny_transformer

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

N_ITEMS, N_QUERIES = 60, 40
# A second or so of training, and a checkpoint after every epoch.
OPTIONS = ("head=cls", "negatives=5", "depth=20", "shortlist=20", "learning_rate=1e-3", "batch_queries=4", "patience=0")
QUICK = ("--base", "tiny", "--epochs", 4, *(part for one in OPTIONS for part in ("--set", one)))
SCORERS = """
def shared(pairs):
    return [len(set(query.split()) & set(text.split())) - len(text) / 100 for query, text in pairs]

"""


def settings(out: Path) -> dict[str, Any]:
    begun = json.loads((out / "training" / "run.json").read_text())
    return begun | begun.pop("settings")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """A tiny model is no faster with more, and several times as slow where others are at work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection, a base model and scorers; nobody may change them."""
    folder = tmp_path_factory.mktemp("shop")
    tiny_transformer(folder / "tiny", layers=1)
    (folder / "my_scorers.py").write_text(SCORERS)
    rng = np.random.default_rng(0)
    texts = [[str(word) for word in rng.choice(WORDS, 6)] for _ in range(N_ITEMS)]
    (folder / "beir" / "qrels").mkdir(parents=True)
    write_lines(folder / "beir" / "corpus.jsonl", [{"_id": f"i{n}", "text": " ".join(t)} for n, t in enumerate(texts)])
    questions = [{"_id": f"q{n}", "text": " ".join([*texts[n][:2], f"w{n}"])} for n in range(N_QUERIES)]
    write_lines(folder / "beir" / "queries.jsonl", questions)
    judge(folder / "beir", {f"q{n}": {f"i{n}": 1} for n in range(N_QUERIES)})
    return folder


def judge(folder: Path, qrels: dict[str, dict[str, int]], split: str = "train") -> None:
    rows = [f"{query}\t{item}\t{grade}\n" for query, own in qrels.items() for item, grade in own.items()]
    (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))


@pytest.fixture
def folder(shop: Path, tmp_path: Path) -> Path:
    """A folder of one's own, with the same in it."""
    shutil.copytree(shop, tmp_path, dirs_exist_ok=True)
    return tmp_path


def train(folder: Path, out: str, *options: object, data: str = "beir", ran: Any = here) -> Ran:
    return ran("train", data, out, *options, cwd=folder)


def losses(out: Path) -> list[float]:
    """The loss of every update."""
    lines = json.loads((out / "training" / "result.json").read_text())["log"]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.fixture(scope="module")
def training(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """A folder with a finished cross-encoder in it, and what the process said that trained it without interruption."""
    folder = tmp_path_factory.mktemp("trained") / "shop"
    shutil.copytree(shop, folder)
    ran = train(folder, "reranker", *QUICK, "--json", ran=run)
    assert ran.code == 0, ran
    return folder, ran


@pytest.fixture(scope="module")
def trained(training: tuple[Path, Ran]) -> Path:
    return training[0]


# ── what comes out ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_trained_cross_encoder_is_opened_by_its_path_by_torch_and_as_onnx(trained: Path) -> None:
    export_onnx(trained / "reranker", trained / "as-onnx")
    collection = read_beir(trained / "beir")
    pairs = [(query, item) for query in collection.queries[:5] for item in collection.items[:40]]

    with adacur.scorers.TorchCrossEncoder(trained / "reranker", device="cpu") as torch_scorer:
        expected = torch_scorer.score(pairs)
    with adacur.scorers.OnnxCrossEncoder(trained / "as-onnx") as onnx_scorer:
        np.testing.assert_allclose(onnx_scorer.score(pairs), expected, atol=1e-3)

    built = here("build", "beir", "by-onnx.adacur", "--scorer", "as-onnx", "-n", 4, cwd=trained)
    assert built.code == 0, built
    found = here("search", "by-onnx.adacur", "w1 w2", "-k", 2, "--budget", 9, "--scorer", "reranker", cwd=trained)
    assert found.code == 0, found


def test_an_emb_cross_encoder_is_trained_with_its_tags(folder: Path) -> None:
    emb = ("--set", "head=emb", "--set", "max_item_tokens=12")
    ran = train(folder, "emb", *QUICK, *emb, "--epochs", 1)
    assert ran.code == 0, ran
    # It learnt from cut items, and is to score such.
    assert "--scorer emb --max-item-tokens 12" in ran.err
    assert "adacur_emb_head" in json.loads((folder / "emb" / "config.json").read_text())


class BegunError(Exception):
    """Ends a run that has written what it is made from."""


def test_what_is_not_asked_for_is_as_in_the_library(shop: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def begun(*_: Any, **__: Any) -> None:
        raise BegunError

    monkeypatch.setattr("adacur.extras.train.fitting.fit", begun)
    base = shop / "tiny"
    train(shop, str(tmp_path / "command"), "--base", base, "--set", "head=cls").refused("BegunError")
    collection = read_beir(shop / "beir", split="train")
    first = adacur.BM25.build(collection.items)
    with pytest.raises(BegunError):
        train_cross_encoder(collection, tmp_path / "library", base=base, first=first, head="cls")
    assert settings(tmp_path / "command") == settings(tmp_path / "library")


def test_json_is_all_there_is_on_stdout(training: tuple[Path, Ran]) -> None:
    _, ran = training
    (facts,) = ran.json()

    assert facts["model"] == "reranker"
    assert "mrr" in facts["before"].keys() & facts["best"].keys()
    assert not facts["was_finished"]


def test_turns_search_with_the_model_and_the_cost_is_told_first(folder: Path) -> None:
    mixture = ("--set", "mixture=near=1,random=1,found=1", "--turns", 2)
    ran = train(folder, "mined", *QUICK, *mixture)

    assert ran.code == 0, ran
    assert (folder / "mined" / "training" / "mined-1.npz").exists()
    assert "4,320" in ran.err
    assert "mrr_all" in ran.out
    for wrong, says in ((("--turns", 5), "got 5"), (("--set", "mixture=far=1"), "far=1")):
        train(folder, "wrong", *QUICK, *wrong).refused(says)
    train(folder, "wrong", *QUICK, "--set", "mining_calls=50").refused("mining_calls must be at least 4,320")


# ── going on ──────────────────────────────────────────────────────────────────────────────────────────────────────


def killed(folder: Path, out: str, *options: object) -> int:
    """Train in another process until a checkpoint is there, and kill it; its exit code."""
    process = subprocess.Popen(
        [ADACUR, "train", "beir", out, *map(str, options)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        give_up = time.monotonic() + 120
        while not any((folder / out).glob("training/checkpoint-*/trainer_state.json")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < give_up, "the training does not get on"
            time.sleep(0.005)
        process.kill()
        return process.wait(60)
    finally:
        process.kill()
        process.communicate()


def test_a_killed_run_goes_on(trained: Path, folder: Path) -> None:
    assert killed(folder, "reranker", *QUICK) == -signal.SIGKILL
    assert not (folder / "reranker" / "config.json").exists(), "nothing may look like a model before it is one"

    again = train(folder, "reranker", *QUICK)

    assert again.code == 0, again
    assert "Continuing after update" in again.err
    seen = [json.loads((where / "reranker" / "training" / "result.json").read_text()) for where in (folder, trained)]
    assert seen[0]["queries"] < seen[1]["queries"], "it began again instead of going on"
    assert len(losses(folder / "reranker")) == len(losses(trained / "reranker"))


def test_ctrl_c_says_that_the_same_command_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("adacur.extras.train.fitting._RunCallback.on_log", interrupt)
    ran = train(folder, "reranker", *QUICK)

    assert ran.code == 130
    assert "same command" in ran.err
    assert "Traceback" not in ran.err


def test_a_finished_run_says_so_and_is_left_as_it_is(trained: Path) -> None:
    before = (trained / "reranker" / "model.safetensors").stat().st_mtime_ns

    again = train(trained, "reranker", *QUICK)

    assert again.code == 0, again
    assert "It was finished before: nothing was trained." in again.err
    assert "--scorer reranker" in again.err
    assert "mrr" in again.out
    assert (trained / "reranker" / "model.safetensors").stat().st_mtime_ns == before
    train(trained, "reranker", *QUICK, "--set", "learning_rate=2e-3").refused("learning_rate 0.001, now 0.002")


def test_a_full_disk_is_told_and_the_same_command_goes_on(trained: Path, folder: Path) -> None:
    # Room for the log and the tokenizer, not for the weights.
    few_bytes = 40_000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (few_bytes, before[1]))
    try:
        full = train(folder, "reranker", *QUICK)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    full.refused()

    again = train(folder, "reranker", *QUICK)

    assert again.code == 0, again
    assert len(losses(folder / "reranker")) == len(losses(trained / "reranker"))


# ── what cannot work ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("qrels", "says"),
    [
        ({f"q{n}": {f"i{n}": 0} for n in range(N_QUERIES)}, "40 judged queries"),
        ({f"q{n}": {f"i{m}": 1 for m in range(N_ITEMS)} for n in range(N_QUERIES)}, "all 60 items are relevant"),
        ({"q0": {"i0": 1}}, "2"),
        ({"nobody": {"i0": 1}}, "None of the 1 judged query ids"),
    ],
    ids=["no positives", "one label", "one query", "strangers"],
)
def test_judgements_that_teach_nothing_are_refused(qrels: dict[str, dict[str, int]], says: str, folder: Path) -> None:
    judge(folder / "beir", qrels)

    train(folder, "out", *QUICK).refused(says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--set", "head=nonsense"], ["'emb' or 'cls'"]),
        (["--first", "bm52"], ["bm52"]),
        (["--base", "all-MiniLM-L6-v3"], ["Did you mean 'all-MiniLM-L6-v2'?"]),
        (["--base", "bge-small-en-v1.5"], ["no weights that can be trained"]),
        (["--set", "learning_rate=5"], ["learning_rate", "5"]),
        (["--set", "learnig_rate=1e-5"], ["Did you mean 'learning_rate'?"]),
        (["--set", "split=dev"], ["qrels/dev.tsv"]),
        (["--set", "device=abacus"], ["abacus"]),
        (["--set", "held_out=40"], ["held_out", "40"]),
        (["--epochs", "0"], ["epochs", "0"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_options_that_cannot_work_are_refused_in_one_line(
    options: list[str], says: list[str], shop: Path, tmp_path: Path
) -> None:
    train(shop, str(tmp_path / "out"), *QUICK, *options).refused(*says)


def test_what_failed_before_its_first_checkpoint_may_be_mended_in_the_same_folder(folder: Path) -> None:
    train(folder, "out", *QUICK, "--set", "max_tokens=0").refused("max_tokens")

    assert train(folder, "out", *QUICK, "--epochs", 1).code == 0


def test_a_collection_or_folder_that_is_none_is_refused(shop: Path) -> None:
    train(shop, "out", *QUICK, data="beer").refused("beer", "BEIR folder")
    train(shop, "out", *QUICK, data="irds:beir/scifakt").refused("beir/scifakt")
    train(shop, "out", *QUICK, data="tiny").refused("corpus.jsonl")
    train(shop, "out", *QUICK, data="my_scorers.py").refused("my_scorers.py")
    train(shop, "my_scorers.py", *QUICK).refused("is a file")
    train(shop, "tiny", *QUICK).refused("tiny")


def test_the_judgements_of_a_test_are_not_learnt_from(folder: Path) -> None:
    judge(folder / "beir", {f"q{n}": {f"i{n}": 1} for n in range(30)})
    judge(folder / "beir", {f"q{n}": {f"i{n}": 1} for n in range(30, N_QUERIES)}, split="test")

    # More to check with than there are: what is read is told, and nothing is trained.
    ran = train(folder, "out", *QUICK, "--set", "held_out=99")
    assert "60 items, 30 judged queries" in ran.err
    assert "qrels/train.tsv" not in ran.err
    (folder / "beir" / "qrels" / "train.tsv").unlink()
    ran = train(folder, "out", *QUICK, "--set", "held_out=99")
    assert "60 items, 10 judged queries" in ran.err
    assert "qrels/train.tsv" in ran.err


# ── without the extra ─────────────────────────────────────────────────────────────────────────────────────────────


def test_without_the_extra_the_line_that_installs_it_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    ran = here("train", "beir", "out", cwd=tmp_path)

    assert ran.code == 1
    assert ran.err == f"Error: torch is not installed. Install it with: {install_command('training')}\n"
