"""Dual encoders learn from judged queries, mine their own negatives, and are opened by their path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from word_worlds import pooled, word_collection

from adacur import BM25, Dense, Item, Query
from adacur.data import JudgedCollection
from adacur.errors import FetchError, InputError
from adacur.extras.train import TrainingSettings
from adacur.extras.train.judged_queries import JudgedQueries, learning_data, with_equal_texts
from adacur.first_stages import SentenceTransformerEncoder
from adacur.records import ItemList
from adacur_lab.dual_encoder import nearest_but, retrieval_quality, train_dual_encoder
from tests.unit.scorers.cross_encoders.tiny_models import WORDS, tiny_transformer

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
sentence_transformers = pytest.importorskip("sentence_transformers")

from adacur_lab import towers as towers_module  # noqa: E402
from adacur_lab.towers import TowerItems, TowerPair  # noqa: E402

QUICK = TrainingSettings(epochs=3, learning_rate=3e-3, batch_queries=8, patience=None)
TEXTS = ["w1 w2", "w3", "w4 w5 w6 w7", "w8 w9"]


def train(folder: Path, base: Path, **options):
    options = {"negatives": 2, "depth": 10, "held_out": 6, "settings": QUICK, "device": "cpu"} | options
    collection = options.pop("collection", None) or word_collection(46)
    return train_dual_encoder(collection, folder, base=base, **options)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tiny_transformer(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, base):
    """A short run with separate towers, and the model as it was when it was written."""
    written = []
    with pytest.MonkeyPatch.context() as patch:
        save = TowerPair.save
        patch.setattr(TowerPair, "save", lambda self, folder: (written.append(self), save(self, folder)))
        result = train(tmp_path_factory.mktemp("trained") / "model", base)
    return result, written[0]


@pytest.mark.parametrize(("towers", "epochs", "negatives"), [("separate", 18, 1), ("shared", 10, 3)])
def test_which_items_belong_to_a_query_is_learnt(tmp_path, base, towers, epochs, negatives) -> None:
    settings = TrainingSettings(epochs=epochs, learning_rate=5e-3, batch_queries=20, patience=None)
    result = train(
        tmp_path / "model",
        pooled(base, tmp_path / "pooled"),
        collection=word_collection(300),
        towers=towers,
        negatives=negatives,
        depth=20,
        held_out=30,
        settings=settings,
    )
    assert result.before["mrr@10"] < 0.3
    assert result.best["mrr@10"] > 0.6
    assert result.best["recall@6"] > result.before["recall@6"] + 0.4


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_a_base_with_weights_that_are_two_at_once_is_trained_and_goes_on(tmp_path, base, towers, monkeypatch) -> None:
    transformers = pytest.importorskip("transformers")
    t5 = transformers.T5Config(vocab_size=60, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    transformers.T5EncoderModel(t5).save_pretrained(tmp_path / "t5")
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "t5")
    options = {"towers": towers, "settings": replace(QUICK, epochs=2)}
    train(tmp_path / "whole", tmp_path / "t5", **options)

    checks = iter(range(3))

    def ended(*args, **of):
        if next(checks) == 2:
            raise KeyboardInterrupt
        return retrieval_quality(*args, **of)

    with monkeypatch.context() as patch:
        patch.setattr("adacur_lab.dual_encoder.retrieval_quality", ended)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "ended", tmp_path / "t5", **options)
    resumed = train(tmp_path / "ended", tmp_path / "t5", **options)
    assert resumed.queries == 40, "it began again instead of going on"

    encoded = [SentenceTransformerEncoder(tmp_path / name).encode_queries(TEXTS) for name in ("whole", "ended")]
    np.testing.assert_array_equal(*encoded)


def test_the_result_is_opened_by_its_path_with_the_vectors_that_were_trained(trained) -> None:
    result, model = trained
    encoder = SentenceTransformerEncoder(result.folder)
    for side, encode in (("query", encoder.encode_queries), ("item", encoder.encode_items)):
        np.testing.assert_allclose(encode(TEXTS), model.vectors(side, TEXTS).cpu(), atol=1e-5)
    # The towers were one model before they were trained apart.
    assert np.abs(encoder.encode_queries(TEXTS) - encoder.encode_items(TEXTS)).max() > 0.01


def test_dense_retrieval_with_the_result_is_as_good_as_the_best_check_said(trained) -> None:
    result, _ = trained
    collection = word_collection(46)
    held_out = learning_data(collection, held_out=6).held_out
    dense = Dense.build(collection.items, encoder=SentenceTransformerEncoder(result.folder), storage="float32")
    found = np.stack([ranking.positions for ranking in dense.search(held_out.queries, 10)])
    assert retrieval_quality(found, held_out.relevant, k=6) == result.best


def test_a_trained_dual_encoder_is_a_base_like_any_other(tmp_path, trained) -> None:
    first, model = trained
    again = TowerPair.opened(first.folder, towers="separate")
    for side in ("query", "item"):
        torch.testing.assert_close(again.vectors(side, TEXTS), model.vectors(side, TEXTS).cpu())
    second = train(tmp_path / "second", first.folder, settings=replace(QUICK, epochs=1))
    assert second.before == pytest.approx(first.best)


def test_a_shared_base_gives_both_towers_their_weights_pooling_prompts_and_length(tmp_path, base) -> None:
    modules = sentence_transformers.sentence_transformer.modules
    tower = [modules.Transformer(str(base)), modules.Pooling(32, "max"), modules.Normalize()]
    tower[0].max_seq_length = 7
    shared = sentence_transformers.SentenceTransformer(modules=tower, prompts={"query": "w1 ", "document": "w2 w3 "})
    shared.save_pretrained(str(tmp_path / "shared"), create_model_card=False)
    pair = TowerPair.opened(tmp_path / "shared", towers="separate")
    texts = [" ".join(WORDS[:20]), "w5"]
    for side, encode in (("query", shared.encode_query), ("item", shared.encode_document)):
        np.testing.assert_allclose(encode(texts), pair.vectors(side, texts), atol=1e-6)
    assert pair.scale == 20


def test_items_are_cut_where_it_is_asked_for(tmp_path, base) -> None:
    result = train(tmp_path / "model", base, settings=replace(QUICK, epochs=1), max_item_tokens=9, negatives=0)
    model = sentence_transformers.SentenceTransformer(str(result.folder), device="cpu")
    query, item = (model[0].sub_modules[name] for name in ("query", "document"))
    assert [query[0].max_seq_length, item[0].max_seq_length] == [64, 9]


def test_a_killed_run_continues_after_its_last_epoch(tmp_path, base, trained, monkeypatch) -> None:
    whole, _ = trained
    steps, step = 0, TowerItems.step

    def ending(self, examples):
        nonlocal steps
        steps += 1
        if steps == 9:
            raise KeyboardInterrupt
        return step(self, examples)

    monkeypatch.setattr(TowerItems, "step", ending)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "ended", base)
    monkeypatch.undo()
    resumed = train(tmp_path / "ended", base)
    assert resumed.queries == 2 * 40 < whole.queries, "it began again instead of going on"
    assert resumed.best == pytest.approx(whole.best, abs=0.1)
    assert {path.name for path in (resumed.folder / "training").iterdir()} == {"run.json", "result.json"}


def test_a_run_that_ended_while_it_was_written_is_written_again(tmp_path, base, trained, monkeypatch) -> None:
    whole, _ = trained
    from adacur.extras.train.run_folder import RunFolder

    publish = RunFolder.publish

    def ended(self, model):
        (model / "query_0_Transformer").rename(self.path / "query_0_Transformer")
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "publish", ended)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "ended", base)
    assert not (tmp_path / "ended" / "modules.json").exists()
    monkeypatch.setattr(RunFolder, "publish", publish)
    resumed = train(tmp_path / "ended", base)
    vectors = [SentenceTransformerEncoder(one.folder).encode_items(TEXTS) for one in (resumed, whole)]
    assert np.array_equal(*vectors)


def test_a_training_that_makes_it_worse_keeps_the_base(tmp_path, trained, monkeypatch) -> None:
    good, _ = trained
    worse = ({"mrr@10": 1 - n / 100} for n in range(100))
    monkeypatch.setattr("adacur_lab.dual_encoder.retrieval_quality", lambda *_, **__: next(worse))
    result = train(tmp_path / "model", good.folder, settings=replace(QUICK, epochs=1))
    assert result.best_update == 0
    assert result.best == result.before
    for part in ("query_0_Transformer", "document_0_Transformer"):
        assert len({(one.folder / part / "model.safetensors").read_bytes() for one in (result, good)}) == 1


def test_a_finished_run_is_not_run_again_and_other_options_are_refused(trained, base) -> None:
    result, _ = trained
    assert train(result.folder, base) == result
    with pytest.raises(InputError):
        train(result.folder, base, depth=11)


def words_in(count: int) -> ItemList:
    return ItemList([Item(f"i{n}", f"w{n} w{n + 1}") for n in range(count)])


def towers_of(base: Path, **options) -> TowerPair:
    torch.manual_seed(0)
    return TowerPair.opened(base, towers="separate", **options)


def test_mined_negatives_are_the_nearest_items_without_the_relevant_and_those_of_equal_text(base) -> None:
    items = ItemList([*words_in(20).at(range(20)), Item("twin", "w3 w4")])
    pair = towers_of(base)
    rows = TowerItems(pair, items)
    queries = [Query("a", "w3 w4"), Query("b", "w9")]
    judged = with_equal_texts(JudgedQueries(queries, [np.array([3]), np.array([9, 8, 4])]), rows.row_of)
    assert [sorted(of_query.tolist()) for of_query in judged.relevant] == [[3, 20], [4, 8, 9]]
    texts = [query.text for query in queries]
    mined = nearest_but(judged.relevant, texts, rows, depth=6)
    items_of = pair.vectors("item", [item.text for item in items.at(range(len(items)))])
    scores = (pair.vectors("query", texts) @ items_of.T).numpy()
    for row, known, pool in zip(scores, judged.relevant, mined, strict=True):
        row[known] = -np.inf
        # Not the items' numbers: twins have equal scores.
        assert row[pool].tolist() == np.sort(row)[::-1][:6].tolist()
    assert np.array(nearest_but(judged.relevant, texts, rows, depth=1000)).shape == (2, len(items) - 3)


def test_a_step_counts_each_text_once_and_no_other_relevant_item_as_a_negative(base) -> None:
    items = ItemList([*words_in(6).at(range(6)), Item("twin", "w1 w2")])
    pair = towers_of(base)
    rows = TowerItems(pair, items)
    texts = ["w1", "w2", "w1"]
    shown = [np.array([1, 5]), np.array([2, 6]), np.array([3])]
    relevant = [np.array([1, 2]), np.array([2]), np.array([3])]
    one_hot = [np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.array([1.0])]
    inputs = rows.step(list(zip(texts, shown, one_hot, [rows.row_of[own] for own in relevant], strict=True)))
    assert sum(len(chunk["input_ids"]) for chunk in inputs["items"][0]) == 4
    pair.eval()
    with torch.no_grad():
        loss = pair(**inputs)["loss"]
        vectors = pair.vectors("query", texts).numpy().astype(float)
        scores = vectors @ pair.vectors("item", [items.at([at])[0].text for at in (1, 2, 3, 5)]).numpy().astype(float).T
    # Columns are the items 1 (and its twin 6), 2, 3 and 5; item 2 is relevant to the first query too.
    scores[0, 1] = -np.inf
    by_hand = np.log(np.exp(scores).sum(1)) - scores[[0, 1, 2], [0, 1, 2]]
    assert float(loss) == pytest.approx(by_hand.mean(), rel=1e-4)


def test_half_a_surrogate_pair_is_read_as_a_question_mark(base) -> None:
    pair = towers_of(base)
    torch.testing.assert_close(pair.vectors("item", ["w1 \ud800 w2"]), pair.vectors("item", ["w1 ? w2"]))


def test_a_step_too_large_for_the_memory_has_the_same_gradients(base, monkeypatch) -> None:
    def gradients(texts_at_once: int) -> list:
        monkeypatch.setitem(towers_module._TEXTS_AT_ONCE, "cpu", texts_at_once)
        pair = towers_of(base)
        for module in pair.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        rows = TowerItems(pair, words_in(12))
        shown = [np.arange(4), np.arange(3, 9), np.arange(8, 12)]
        texts = ["w1 w5 w2", "w2", "w7 w8 w9 w10"]
        none = np.empty(0, np.intp)
        inputs = rows.step(
            [(text, own, np.full(len(own), 1 / len(own)), none) for text, own in zip(texts, shown, strict=True)]
        )
        pair.train()
        pair(**inputs)["loss"].backward()
        return [weights.grad for weights in pair.parameters() if weights.grad is not None]

    for whole, parts in zip(gradients(4096), gradients(2), strict=True):
        torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-4)


def test_the_first_epoch_has_the_negatives_of_the_first_stage_or_none_and_every_epoch_draws_anew(
    tmp_path, base, monkeypatch
) -> None:
    shown: list[list[list[int]]] = []
    step = TowerItems.step

    def seen(self, examples):
        shown[-1] += [positions.tolist() for _, positions, _, _ in sorted(examples, key=lambda example: example[0])]
        return step(self, examples)

    monkeypatch.setattr(TowerItems, "step", seen)
    settings = replace(QUICK, batch_queries=40, epochs=2)
    first = BM25.build(word_collection(46).items)
    for name, options in {"none": {}, "bm25": {"first": first}}.items():
        shown.append([])
        train(tmp_path / name, base, settings=settings, **options)
    sizes = [[len(own) for own in run] for run in shown]
    assert sizes == [[1] * 40 + [3] * 40, [3] * 80]
    assert shown[1][:40] != shown[1][40:]


@pytest.mark.parametrize("kind", ["roberta", "distilbert"])
def test_other_encoders_than_bert_are_trained_to_their_full_length(tmp_path, kind) -> None:
    long = word_collection(12)
    items = [Item(item.id, " ".join([item.text] * 40)) for item in long.items]
    collection = JudgedCollection("long", items, long.queries, long.qrels)
    base = tiny_transformer(tmp_path / "base", kind)
    result = train(tmp_path / "model", base, collection=collection, held_out=4, settings=replace(QUICK, epochs=1))
    assert SentenceTransformerEncoder(result.folder).encode_items([items[0].text]).shape == (1, 32)


def alone(text: str = "w1") -> JudgedCollection:
    queries = [Query("q0", text), Query("q1", "w2")]
    return JudgedCollection("two", words_in(3).at(range(3)), queries, {"q0": {"i0": 1}, "q1": {"i1": 1}})


@pytest.mark.parametrize(
    "options",
    [
        {"negatives": -1},
        {"negatives": 20},
        {"negatives": 0, "first": "bm25"},
        {"towers": "one"},
        {"max_item_tokens": 0},
        {"max_item_tokens": 1000},
        {"settings": replace(QUICK, batch_queries=1)},
        {"collection": alone(), "held_out": 1, "negatives": 0},
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, base, options) -> None:
    if options.get("first") == "bm25":
        options = options | {"first": BM25.build(word_collection(46).items)}
    with pytest.raises(InputError):
        train(tmp_path / "model", base, **options)


def test_items_that_are_all_relevant_are_refused(tmp_path, base) -> None:
    few = alone()
    judged = {"q0": {"i0": 1, "i1": 1, "i2": 1}, "q1": {"i0": 1, "i1": 1, "i2": 1}}
    collection = JudgedCollection("all", few.items, [*few.queries, Query("q2", "w7")], judged | {"q2": judged["q0"]})
    with pytest.raises(InputError):
        train(tmp_path / "model", base, collection=collection, held_out=1)


def test_a_base_that_is_no_encoder_is_refused(tmp_path, base, trained) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError):
        train(tmp_path / "model", empty)
    with pytest.raises(FetchError):
        train(tmp_path / "model", tmp_path / "nowhere")
    with pytest.raises(InputError):
        train(tmp_path / "other", trained[0].folder, towers="shared")
    static = sentence_transformers.sentence_transformer.modules.StaticEmbedding(
        towers_of(base)._towers["query"][0].tokenizer.backend_tokenizer, embedding_dim=8
    )
    sentence_transformers.SentenceTransformer(modules=[static], device="cpu").save_pretrained(
        str(tmp_path / "static"), create_model_card=False
    )
    with pytest.raises(InputError):
        train(tmp_path / "third", tmp_path / "static")
