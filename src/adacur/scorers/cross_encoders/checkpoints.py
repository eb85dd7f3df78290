"""Folders of models: fetched and read silently; their weights, settings, shape and limit of tokens."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from adacur.errors import FetchError, FileFormatError, InputError
from adacur.names import EMB_KEY
from adacur.requirements import require
from adacur.scorers.cross_encoders.readout import Readout

Shape = Literal["pairs", "decoder", "other"]
_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "adapter_config.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
    "*.jinja",
)
_WITHOUT_EFFECT = {
    "_name_or_path",
    "name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "truncation",
    "padding",
}
_USUAL_TOKENS, _NO_LIMIT = 512, 10**9
_SAVED = "sentence_bert_config.json"
# Their position embeddings start after the padding id, so that 514 of them hold 512 tokens.
_POSITIONS_AFTER_PADDING = {
    "camembert",
    "data2vec-text",
    "ibert",
    "longformer",
    "luke",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}


def checkpoint_folder(name_or_folder: str | Path, *, onnx: bool = False) -> Path:
    """The folder of a model; a hub model is fetched unless the hub's cache has it, with `onnx` its onnx/model.onnx."""
    if Path(name_or_folder).is_dir():
        return Path(name_or_folder)
    hub = require("huggingface_hub", extra="onnx" if onnx else "torch")
    files = ["*.json", "*.txt", "*.model", "*.jinja"]
    # Of a module beside the transformer the weights may come in the old format alone.
    files += ["onnx/model.onnx*"] if onnx else ["*.safetensors", "*/pytorch_model*.bin"]
    name = str(name_or_folder)
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=files))
        if not onnx and not any(folder.glob("*.safetensors")):
            folder = Path(hub.snapshot_download(name, allow_patterns=[*files, "pytorch_model*.bin"]))
    except (OSError, ValueError) as error:
        raise FetchError(f"The model {name!r} is not a folder here and could not be fetched: {error}") from error
    return folder


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer of a model writes what it is given into a template."""
    kept_in = [folder, *(path for path in folder.glob("*_Transformer") if path.is_dir())]
    return any(
        json_in(place, "tokenizer_config.json").get("chat_template")
        or json_in(place, "chat_template.json").get("chat_template")
        or any(place.glob("*.jinja"))
        for place in kept_in
    )


def shape_of(folder: Path) -> tuple[Shape, str]:
    """How the model in a folder scores a pair, and why that is not by a plain pair of texts, as a clause.

    A "decoder" reads a prompt and its last token; "other" is what sentence-transformers alone can run.
    """
    if EMB_KEY in json_in(folder, "config.json"):
        return "pairs", ""
    modules = st_modules(folder)
    types = [kind for kind, _ in modules]
    behind = types[1:] if types[:1] == ["Transformer"] and not modules[0][1] else types
    prompt = json_in(folder, "config_sentence_transformers.json").get("default_prompt_name")
    if behind:
        why = f"has the modules {', '.join(map(repr, types))} and not a transformer alone"
        return ("decoder" if behind == ["LogitScore"] else "other"), why
    if (made_for := architecture(folder)).endswith("ForCausalLM"):
        return "decoder", f"is a language model, {made_for}"
    if has_chat_template(folder):
        return "decoder", "writes pairs into the chat template of its tokenizer"
    if prompt is not None:
        return "other", f"puts the prompt {prompt!r} before its texts"
    return "pairs", ""


def st_modules(folder: Path) -> list[tuple[str, str]]:
    """The modules of a sentence-transformers folder, type and path; none where it has no modules.json."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        named = [(str(module.get("type", "")), str(module.get("path") or "")) for module in modules]
    except (ValueError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} must be a list of modules, each an object with its type: {error}.") from error
    # A class of another package is not what its last name says.
    return [(re.sub(r"^sentence_transformers\.(\w+\.)*", "", kind), path) for kind, path in named]


def architecture(folder: Path) -> str:
    """The class that a checkpoint was saved from; empty where its config.json does not say."""
    made_for = json_in(folder, "config.json").get("architectures")
    return str(made_for[0]) if isinstance(made_for, list) and made_for else ""


def load_classifier(folder: Path, readout: Readout | None = None) -> tuple[Any, Any]:
    """Tokenizer and model of a cross-encoder whose head is a classifier.

    It takes plain pairs, and has one label or those that `readout` reads.
    """
    if why := shape_of(folder)[1]:
        raise InputError(
            f"The model in {folder} {why}; scored as a plain pair, every score would be wrong. Open it with "
            "adacur.scorer(…)."
        )
    tokenizer, labels = read_tokenizer(folder), read_pretrained(folder, "AutoConfig").num_labels
    if labels != 1 and readout is None:
        raise InputError(
            f"A cross-encoder gives one logit per pair; {folder} has {labels} labels. If two of them mean right and "
            "wrong, say which: readout='labels(1, 0)'. Other classifiers, and dual encoders, cannot be used as scorers."
        )
    model, missing = read_model(folder, "AutoModelForSequenceClassification")
    check_complete(missing, folder)
    return tokenizer, model


