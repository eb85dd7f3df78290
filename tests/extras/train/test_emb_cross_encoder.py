from __future__ import annotations

import errno
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from adacur.errors import FileFormatError, InputError, StorageFull
from adacur.extras.train import EmbHead, load_emb_cross_encoder, make_emb_cross_encoder, save_emb_cross_encoder
from adacur.records import Item, Query
from adacur.scorers import TorchCrossEncoder
from adacur.scorers.cross_encoders.forwards import PaddedBatches
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer
from tests.unit.scorers.cross_encoders.tiny_models import ITEMS, PAIRS, QUERIES, WORDS, tiny_emb, tiny_transformer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

START, END, ITEM = EmbHead().tags
# Tags within a text, as ZeShEL has them; a title that a long query leaves no room for; tags again where none counts.
TAGGED = [
    (Query("mention", f"w1 w2 {START} w3 {END} w4"), Item("entity", f"w5 {ITEM} w6 w7 w8")),
    (Query("plain", "w1 w3"), Item("title", f"{' '.join(WORDS[:25])} {ITEM} w6 w7 w8")),
    (Query("long", " ".join([*WORDS, "w1"])), Item("title", f"{' '.join(WORDS[:25])} {ITEM} w6 w7 w8")),
    (Query("again", f"{START} w9 {END} w3 {START} {END}"), Item("twice", f"w1 {ITEM} w2 {ITEM} {START} {END} w3")),
]


@pytest.fixture(scope="module", params=["bert", "roberta", "distilbert"])
def folder(request, tmp_path_factory) -> Path:
    return tiny_emb(tmp_path_factory.mktemp("tiny") / request.param, request.param)


def last(ids: list[int], tag: int) -> int:
    return len(ids) - 1 - ids[::-1].index(tag)


