"""Prompts: where texts go, which tokens come of it, what is never cut; readouts of tokens and labels."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from tokenizers import models

import adacur
from adacur.errors import InputError, TextTooLong, WrongScorer
from adacur.records import Item, Query
from adacur.scorers import PairPrompt, Readout, TorchCrossEncoder, scorer
from adacur.scorers.cross_encoders.opened_model import pair_prompt
from adacur.scorers.cross_encoders.pair_prompt import knows_pairs
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer
from adacur.scorers.cross_encoders.prompt_pieces import PromptPieces
from tests.unit.scorers.cross_encoders.tiny_models import (
    FORMATS,
    ITEMS,
    NASTY,
    PAIRS,
    QUERIES,
    byte_level,
    tiny_decoder,
    tiny_transformer,
)


@pytest.mark.parametrize("text", FORMATS)
def test_texts_tokenised_apart_have_the_tokens_of_the_whole_prompt(text) -> None:
    tokenizer = byte_level()
    prompt = PairPrompt.of_format(text, instruction="find it")
    tokens = PairTokenizer(tokenizer, max_tokens=400, prompt=prompt)
    queries = [Query(str(n), query) for n, query in enumerate(NASTY)]
    items = [Item(str(n), item) for n, item in enumerate(NASTY)]
    texts = tokens.texts(queries, items)
    for row, query in enumerate(NASTY):
        for column, item in enumerate(NASTY):
            whole = tokenizer.encode(prompt.render(query, item), add_special_tokens=False).ids
            assert texts.pair(row, column)[0].tolist() == whole, (query, item)


@pytest.mark.parametrize("text", FORMATS)
@pytest.mark.parametrize("limit", ["max_tokens", "max_item_tokens"])
def test_of_an_item_that_is_too_long_only_the_item_is_cut(text, limit) -> None:
    tokenizer = byte_level()
    prompt = PairPrompt.of_format(text, instruction="find it")
    limits = {"max_tokens": 150} if limit == "max_tokens" else {"max_tokens": 4000, "max_item_tokens": 20}
    tokens = PairTokenizer(tokenizer, prompt=prompt, **limits)
    long = " ".join(f"w{number}" for number in range(900))
    texts = tokens.texts([Query("q", "what is it")], [Item("i", long)])
    ids = texts.pair(0, 0)[0]
    assert len(ids) == (150 if limit == "max_tokens" else len(ids))
    read = tokenizer.decode(ids.tolist(), skip_special_tokens=False)
    before, _, behind = prompt.text.replace("|trim", "").replace("{query}", "what is it").partition("{item}")
    assert read.startswith(before)
    assert read.endswith(behind)
    kept = read[len(before) : len(read) - len(behind)]
    assert long.startswith(kept)
    assert len(kept) > 15


def test_a_query_that_leaves_no_place_for_an_item_is_refused() -> None:
    tokens = PairTokenizer(byte_level(), max_tokens=150, prompt=PairPrompt.of_format(FORMATS[0], instruction="x"))
    with pytest.raises(TextTooLong, match="'q'"):
        tokens.texts([Query("q", "word " * 200)], [Item("i", "a")])


@pytest.mark.parametrize("text", ["only {query}", "only {item}", "{query} {query} {item}", "neither"])
def test_a_prompt_without_one_place_for_each_text_is_refused(text) -> None:
    with pytest.raises(InputError, match=r"\{query\}.*\{item\}"):
        PairPrompt.of_format(text)


def test_an_instruction_goes_where_there_is_a_place_for_it_and_nowhere_else(tmp_path) -> None:
    with pytest.raises(InputError, match="'be strict'"):
        PairPrompt.of_format("{query} {item}", instruction="be strict")
    with pytest.raises(InputError, match="instruction"):
        PairPrompt.of_format("{instruction} {query} {item}")
    assert PairPrompt.of_format("{instruction}: {query} {item}", instruction="a{query}b").prefix == "a{query}b: "
    with pytest.raises(InputError, match="'be strict'"):
        scorer(tiny_transformer(tmp_path / "plain"), instruction="be strict")


def test_a_prompt_reads_its_own_text() -> None:
    for text in FORMATS:
        prompt = PairPrompt.of_format(text, instruction="find")
        assert PairPrompt.of_format(prompt.text).render(" a ", " b ") == prompt.render(" a ", " b ")


def chat(template: str):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level())
    tokenizer.chat_template = template
    return tokenizer


LOOP = "{% for m in messages %}<|s|>{{ m['role'] }}\n{{ m['content'] }}<|e|>\n{% endfor %}"


def test_a_chat_template_becomes_a_prompt_with_its_last_line_end_and_its_trimming() -> None:
    prompt = PairPrompt.of_chat(chat(LOOP), instruction="judge")
    assert prompt.text == "<|s|>system\njudge<|e|>\n<|s|>query\n{query}<|e|>\n<|s|>document\n{item}<|e|>\n"
    trimming = PairPrompt.of_chat(chat(LOOP.replace("m['content']", "m['content'] | trim")))
    assert "{query|trim}" in trimming.text
    assert trimming.render(" a ", "b\n") == "<|s|>query\na<|e|>\n<|s|>document\nb<|e|>\n"
    opened = LOOP + "{% if add_generation_prompt %}{{ '<|s|>assistant\n' }}{% endif %}"
    own = [{"role": "user", "content": "Q: {query} D: {item} ({instruction})"}]
    text = PairPrompt.of_chat(chat(opened), own, instruction="hm").text
    assert text == "<|s|>user\nQ: {query} D: {item} (hm)<|e|>\n<|s|>assistant\n"


ALTERNATING = (
    "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('only users') }}{% endif %}<|s|>{{ m.content }}"
    "<|e|>{% endfor %}{% if add_generation_prompt %}A:{{ '' if enable_thinking is false else ' thinking' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "knows"),
    [
        (LOOP, False),
        (ALTERNATING, False),
        ("{{ messages[0].content }} {{ messages[1].content }}", False),
        (
            "{{ messages | selectattr('role', 'eq', 'query') | first }} "
            '{{ messages | selectattr("role", "eq", "document") | first }}',
            True,
        ),
    ],
)
def test_a_template_for_conversations_is_told_from_one_for_pairs(template, knows) -> None:
    assert knows_pairs(chat(template)) is knows


@pytest.mark.parametrize("template", [LOOP, ALTERNATING])
def test_a_chat_model_that_says_nothing_of_pairs_takes_a_prompt(tmp_path, template) -> None:
    folder = tiny_decoder(tmp_path / "chat", kind="causal", template=template, positions=128)
    with pytest.raises(InputError, match="prompt="):
        scorer(folder, device="cpu")
    with scorer(folder, device="cpu", prompt="w1 {query} w2 {item}") as given:
        assert given.readout == Readout.odds("yes", "no")
    with scorer(folder, device="cpu", prompt=given.card.prompt, readout=given.card.readout) as again:
        assert again.card == given.card


def test_a_template_that_says_what_day_it_is_says_the_same_every_day() -> None:
    dated = "{{ strftime_now('%d %b %Y') }} {{ messages[0].content }} {{ messages[1].content }}"
    assert PairPrompt.of_chat(chat(dated)).text.startswith("26 Jul 2024 ")


def test_a_chat_template_of_structured_contents_is_understood() -> None:
    prompt = PairPrompt.of_chat(chat(LOOP.replace("m['content']", "m['content'][0]['text']")))
    assert prompt.text == "<|s|>query\n{query}<|e|>\n<|s|>document\n{item}<|e|>\n"


@pytest.mark.parametrize(
    ("template", "missing"),
    [
        ("{% for m in messages if m.role in ('user', 'query') %}{{ m.content }}{% endfor %}", "the item"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "the query or the item"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ],
)
def test_a_chat_template_without_a_place_for_query_or_item_is_refused(template, missing) -> None:
    with pytest.raises(InputError, match=missing):
        PairPrompt.of_chat(chat(template))


def test_a_template_raises_no_error_of_megabytes() -> None:
    with pytest.raises(InputError) as error:
        PairPrompt.of_chat(chat("{{ raise_exception('word' * 999999) }}"))
    assert len(str(error.value)) < 2000


def test_half_a_surrogate_pair_is_no_prompt() -> None:
    with pytest.raises(InputError):
        PairPrompt.of_format("\ud800 {query} {item}")


def test_a_template_that_drops_system_messages_has_no_place_for_an_instruction() -> None:
    with pytest.raises(InputError, match="'be strict'"):
        PairPrompt.of_chat(chat(LOOP.replace("messages", "messages if m.role != 'system'")), instruction="be strict")


@pytest.mark.parametrize(
    "readout",
    [
        Readout.label(),
        Readout.labels(1, 0),
        Readout.odds("yes", " no"),
        Readout.token(0),
    ],
)
def test_a_readout_reads_its_own_text(readout) -> None:
    assert Readout.of(str(readout)) == readout


@pytest.mark.parametrize(
    "given",
    [
        "yes",
        "odds('yes')",
        "odds('a', 'a')",
        "labels('a', 'b')",
        ("a",),
        ("a", "a"),
        ("a", None),
        ([], []),
        "open('x')",
        "grades(1, 0)",
        "token(True)",
        f"token({'-' * 100_000}1)",
        3,
    ],
)
def test_what_is_no_readout_is_refused(given) -> None:
    with pytest.raises(InputError):
        Readout.of(given)


def test_an_answer_must_be_one_token() -> None:
    tokenizer = byte_level(merges=False)
    with pytest.raises(InputError, match=r"\['y', 'e', 's'\].*'yes'"):
        Readout.odds("yes", "no").rows(tokenizer, n_rows=300)
    y, n = Readout.odds("y", "n").rows(tokenizer, n_rows=300)
    assert tokenizer.decode([y, n]) == "yn"
    with pytest.raises(InputError, match="299"):
        Readout.token(300).rows(tokenizer, n_rows=300)


def test_an_answer_that_the_vocabulary_does_not_know_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="'maybe'"):
        scorer(tiny_decoder(tmp_path, kind="causal"), readout=("yes", "maybe"), device="cpu")


# Models of two layers from here on.


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    return tiny_decoder(tmp_path_factory.mktemp("causal") / "model", kind="causal")


def logits_of(folder, prompts):
    """The logits behind each prompt, by a plain forward pass."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        rows = [
            model(torch.tensor([tokenizer.encode(text, add_special_tokens=False)])).logits[0, -1] for text in prompts
        ]
    return torch.stack(rows).numpy(), tokenizer