def read_pretrained(folder: Path, kind: str, **options: Any) -> Any:
    """What a class of transformers makes of a folder, without progress bars; code in the folder is never run."""
    transformers = require("transformers", extra="torch")
    try:
        with quiet(transformers):
            # Without a value, transformers asks at the terminal whether it may run the folder's code.
            return getattr(transformers, kind).from_pretrained(folder, trust_remote_code=False, **options)
    except Exception as error:
        raise InputError(f"{folder} cannot be read as a transformers model: {error}") from error


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder; one that is Python alone is refused, as it cannot be called without transformers."""
    tokenizer = read_pretrained(folder, "AutoTokenizer")
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise InputError(f"A scorer needs a fast tokenizer (tokenizer.json); {folder} has {type(tokenizer).__name__}.")
    return tokenizer


def read_model(folder: Path, kind: str, **options: Any) -> tuple[Any, list[str]]:
    """A model, and the names of weights that its folder lacks: those are random."""
    model, loading = read_pretrained(folder, kind, output_loading_info=True, **options)
    return model, sorted(loading["missing_keys"])


def check_complete(missing: Iterable[str], folder: Path) -> None:
    """Refuse a checkpoint that lacks weights, which would be random."""
    if missing := list(missing):
        raise InputError(
            f"The checkpoint in {folder} lacks the weights {missing}, which would be random: it was made for something "
            "else."
        )


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Transformers without progress bars, and without reports on weights."""
    logging = transformers.utils.logging
    shows_progress, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shows_progress:
            logging.enable_progress_bar()


def weight_files(folder: Path) -> list[Path]:
    """The files of a model's weights, those of its modules too."""
    for name in ("*.safetensors", "pytorch_model*.bin"):
        if files := [*folder.glob(name), *folder.glob(f"*_*/{name}")]:
            return files
    return []


def weights_hash(files: Iterable[Path]) -> str:
    """The first 32 hex digits of a SHA-256 over the files' content, in order of their names."""
    digest = hashlib.sha256()
    for path in sorted(files):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]


def tensors_digest(tensors: Mapping[str, Any]) -> str:
    """A SHA-256 of weights in memory, with their names, types and shapes."""
    torch, digest = require("torch", extra="torch"), hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # As bytes, since numpy has no bfloat16.
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def settings_hash(folder: Path, *, files: Iterable[str] = _FILES) -> str:
    """A hash of the files that decide, with the weights, what a model makes of a text: `files` are their patterns.

    JSON counts by its content, not by its layout.
    """
    digest = hashlib.sha256()
    for path in sorted({path for pattern in files for path in folder.glob(pattern)}):
        content = path.read_bytes()
        if path.suffix == ".json":
            content = json.dumps(with_effect(json_in(folder, path.name)), sort_keys=True).encode()
        digest.update(f"{path.name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()[:32]


def with_effect(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that tell of a folder's history, or that a scorer sets anew."""
    return {name: value for name, value in settings.items() if name not in _WITHOUT_EFFECT}


def json_in(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of a folder; empty where there is no such file."""
    path = folder / name
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not valid JSON: {error}") from error
    return content if isinstance(content, dict) else {}


class TokenLimit(NamedTuple):
    """The most tokens of a pair, and what says so: a file, "given" or "default"; None for the model's positions."""

    tokens: int
    origin: str | None = None


def token_limit(
    max_tokens: int | None,
    *,
    config: Mapping[str, Any],
    tokenizer_length: float | None,
    folder: Path | None = None,
    usual: int | None = None,
) -> TokenLimit:
    """The limit given, by default the one that sentence-transformers would take, and never more than the positions.

    `tokenizer_length` is the tokenizer's own limit; `usual` is the most that is taken unless more is given.
    """
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and config.get("model_type") in _POSITIONS_AFTER_PADDING:
        positions -= (config.get("pad_token_id") or 0) + 1
    most = _length(positions)
    lengths = {} if folder is None else {_SAVED: _saved_length(folder)}
    lengths["tokenizer_config.json"] = _length(tokenizer_length)
    file, length = next(((file, length) for file, length in lengths.items() if length is not None), (None, None))
    if length is not None and (most is None or length < most):
        found = TokenLimit(length, file)
    else:
        # Without any limit sentence-transformers cuts nothing, and one text of a megabyte ends a build.
        found = TokenLimit(most) if most is not None else TokenLimit(_USUAL_TOKENS, "default")
    if usual is not None and usual < found.tokens:
        found = TokenLimit(usual, "default")
    if max_tokens is None or max_tokens == found.tokens:
        return found
    largest = most or length or _NO_LIMIT
    if not 1 <= max_tokens <= largest:
        raise InputError(f"max_tokens must lie between 1 and the model's limit of {largest}; got {max_tokens}.")
    return TokenLimit(max_tokens, "given")


def folder_limit(max_tokens: int | None, folder: Path) -> TokenLimit:
    """The limit of a model whose files alone are read."""
    tokenizer = json_in(folder, "tokenizer_config.json")
    length = tokenizer.get("model_max_length", tokenizer.get("max_len"))
    return token_limit(max_tokens, config=json_in(folder, "config.json"), tokenizer_length=length, folder=folder)


def _saved_length(folder: Path) -> int | None:
    """The limit in the settings of a sentence-transformers folder, which come before the tokenizer's."""
    if not (folder / "modules.json").is_file():
        return None
    saved = json_in(folder, _SAVED)
    texts = saved.get("processing_kwargs") or {}
    loading = saved.get("processor_kwargs") or saved.get("tokenizer_args") or {}
    given = [(texts.get(part) or {}).get("max_length") for part in ("chat_template", "text", "common")]
    lengths = map(_length, (*given, loading.get("model_max_length"), saved.get("max_seq_length")))
    return next((length for length in lengths if length is not None), None)


def _length(value: Any) -> int | None:
    """A limit of tokens; tokenizers without one write 10^30, and XLNet has -1 positions."""
    return int(value) if value is not None and 0 < value < _NO_LIMIT else None
