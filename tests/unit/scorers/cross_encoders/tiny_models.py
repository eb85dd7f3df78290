"""Cross-encoders small enough to be made in a test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from adacur.extras.train import EmbHead, make_emb_cross_encoder, save_emb_cross_encoder
from adacur.records import Item, Query

WORDS = [f"w{number}" for number in range(40)]
QUERIES = [Query(f"q{n}", " ".join(WORDS[n : 2 * n + 2])) for n in range(5)]
ITEMS = [Item(f"i{n}", " ".join(WORDS[(7 * n + step * step) % 40] for step in range(3 * n % 31))) for n in range(14)]
PAIRS = [(query, item) for query in QUERIES for item in ITEMS]
# Prompts whose texts join with what stands beside them, and such texts.
FORMATS = [
    "<|s|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {item}<|e|>\n<|s|>assistant\n\n\n",
    "query: {query}\ndocument: {item}\nIs it relevant, {instruction}?\nRelevance:",
    "{instruction}: {query} {item}",
    "<|s|>Check.\n<Document> {item}\n<Query> {query} {instruction} ??",
    "<|s|>{query|trim}<|e|>\n{instruction}\n<|s|>{item|trim}<|e|>\n",
]
NASTY = [
    "plain words",
    " lead",
    "trail ",
    "ends.",
    "line\n",
    "\n\nline\n",
    "it's",
    "12 7",
    "",
    "日本語 🙂",
    "<a> ?",
    "x  y",
]


def tiny_tokenizer(style: str, *, unused: tuple[str, ...] = ()) -> tokenizers.Tokenizer:
    """WordPiece with the pair template of BERT or of RoBERTa; padding and truncation on, as in files from the hub.

    `unused` are words that the vocabulary has and no text can spell, as BERT's has "[unused0]".
    """
    first, last, pad = {"bert": ("[CLS]", "[SEP]", "[PAD]"), "roberta": ("<s>", "</s>", "<pad>")}[style]
    special = [pad, "[UNK]", first, last] if style == "bert" else [first, pad, last, "[UNK]"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS, "a", "b", "##a", *unused])}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pair = f"{first} $A {last} $B:1 {last}:1" if style == "bert" else f"{first} $A {last} {last} $B:0 {last}"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=pair,
        special_tokens=[(first, vocabulary[first]), (last, vocabulary[last])],
    )
    tokenizer.enable_padding(pad_id=vocabulary[pad], pad_token=pad, length=64)
    tokenizer.enable_truncation(32)
    return tokenizer


def tiny_transformer(
    folder: Path, style: str = "bert", *, labels: int = 1, positions: int = 64, layers: int = 2
) -> Path:
    """A randomly initialised BERT, RoBERTa or DistilBERT classifier for up to `positions` tokens."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = tiny_tokenizer("roberta" if style == "roberta" else "bert")
    sizes = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "num_labels": labels,
        "initializer_range": 0.3,
    }
    torch.manual_seed(0)
    if style == "bert":
        config = transformers.BertConfig(**sizes, max_position_embeddings=positions, pad_token_id=0)
        model = transformers.BertForSequenceClassification(config)
        marks = {"pad_token": "[PAD]", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    elif style == "distilbert":
        config = transformers.DistilBertConfig(
            vocab_size=sizes["vocab_size"],
            dim=32,
            n_layers=layers,
            n_heads=2,
            hidden_dim=64,
            num_labels=labels,
            initializer_range=0.3,
            max_position_embeddings=positions,
            pad_token_id=0,
        )
        model = transformers.DistilBertForSequenceClassification(config)
        marks = {"pad_token": "[PAD]", "model_input_names": ["input_ids", "attention_mask"]}
    else:
        config = transformers.RobertaConfig(
            **sizes, max_position_embeddings=positions + 2, pad_token_id=1, type_vocab_size=1
        )
        model = transformers.RobertaForSequenceClassification(config)
        marks = {"pad_token": "<pad>", "model_input_names": ["input_ids", "attention_mask"]}
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks).save_pretrained(folder)
    return folder


CHAT_TEMPLATE = (
    "{{ '[CLS] w1 w2 ' }}{% for message in messages %}"
    "{{ {'query': 'w3 ', 'document': 'w4 '}[message['role']] or 'w4 ' }}"
    "{{ message['content'] }}{{ ' [SEP] ' }}{% endfor %}"
)