def literally(folder: Path, pairs, *, max_length: int) -> np.ndarray:
    """The paper's formula over the vectors of plain transformers, pair by pair."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    body = transformers.AutoModel.from_pretrained(folder)
    start, end, item_tag = tokenizer.convert_tokens_to_ids([START, END, ITEM])
    scores = []
    for query, item in pairs:
        inputs = tokenizer([query.text], [item.text], return_token_type_ids=True)
        ids, types = inputs["input_ids"][0], inputs["token_type_ids"][0]
        if len(ids) > max_length:
            ids, types = ids[: max_length - 1] + ids[-1:], types[:max_length]
        mask = [1] * len(ids)
        fed = {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([mask])}
        if "token_type_ids" in tokenizer.model_input_names:
            fed["token_type_ids"] = torch.tensor([types])
        with torch.inference_mode():
            states = body.eval()(**fed).last_hidden_state[0].double().numpy()
        first_end = ids.index(end)
        query_vector = (states[last(ids[:first_end], start)] + states[first_end]) / 2
        scores.append(query_vector @ states[last(ids, item_tag)])
    return np.array(scores)


@pytest.mark.parametrize("batch_tokens", [None, 1, 150])
def test_scores_are_the_papers_formula(folder, batch_tokens) -> None:
    pairs = PAIRS + TAGGED
    expected = literally(folder, pairs, max_length=64)
    assert np.ptp(expected) > 1
    with TorchCrossEncoder(folder, device="cpu", batch_tokens=batch_tokens) as opened:
        np.testing.assert_allclose(opened.score(pairs), expected, atol=1e-5, rtol=1e-6)
        grid = opened.score_grid(QUERIES, ITEMS)
    np.testing.assert_allclose(grid.ravel(), expected[: len(PAIRS)], atol=1e-5, rtol=1e-6)


def test_packed_scores_are_those_of_the_padded_forward(folder) -> None:
    pairs = PAIRS + TAGGED
    tokenizer, module = load_emb_cross_encoder(folder)
    tokens = PairTokenizer(tokenizer.backend_tokenizer, max_tokens=64)
    batches = PaddedBatches(torch, tokens.pairs(pairs), device=torch.device("cpu"), pad_id=tokenizer.pad_token_id)
    inputs = batches.inputs(0, len(pairs))
    if "token_type_ids" not in tokenizer.model_input_names:
        del inputs["token_type_ids"]
    with torch.inference_mode():
        logits = module(**inputs).logits[torch.argsort(batches.order)]
    assert logits.shape == (len(pairs), 1)
    with TorchCrossEncoder(folder, device="cpu") as opened:
        assert (type(opened._forward).__name__ == "PackedForward") == (module.config.model_type != "distilbert")
        np.testing.assert_allclose(opened.score(pairs), logits[:, 0].numpy(), atol=1e-5, rtol=1e-6)


def test_a_large_grid_in_parts_keeps_each_items_tag(folder, monkeypatch) -> None:
    items = [item for _, item in TAGGED] + ITEMS
    with TorchCrossEncoder(folder, device="cpu") as opened:
        whole = opened.score_grid(QUERIES, items)
        monkeypatch.setattr("adacur.scorers.cross_encoders.torch._PAIRS_AT_ONCE", 3 * len(QUERIES))
        np.testing.assert_allclose(opened.score_grid(QUERIES, items), whole, atol=1e-5, rtol=1e-6)


def test_the_body_may_be_halved_and_the_score_is_not(folder) -> None:
    with (
        TorchCrossEncoder(folder, device="cpu", dtype="float16") as half,
        TorchCrossEncoder(folder, device="cpu") as full,
    ):
        np.testing.assert_allclose(half.score(PAIRS), full.score(PAIRS), atol=0.2)
        assert not np.array_equal(half.score(PAIRS), half.score(PAIRS).astype(np.float16).astype(np.float32))
        assert half.card.weights == full.card.weights


def test_gradients_reach_every_layer_and_autocast_leaves_the_score_alone(tmp_path) -> None:
    tokenizer, module = load_emb_cross_encoder(tiny_emb(tmp_path))
    inputs = tokenizer([f"{START} w1 {END}"], [f"{ITEM} w2 w3"], return_tensors="pt")
    with torch.autocast("cpu", dtype=torch.float16):
        logits = module.train()(**inputs).logits
    assert logits.dtype == torch.float32
    logits.sum().backward()
    without = [name for name, weight in module.named_parameters() if weight.grad is None or not weight.grad.any()]
    # The same number added to every key changes no attention.
    assert [name for name in without if not name.endswith("key.bias")] == []


def test_a_model_that_was_saved_is_read_again_by_us_and_its_encoder_by_transformers(tmp_path) -> None:
    folder = tiny_emb(tmp_path)
    tokenizer, module = load_emb_cross_encoder(folder)
    inputs = tokenizer([f"{START} w1 {END}"], [f"{ITEM} w2 w3"], return_tensors="pt")
    save_emb_cross_encoder(module, tokenizer, tmp_path / "again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "base", "emb"]
    same_tokenizer, same = load_emb_cross_encoder(tmp_path / "again")
    encoder = transformers.AutoModel.from_pretrained(tmp_path / "again").eval()
    with torch.inference_mode():
        torch.testing.assert_close(same(**inputs).logits, module(**inputs).logits, rtol=0, atol=0)
        states = encoder(**inputs).last_hidden_state
        torch.testing.assert_close(states, module.base_model(**inputs).last_hidden_state, rtol=0, atol=0)
    assert same.head == module.head
    assert same_tokenizer(f"w1{ITEM}w2")["input_ids"][3] == module.tag_ids[2]
    assert pickle.loads(pickle.dumps(same)).tag_ids == module.tag_ids


def test_tags_keep_the_ids_that_a_vocabulary_has_for_them(tmp_path) -> None:
    base = tiny_transformer(tmp_path)
    before = transformers.AutoTokenizer.from_pretrained(base).get_vocab()
    head = EmbHead("w37", "w38", "w39")
    tokenizer, module = make_emb_cross_encoder(base, head=head)
    assert module.tag_ids == tuple(before[tag] for tag in head.tags)
    assert tokenizer.get_vocab() == before
    assert tokenizer("w1w37")["input_ids"][2:-1] == [before["w1"], before["w37"]]


def test_a_base_without_the_tags_gets_them(tmp_path) -> None:
    base = tiny_transformer(tmp_path)
    known = make_emb_cross_encoder(base, head=EmbHead("w0", "w1", "w2"))[1].get_parameter(
        "base_model.embeddings.word_embeddings.weight"
    )
    torch.manual_seed(1)
    _, module = make_emb_cross_encoder(base)
    torch.manual_seed(2)
    _, again = make_emb_cross_encoder(base)
    words = module.base_model.embeddings.word_embeddings.weight
    assert module.tag_ids == (len(known), len(known) + 1, len(known) + 2)
    assert module.config.vocab_size == len(words) == len(known) + 3
    torch.testing.assert_close(words[: len(known)], known, rtol=0, atol=0)
    torch.testing.assert_close(words, again.base_model.embeddings.word_embeddings.weight, rtol=0, atol=0)
    assert len(torch.unique(words[len(known) :], dim=0)) == 3


def test_a_base_with_a_decoder_is_refused(tmp_path) -> None:
    small = transformers.T5Config(vocab_size=60, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    transformers.AutoTokenizer.from_pretrained(tiny_transformer(tmp_path / "bert")).save_pretrained(tmp_path / "t5")
    transformers.T5Model(small).save_pretrained(tmp_path / "t5")
    with pytest.raises(InputError):
        make_emb_cross_encoder(tmp_path / "t5")


def test_a_sentence_transformers_folder_serves_as_base(tmp_path) -> None:
    library = pytest.importorskip("sentence_transformers")
    base = tiny_transformer(tmp_path / "base")
    library.SentenceTransformer(str(base), device="cpu").save(str(tmp_path / "whole"))
    (tmp_path / "old").mkdir()
    shutil.copytree(base, tmp_path / "old" / "0_Transformer")
    _, older = make_emb_cross_encoder(tmp_path / "old")
    _, module = make_emb_cross_encoder(tmp_path / "whole")
    _, plain = make_emb_cross_encoder(base)
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], weight, rtol=0, atol=0)
        torch.testing.assert_close(older.state_dict()[name], weight, rtol=0, atol=0)


def test_another_head_over_the_same_weights_has_another_card(tmp_path) -> None:
    folder = tiny_emb(tmp_path)
    cards = []
    for change in ({}, {"item": "w3"}, {"item": ITEM}):
        config = json.loads((folder / "config.json").read_text())
        config["adacur_emb_head"] |= change
        (folder / "config.json").write_text(json.dumps(config))
        with TorchCrossEncoder(folder, device="cpu") as opened:
            cards.append(opened.card)
    assert cards[0] == cards[2]
    assert len({card.settings for card in cards}) == 2


@pytest.mark.parametrize("head", [{"item": "[unused0]"}, {"query_start": " "}])
def test_a_head_that_cannot_be_is_refused(head) -> None:
    with pytest.raises(InputError):
        EmbHead(**head)
    with pytest.raises(FileFormatError, match="adacur_emb_head"):
        EmbHead.from_config({"adacur_emb_head": head})


def test_a_head_is_read_from_what_it_wrote() -> None:
    head = EmbHead("a", "b", "c")
    assert EmbHead.from_config({"model_type": "bert"} | head.to_config()) == head
    assert EmbHead.from_config({"model_type": "bert"}) is None
    with pytest.raises(FileFormatError, match="adacur_emb_head"):
        EmbHead.from_config({"adacur_emb_head": {"pooling": "mean"}})


def test_folders_that_hold_no_such_model_are_refused(tmp_path) -> None:
    base = tiny_transformer(tmp_path / "base")
    with pytest.raises(InputError, match="'adacur_emb_head'"):
        load_emb_cross_encoder(base)
    with pytest.raises(InputError):
        make_emb_cross_encoder(tmp_path)
    folder = tiny_emb(tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    config["adacur_emb_head"]["item"] = "[nothing]"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"\[nothing\]"):
        TorchCrossEncoder(folder)
    body = transformers.AutoModel.from_pretrained(base)
    weights = {name: weight for name, weight in body.state_dict().items() if "layer.1" not in name}
    body.save_pretrained(folder, state_dict=weights)
    with pytest.raises(InputError):
        make_emb_cross_encoder(folder, head=EmbHead("w0", "w1", "w2"))


def test_a_tokenizer_of_another_model_is_told(tmp_path) -> None:
    base, other = tiny_transformer(tmp_path / "base"), tiny_emb(tmp_path / "other")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (base / name).write_text((other / name).read_text())
    with pytest.raises(InputError):
        make_emb_cross_encoder(base)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_save_that_breaks_off_leaves_nothing(tmp_path, monkeypatch, error) -> None:
    tokenizer, module = load_emb_cross_encoder(tiny_emb(tmp_path))

    def breaks_off(self, folder):
        (Path(folder) / "half").write_text("a")
        raise error

    monkeypatch.setattr(type(tokenizer), "save_pretrained", breaks_off)
    with pytest.raises(StorageFull if isinstance(error, OSError) else KeyboardInterrupt):
        save_emb_cross_encoder(module, tokenizer, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "emb"]


def test_a_folder_that_holds_something_is_not_replaced(tmp_path) -> None:
    folder = tiny_emb(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    tokenizer, module = load_emb_cross_encoder(folder)
    with pytest.raises(InputError):
        save_emb_cross_encoder(module, tokenizer, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