@pytest.mark.parametrize("text", ["w1 {query} w2 {item} w3", "w1 {item} w2 {query} w3"])
def test_every_readout_is_that_of_the_whole_models_logits(causal, text) -> None:
    logits, tokenizer = logits_of(causal, [PairPrompt.of_format(text).render(q.text, i.text) for q, i in PAIRS])
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    expected = {
        "odds('yes', 'no')": logits[:, yes] - logits[:, no],
        "token('no')": logits[:, no],
    }
    for readout, scores in expected.items():
        with TorchCrossEncoder(causal, prompt=text, readout=readout, device="cpu") as opened:
            np.testing.assert_allclose(opened.score(PAIRS), scores, atol=1e-4)
            np.testing.assert_allclose(opened.score_grid(QUERIES, ITEMS).ravel(), scores, atol=1e-4)


def test_logits_that_a_model_changes_behind_its_head_are_followed_or_refused(tmp_path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_decoder(tmp_path / "base", kind="causal"))
    sizes = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.5,
        "pad_token_id": 0,
    }  # fmt: skip
    capped = transformers.Gemma2Config(**sizes, head_dim=16, final_logit_softcapping=2.0)
    scaled = transformers.GraniteConfig(**sizes, logits_scaling=8.0)
    torch.manual_seed(0)
    for name, kind, config in (("capped", "Gemma2", capped), ("scaled", "Granite", scaled)):
        getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    logits, _ = logits_of(tmp_path / "capped", [f"w1 {query.text} w2 {item.text} w3" for query, item in PAIRS])
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    with TorchCrossEncoder(tmp_path / "capped", prompt="w1 {query} w2 {item} w3", device="cpu") as opened:
        np.testing.assert_allclose(opened.score(PAIRS), logits[:, yes] - logits[:, no], atol=1e-4)
    with pytest.raises(InputError):
        TorchCrossEncoder(tmp_path / "scaled", prompt="w1 {query} w2 {item} w3", device="cpu")


