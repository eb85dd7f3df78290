"""Folders of transformers models: fetched, read silently."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from adacur.errors import FetchError, FileFormatError, InputError
from adacur.requirements import require
from adacur.scorers.cross_encoders.readout import Readout
from adacur.scorers.cross_encoders.weights import json_in

Shape = Literal["pairs", "decoder", "other"]


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
    named = [(str(module.get("type", "")), str(module.get("path") or "")) for module in _modules(folder)]
    # A class of another package is not what its last name says.
    return [(re.sub(r"^sentence_transformers\.(\w+\.)*", "", kind), path) for kind, path in named]


def check_names_no_code(folder: Path) -> None:
    """Refuse a sentence-transformers folder that names classes of other packages, or Python files in it.

    Before version 6, sentence-transformers ran the code of a local folder without asking.
    """
    named: list[tuple[Path, object, str]] = [
        (folder / "modules.json", module.get("type"), "sentence_transformers.") for module in _modules(folder)
    ]
    places = [str(module.get("path") or "") for module in _modules(folder)]
    # A module may lie deeper, and behind a link of the hub's cache.
    for path in sorted({*folder.glob("*/*config.json"), *folder.rglob("*config.json")}):
        settings = json_in(path.parent, path.name)
        types = settings.get("types")
        places += map(str, types) if isinstance(types, dict) else ()
        named += [(path, of, "sentence_transformers.") for of in (types.values() if isinstance(types, dict) else ())]
        fields = (("activation_function", "torch."), ("tokenizer_class", "sentence_transformers."))
        # Transformers has a field tokenizer_class too, which is a plain name.
        named += [(path, settings[key], package) for key, package in fields if "." in str(settings.get(key) or "")]
    if outside := [place for place in places if Path(place).is_absolute() or ".." in re.split(r"[/\\]", place)]:
        raise InputError(f"The modules of a model lie in its folder; {folder} names {outside[0]!r}.")
    for path, name, package in named:
        if not str(name).startswith(package):
            raise InputError(
                f"A model's folder may name classes of sentence-transformers and torch; {path} names {name!r}, whose "
                "code would be run. If you trust it, open the model yourself, with trust_remote_code=True, and give "
                "the object to adacur.scorer or adacur.first_stages.SentenceTransformerEncoder."
            )


def _modules(folder: Path) -> list[dict[str, Any]]:
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileFormatError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise FileFormatError(f"{path} must be a list of modules, each an object with its type; it is something else.")
    return modules


def architecture(folder: Path) -> str:
    """The class that a checkpoint was saved from; empty where its config.json does not say."""
    made_for = json_in(folder, "config.json").get("architectures")
    return str(made_for[0]) if isinstance(made_for, list) and made_for else ""


def load_classifier(folder: Path, readout: Readout | None = None, *, prompted: bool = False) -> tuple[Any, Any]:
    """Tokenizer and model of a cross-encoder whose head is a classifier.

    It has one label, or those that `readout` reads. Unless it is `prompted`, it must be one that takes plain pairs.
    """
    if not prompted and (why := shape_of(folder)[1]):
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
