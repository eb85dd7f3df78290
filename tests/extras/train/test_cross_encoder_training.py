"""Cross-encoders learn what they are shown, and a killed run ends where an uninterrupted one does."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adacur import BM25, Item, Query
from adacur.data import JudgedCollection
from adacur.errors import InputError, TrainingFailed
from adacur.extras.train import EmbHead, TrainingSettings, train_cross_encoder
from adacur.extras.train.checking import ranking_quality
from adacur.extras.train.judged_queries import learning_data
from adacur.extras.train.negatives import Draws
from adacur.extras.train.run_folder import RunFolder
from adacur.first_stages import Matrix
from adacur.scorers import TorchCrossEncoder
from tests.unit.scorers.cross_encoders.tiny_models import ITEMS, QUERIES, WORDS, tiny_transformer

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
ranking_model = pytest.importorskip("adacur.extras.train.ranking_model")
RankingModel = ranking_model.RankingModel

QUICK = TrainingSettings(epochs=3, learning_rate=3e-3, batch_queries=4, patience=None)


def collection(n_queries: int = 24, n_items: int = 30) -> JudgedCollection:
    """Relevant are the items with the word w0, one to each query."""
    rng = np.random.default_rng(0)
    items = [
        Item(f"i{n}", " ".join((["w0"] if n < n_queries else []) + [str(word) for word in rng.choice(WORDS[1:], 5)]))
        for n in range(n_queries + n_items)
    ]
    queries = [Query(f"q{n}", " ".join(map(str, rng.choice(WORDS[1:], 3)))) for n in range(n_queries)]
    return JudgedCollection("tiny", items, queries, {f"q{n}": {f"i{n}": 1} for n in range(n_queries)})


def first(of: JudgedCollection) -> Matrix:
    """Finds the relevant item among items without w0, in no useful order."""
    scores = np.random.default_rng(1).random((len(of.queries), len(of.items)))
    scores[:, : len(of.queries)] -= 1
    scores[np.arange(len(of.queries)), np.arange(len(of.queries))] += 2
    return Matrix(queries=of.queries, items=of.items, scores=scores)


def train(folder: Path, base: Path, **options):
    tiny = collection()
    asked = {"head": "cls", "negatives": 5, "depth": 20, "shortlist": 12, "settings": QUICK, "held_out": 8} | options
    return train_cross_encoder(tiny, folder, base=base, first=asked.pop("first", first(tiny)), **asked)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tiny_transformer(tmp_path_factory.mktemp("base") / "tiny", layers=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, base):
    """A finished run that nothing interrupted; nobody may change its folder."""
    return train(tmp_path_factory.mktemp("whole") / "model", base)


def well_trained(folder: Path, base: Path, **options):
    settings = TrainingSettings(epochs=16, learning_rate=1e-2, batch_queries=4, warmup=0.1, patience=None)
    return train(folder, base, settings=settings, **options)


@pytest.fixture(scope="module")
def judged(tmp_path_factory, base):
    """A run that learnt from judgements; nobody may change its folder."""
    return well_trained(tmp_path_factory.mktemp("judged") / "model", base)


@pytest.mark.parametrize("head", ["cls", "emb"])
def test_what_marks_relevant_items_is_learnt_and_the_model_is_opened_by_its_path(tmp_path, base, head, request) -> None:
    if head == "cls":
        trained = request.getfixturevalue("judged")
    else:
        trained = well_trained(tmp_path / "model", base, head="emb")
    assert trained.before["mrr"] < 0.6
    assert trained.best["mrr"] > 0.95
    tiny = collection()
    with TorchCrossEncoder(trained.folder, device="cpu") as scorer:
        scores = scorer.score_grid(tiny.queries[:3], tiny.items)
    has_word = np.array(["w0" in item.text.split() for item in tiny.items])
    assert all(row[has_word].mean() > np.quantile(row[~has_word], 0.9) for row in scores)
    assert not list((trained.folder / "training").glob("checkpoint-*"))


def test_a_killed_run_continues_after_its_last_epoch(tmp_path, base, whole, monkeypatch) -> None:
    checks = 0

    def ended(*args, **kwargs):
        nonlocal checks
        checks += 1
        if checks == 3:
            raise KeyboardInterrupt
        return quality(*args, **kwargs)

    from adacur.extras.train import checking

    quality = checking.ranking_quality
    monkeypatch.setattr(checking, "ranking_quality", ended)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "ended", base)
    monkeypatch.undo()
    # A checkpoint that a kill cut short must not be gone on from.
    cut = tmp_path / "ended" / "training" / "checkpoint-99"
    cut.mkdir()
    (cut / "model.safetensors").write_bytes(b"cut")
    assert not (tmp_path / "ended" / "config.json").exists()
    resumed = train(tmp_path / "ended", base)

    assert [line["step"] for line in resumed.log] == [line["step"] for line in whole.log]
    assert resumed.queries == 2 * 16 < whole.queries
    assert resumed.best == pytest.approx(whole.best, abs=0.1)


def ended_at_the_end(folder: Path, base: Path, monkeypatch, **options) -> Path:
    """Kill a run after its last checkpoint; the model that it was about to publish."""
    left: list[Path] = []

    def ended(run, model):
        left.append(shutil.copytree(model, folder.with_name("unpublished")))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "publish", ended)
        with pytest.raises(KeyboardInterrupt):
            train(folder, base, **options)
    return left[0]


def same_weights(one: Path, other: Path) -> bool:
    return (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def test_the_best_model_is_kept_where_the_folder_was_moved_before_the_run_went_on(tmp_path, base, monkeypatch) -> None:
    settings = replace(QUICK, epochs=8)
    model = ended_at_the_end(tmp_path / "ended", base, monkeypatch, settings=settings)
    (tmp_path / "ended").rename(tmp_path / "moved")
    resumed = train(tmp_path / "moved", base, settings=settings)
    assert 0 < resumed.best_update < resumed.updates
    assert same_weights(tmp_path / "moved", model)


def test_a_base_is_known_by_its_content_and_however_its_path_is_written(tmp_path, monkeypatch) -> None:
    base = tiny_transformer(tmp_path / "base")
    settings = replace(QUICK, epochs=1)
    done = train(tmp_path / "model", base, settings=settings)
    monkeypatch.chdir(tmp_path)
    assert train(tmp_path / "model", Path("base"), settings=settings) == done
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.5}))
    with pytest.raises(InputError):
        train(tmp_path / "model", base, settings=settings)


@pytest.mark.parametrize("head", ["cls", "emb"])
def test_token_types_are_left_out_in_training_where_the_scorer_leaves_them_out(tmp_path, monkeypatch, head) -> None:
    from adacur.extras.train import checking

    base = tiny_transformer(tmp_path / "base")
    config = json.loads((base / "tokenizer_config.json").read_text())
    names = {"model_input_names": ["input_ids", "attention_mask"]}
    (base / "tokenizer_config.json").write_text(json.dumps(config | names))
    checks, quality = [], checking.ranking_quality
    monkeypatch.setattr(checking, "ranking_quality", lambda *of: (checks.append(of), quality(*of))[1])
    settings = replace(QUICK, epochs=1)
    trained = train(tmp_path / "model", base, head=head, settings=settings)
    scores, shortlists, _ = checks[-1 if trained.best_update else 0]
    tiny = collection()
    held_out = learning_data(tiny, held_out=8).held_out.queries
    pairs = [(query, tiny.items[at]) for query, own in zip(held_out, shortlists, strict=True) for at in own]
    with TorchCrossEncoder(tmp_path / "model", device="cpu") as scorer:
        np.testing.assert_allclose(scorer.score(pairs), np.concatenate(scores), atol=1e-4)


def test_an_index_is_not_trained_into(tmp_path, base) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError):
        train(tmp_path, base)
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]


def test_a_model_is_not_written_into_the_one_that_it_starts_from(tmp_path) -> None:
    base = tiny_transformer(tmp_path / "base")
    with pytest.raises(InputError):
        train(base / "out", base)
    assert not (base / "out").exists()


def test_a_first_stage_with_other_weights_is_not_gone_on_with(tmp_path, base) -> None:
    before, retrained = first(collection()), first(collection())
    before.settings, retrained.settings = lambda: {"weights": "1"}, lambda: {"weights": "2"}  # type: ignore[method-assign]
    train(tmp_path / "model", base, first=before, settings=replace(QUICK, epochs=1))
    train(tmp_path / "model", base, first=before, settings=replace(QUICK, epochs=1))
    with pytest.raises(InputError):
        train(tmp_path / "model", base, first=retrained, settings=replace(QUICK, epochs=1))


def test_a_folder_with_somebody_elses_model_is_left_alone(tmp_path) -> None:
    base = tiny_transformer(tmp_path / "base")
    with pytest.raises(InputError):
        train(base, base)


def test_a_folder_that_somebody_calls_training_is_left_alone(tmp_path, base) -> None:
    mine = tmp_path / "model" / "training" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(InputError):
        train(tmp_path / "model", base)
    assert mine.read_text() == "mine"


def test_a_training_that_makes_it_worse_keeps_the_base_also_where_it_was_killed_at_its_end(
    tmp_path, judged, monkeypatch, caplog
) -> None:
    ruinous = {"settings": replace(QUICK, epochs=1, learning_rate=0.5)}
    ended_at_the_end(tmp_path / "model", judged.folder, monkeypatch, **ruinous)
    caplog.clear()
    result = train(tmp_path / "model", judged.folder, **ruinous)
    assert result.best_update == 0
    assert result.best == result.before
    assert "No check was as good as the one before training" in caplog.text
    assert same_weights(tmp_path / "model", judged.folder)


def test_checks_without_progress_end_the_training_and_the_best_model_is_kept(tmp_path, base) -> None:
    settings = TrainingSettings(epochs=50, learning_rate=3e-3, batch_queries=8, patience=2)
    trained = train(tmp_path / "model", base, settings=settings)
    assert trained.stopped_early
    assert trained.updates == trained.best_update + 2 * 2
    checks = [line["mrr"] for line in trained.log if "mrr" in line]
    assert trained.best["mrr"] == max(checks[1:])


def test_negatives_are_drawn_anew_for_every_epoch_and_alike_for_every_run(tmp_path, base, monkeypatch) -> None:
    seen: list[tuple[int, str, tuple[int, ...]]] = []
    draw = Draws.__call__

    def recorded(self, place, epoch, pool):
        chosen = draw(self, place, epoch, pool)
        assert chosen[0] in self.judged.relevant[place]
        seen.append((epoch, self.judged.queries[place].id, tuple(chosen[1:])))
        return chosen

    monkeypatch.setattr(Draws, "__call__", recorded)
    train(tmp_path / "one", base)
    once, seen[:] = set(seen), []
    train(tmp_path / "two", base)
    assert set(seen) == once
    by_query: dict[str, set[tuple[int, ...]]] = {}
    for _, query, chosen in once:
        by_query.setdefault(query, set()).add(chosen)
        assert int(query[1:]) not in chosen
    assert all(len(draws) == QUICK.epochs for draws in by_query.values())


def test_an_item_with_the_text_of_a_relevant_one_is_no_negative(tmp_path, base, monkeypatch) -> None:
    tiny = collection()
    # Every relevant item has a twin that nobody judged.
    items = [*tiny.items, *(Item(f"twin{n}", tiny.items[n].text) for n in range(len(tiny.queries)))]
    twins = JudgedCollection("twins", items, tiny.queries, tiny.qrels)
    shown: list[tuple[str, set[str]]] = []
    draw = Draws.__call__

    def recorded(self, place, epoch, pool):
        chosen = draw(self, place, epoch, pool)
        shown.append((items[chosen[0]].text, {items[at].text for at in chosen[1:]}))
        return chosen

    monkeypatch.setattr(Draws, "__call__", recorded)
    settings = replace(QUICK, epochs=1)
    train_cross_encoder(
        twins, tmp_path / "m", base=base, first=first(twins), head="cls", negatives=60, depth=60, settings=settings
    )
    assert shown
    assert not any(relevant in negatives for relevant, negatives in shown)


def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_learning_rate(tmp_path) -> None:
    base = tiny_transformer(tmp_path / "base", layers=1)
    body = pytest.importorskip("transformers").AutoModel.from_pretrained(base)
    with torch.no_grad():
        body.encoder.layer[-1].output.LayerNorm.weight.fill_(1e30)
    body.save_pretrained(base)
    with pytest.raises(TrainingFailed):
        train(tmp_path / "model", base, head="emb")


def test_weights_that_are_no_numbers_end_the_run_before_they_are_checked_and_kept(tmp_path, base, monkeypatch) -> None:
    step, steps = torch.optim.AdamW.step, 0

    def ruined(self, *args, **kwargs):
        nonlocal steps
        steps += 1
        answer = step(self, *args, **kwargs)
        if steps == 8:
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(math.nan)
        return answer

    monkeypatch.setattr(torch.optim.AdamW, "step", ruined)
    with pytest.raises(TrainingFailed, match="8"):
        train(tmp_path / "model", base)
    assert [path.name for path in (tmp_path / "model" / "training").glob("checkpoint-*")] == ["checkpoint-4"]


def test_scores_that_are_no_numbers_rank_last() -> None:
    shortlists, relevant = [np.arange(4)], [np.array([2])]
    for scores in ([math.nan] * 4, [0.0, 0.0, math.nan, 0.0], [math.nan, math.nan, 1.0, math.nan]):
        assert ranking_quality([np.array(scores)], shortlists, relevant)["mrr"] == 1 / 4
    assert ranking_quality([np.array([0.0, 3.0, 1.0, 1.0])], shortlists, relevant)["mrr"] == 1 / 3


def test_more_queries_in_a_batch_than_there_are_is_one_step_per_epoch(tmp_path, base) -> None:
    trained = train(tmp_path / "model", base, settings=TrainingSettings(epochs=2, batch_queries=512))
    assert trained.updates == 2


@pytest.fixture
def calm(tmp_path) -> Path:
    """A base without dropout, whose draws differ between one pass and several."""
    folder = tiny_transformer(tmp_path / "calm", layers=1)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    )
    return folder


@pytest.mark.parametrize("head", [None, EmbHead()])
def test_a_step_too_large_for_the_memory_has_the_same_gradients(calm, head, monkeypatch) -> None:
    torch.manual_seed(0)
    model = RankingModel(calm, head, max_tokens=None, max_item_tokens=None).train()
    texts = model.tokens.texts(QUERIES, ITEMS)
    rng = np.random.default_rng(0)
    step = model.step(texts, [(place, rng.choice(len(ITEMS), 6, replace=False)) for place in range(len(QUERIES))])

    def gradients(most_tokens: int) -> list:
        model.zero_grad()
        monkeypatch.setitem(ranking_model._TOKENS_IN_MEMORY, "cpu", most_tokens)
        monkeypatch.setitem(ranking_model._TOKENS_AT_ONCE, "cpu", most_tokens)
        model(**step)["loss"].backward()
        return [weights.grad.clone() for weights in model.parameters() if weights.grad is not None]

    whole = gradients(100_000)
    rounding = 1e-6 * max(float(gradient.abs().max()) for gradient in whole)
    for one, other in zip(gradients(1), whole, strict=True):
        torch.testing.assert_close(one, other, atol=rounding, rtol=1e-4)


def test_a_device_that_runs_out_of_memory_ends_the_run_and_the_same_call_goes_on(tmp_path, base, monkeypatch) -> None:
    scored, n_calls = RankingModel._scores, 0

    def failing(self, **inputs):
        nonlocal n_calls
        n_calls += self.training
        # In the second epoch.
        if n_calls == 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return scored(self, **inputs)

    with monkeypatch.context() as patch:
        patch.setattr(RankingModel, "_scores", failing)
        with pytest.raises(TrainingFailed, match="4"):
            train(tmp_path / "m", base)
    assert train(tmp_path / "m", base).queries == 2 * 16


def test_accumulated_steps_learn_what_one_large_step_does(tmp_path, calm) -> None:
    common = {"epochs": 2, "learning_rate": 1e-3, "patience": None}
    large = train(tmp_path / "large", calm, settings=TrainingSettings(batch_queries=8, **common))
    small = train(tmp_path / "small", calm, settings=TrainingSettings(batch_queries=2, accumulate=4, **common))
    assert small.updates == large.updates == 4
    losses = [[line["loss"] for line in trained.log if "loss" in line] for trained in (large, small)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-3)


def test_a_first_stage_that_finds_nothing_to_check_with_is_refused(tmp_path, base) -> None:
    strangers = BM25.build([Item(item.id, f"stranger{n}") for n, item in enumerate(collection().items)])
    with pytest.raises(InputError):
        train(tmp_path / "model", base, first=strangers)


@pytest.mark.parametrize("head", ["cls", "emb"])
def test_a_base_that_lacks_weights_of_its_encoder_is_refused(tmp_path, head) -> None:
    base = tiny_transformer(tmp_path / "base")
    body = pytest.importorskip("transformers").AutoModel.from_pretrained(base)
    # A head and a pooler may be missing; a layer may not.
    whole = {name: weight for name, weight in body.state_dict().items() if not name.startswith("pooler.")}
    body.save_pretrained(base, state_dict=whole)
    train(tmp_path / "headless", base, head=head, settings=replace(QUICK, epochs=1))
    body.save_pretrained(base, state_dict={name: row for name, row in whole.items() if "layer.1" not in name})
    with pytest.raises(InputError):
        train(tmp_path / "cut", base, head=head)


def test_a_tokenizer_that_is_python_alone_is_refused(tmp_path) -> None:
    base = tiny_transformer(tmp_path / "base")
    (base / "tokenizer.json").unlink()
    pytest.importorskip("transformers").ByT5Tokenizer().save_pretrained(base)
    with pytest.raises(InputError):
        train(tmp_path / "model", base)


@pytest.mark.parametrize("device", ["abacus", "mps", "cuda:1", "cuda"])
def test_a_device_is_checked_before_anything_is_read(tmp_path, base, device) -> None:
    if device == "cuda" and torch.cuda.device_count() == 1:
        pytest.skip("there is one GPU here")
    with pytest.raises(InputError):
        train(tmp_path / "model", base, device=device)
    assert not (tmp_path / "model").exists()


def test_bfloat16_on_a_cpu_is_refused(tmp_path, base) -> None:
    with pytest.raises(InputError):
        train(tmp_path / "model", base, device="cpu", settings=replace(QUICK, precision="bfloat16"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"learning_rate": 0.0},
        {"batch_queries": 1.5},
        {"warmup": 1.0},
        {"patience": 0},
        {"precision": "int8"},
        {"seed": -1},
        {"seed": 2**32},
        {"weight_decay": -1.0},
        {"clip": math.nan},
    ],
)
def test_settings_out_of_range_are_refused(wrong) -> None:
    with pytest.raises(InputError):
        TrainingSettings(**wrong)