def test_another_instruction_is_another_scorer_and_an_index_refuses_it(causal, tmp_path) -> None:
    items = [Item(f"{n}", f"w{n} w{n + 1} w{n + 2}") for n in range(24)]
    options = {"prompt": "w1 {instruction} {query} w5 {item}", "device": "cpu"}
    with TorchCrossEncoder(causal, instruction="w9", **options) as built:
        adacur.build(items, QUERIES, scorer=built, path=tmp_path / "index", progress=False).close()
        assert "w9" in built.card.prompt
    with adacur.load(tmp_path / "index") as index:
        assert (index.scorer.card.prompt, index.scorer.card.readout) == (built.card.prompt, built.card.readout)
        assert index.drift is None
    with adacur.load(tmp_path / "index", scorer=causal) as index:
        assert index.scorer.card == built.card
    for other in ({"instruction": "w8"}, {"instruction": "w9", "readout": "token('yes')"}):
        with TorchCrossEncoder(causal, **other, **options) as scorer, pytest.raises(WrongScorer, match=r"w9|yes"):
            adacur.load(tmp_path / "index", scorer=scorer)


def test_two_labels_are_read_as_their_difference_where_one_says_so(tmp_path) -> None:
    folder = tiny_transformer(tmp_path / "two", labels=2)
    with pytest.raises(InputError, match=r"labels\(1, 0\)"):
        TorchCrossEncoder(folder, device="cpu")
    right, wrong = (
        TorchCrossEncoder(folder, device="cpu", readout=readout) for readout in ("labels(1, 0)", "labels(0, 1)")
    )
    np.testing.assert_allclose(right.score(PAIRS), -wrong.score(PAIRS), atol=1e-5)
    model = pytest.importorskip("transformers").AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = pytest.importorskip("torch").tensor([[2, 4, 3, 5, 3]]), pytest.importorskip("torch").tensor([[0, 0, 0, 1, 1]])
    logits = model(input_ids=ids[0], token_type_ids=ids[1]).logits[0].tolist()
    assert right.score([(Query("q", "w0"), Item("i", "w1"))])[0] == pytest.approx(logits[1] - logits[0], abs=1e-5)
    assert right.card.readout == "labels(1, 0)"


def test_pieces_fall_back_to_parts_with_a_word_where_a_tokenizer_joins_everything(caplog) -> None:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    pieces = PromptPieces.of(PairPrompt.of_format("x {query} y {item} z"), tokenizer)
    assert "tokenised apart" in caplog.text
    assert pieces.of_query("q") == "x q y "


@pytest.mark.parametrize("given", [7, ["{query} {item}"], {"role": "user"}])
def test_what_is_no_prompt_is_refused(tmp_path, given) -> None:
    with pytest.raises(InputError):
        pair_prompt(tmp_path, None, prompt=given, instruction=None)