def tiny_decoder(folder: Path, *, kind: str = "classifier", template: bool | str = True, positions: int = 64) -> Path:
    """A randomly initialised Qwen3 of one label, or a causal one, whose tokenizer has a chat template: for pairs."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = tiny_tokenizer("bert", unused=("yes", "no", "Yes", "No"))
    config = transformers.Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=positions,
        initializer_range=0.5,
        pad_token_id=0,
        num_labels=1,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    of = transformers.Qwen3ForSequenceClassification if kind == "classifier" else transformers.Qwen3ForCausalLM
    of(config).save_pretrained(folder)
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", model_input_names=["input_ids", "attention_mask"]
    )
    if template:
        made.chat_template = CHAT_TEMPLATE if template is True else template
    made.save_pretrained(folder)
    return folder


def tiny_modular(folder: Path) -> Path:
    """A transformer, a pooling and a dense layer as one CrossEncoder of sentence-transformers."""
    library = pytest.importorskip("sentence_transformers")
    torch = pytest.importorskip("torch")
    base = tiny_transformer(folder.with_name(f"{folder.name}-base"))
    modules = library.sentence_transformer.modules
    body = modules.Transformer(str(base))
    torch.manual_seed(0)
    dense = modules.Dense(
        32,
        1,
        activation_function=torch.nn.Identity(),
        module_input_name="sentence_embedding",
        module_output_name="scores",
    )
    library.CrossEncoder(modules=[body, modules.Pooling(32, pooling_mode="mean"), dense]).save_pretrained(str(folder))
    return folder


def tiny_emb(folder: Path, style: str = "bert", *, layers: int = 2) -> Path:
    """The body of such a classifier under an [EMB] head."""
    base = tiny_transformer(folder / "base", style, layers=layers)
    tokenizer, module = make_emb_cross_encoder(base, head=EmbHead())
    save_emb_cross_encoder(module, tokenizer, folder / "emb")
    return folder / "emb"


def tiny_onnx(folder: Path, style: str = "bert", *, labels: int = 1, dynamic: bool = False, types: bool = True) -> Path:
    """A bag of words as an ONNX graph; `dynamic` quantises its activations per batch, as int8 exports do."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make, array = onnx.helper, onnx.numpy_helper.from_array
    rng = np.random.default_rng(0)
    tokenizer = tiny_tokenizer(style)
    embeddings = rng.normal(size=(tokenizer.get_vocab_size(), 8)) * rng.exponential(
        size=(tokenizer.get_vocab_size(), 1)
    )
    head = rng.normal(size=(8, labels))
    constants = [
        array(embeddings.astype(np.float32), "embeddings"),
        array(np.array([1], np.int64), "tokens_axis"),
        array(np.array([2], np.int64), "width_axis"),
    ]
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]
    nodes = [make.make_node("Gather", ["embeddings", "input_ids"], ["words"])]
    if dynamic:
        constants.append(array(np.clip(head * 40, -127, 127).astype(np.int8), "head"))
        nodes += [
            make.make_node("DynamicQuantizeLinear", ["words"], ["small", "scale", "zero"]),
            make.make_node("MatMulInteger", ["small", "head", "zero"], ["whole"]),
            make.make_node("Cast", ["whole"], ["unscaled"], to=onnx.TensorProto.FLOAT),
            make.make_node("Mul", ["unscaled", "scale"], ["per_word"]),
        ]
    else:
        constants.append(array(head.astype(np.float32), "head"))
        nodes.append(make.make_node("MatMul", ["words", "head"], ["per_word"]))
    weights = "attention_mask"
    if types:
        nodes += [
            make.make_node("Add", ["token_type_ids", "attention_mask"], ["typed"]),
            make.make_node("Mul", ["typed", "attention_mask"], ["weighted"]),
        ]
        weights = "weighted"
    nodes += [
        make.make_node("Cast", [weights], ["weight"], to=onnx.TensorProto.FLOAT),
        make.make_node("Unsqueeze", ["weight", "width_axis"], ["column"]),
        make.make_node("Mul", ["per_word", "column"], ["kept"]),
        make.make_node("ReduceSum", ["kept", "tokens_axis"], ["logits"], keepdims=0),
    ]
    integers = [make.make_tensor_value_info(name, onnx.TensorProto.INT64, ["pairs", "tokens"]) for name in names]
    floats = [make.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["pairs", labels])]
    graph = make.make_graph(nodes, "tiny", integers, floats, constants)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def byte_level(*, merges: bool = True) -> tokenizers.Tokenizer:
    """A byte-level BPE, trained on texts in which spaces, line ends and marks join."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    # As Qwen's: a mark takes the line ends behind it, and line ends the spaces before them.
    words = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500 if merges else 260,
        special_tokens=["<|s|>", "<|e|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*FORMATS, *NASTY, ": plain words.\n\n  yes", "no? yes. <a>:\n"] * 20, trainer)
    return tokenizer
