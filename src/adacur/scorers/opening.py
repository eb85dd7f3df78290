"""From a path, a name, a URL or an object to a scorer."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from pathlib import Path
from typing import Any

from adacur.core.errors import InputError, MissingExtra, UnknownName, UnknownOption
from adacur.core.extras import require
from adacur.core.protocols import Scorer
from adacur.core.spelling import did_you_mean
from adacur.scorers.cross_encoders.checkpoints import beyond_plain_pairs, checkpoint_folder, has_chat_template
from adacur.scorers.cross_encoders.emb_cross_encoder import EmbHead
from adacur.scorers.cross_encoders.weights import json_in

__all__ = ["is_function_name", "scorer"]

_log = logging.getLogger("adacur.scorers")

_URL = re.compile(r"https?://", re.IGNORECASE)
# A scheme that is misspelt, or a host and port without one.
_NEARLY_URL = re.compile(r"[A-Za-z]\w*:/|[\w.-]+:\d+(/|$)")
_FUNCTION = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

# Objects of other libraries are known by the package and the name of a class among their ancestors: whoever has such
# an object has imported its library, and nobody else should pay for that.
_HOSTS = {
    ("sentence_transformers", "CrossEncoder"): "SentenceTransformersScorer",
    ("langchain_core", "BaseCrossEncoder"): "LangChainScorer",
    ("rerankers", "BaseRanker"): "RerankersScorer",
    ("pyterrier", "Transformer"): "PyTerrierScorer",
}
_DUAL_ENCODER = (
    "is a dual encoder: it embeds each text by itself and scores no pairs. Give a cross-encoder; this one can serve as "
    "the `encoder` of the dense first stage"
)
_NO_TOKENIZER = (
    "is a model without its tokenizer. Give the folder or hub name of its checkpoint, or a "
    "sentence_transformers.CrossEncoder"
)
_LABELS = (
    "answers with labels and probabilities, not with raw scores. Give the folder or hub name of its checkpoint, or a "
    "sentence_transformers.CrossEncoder"
)
# In this order: a SentenceTransformer is a torch module too.
_NEAR_MISSES = {
    ("sentence_transformers", "SentenceTransformer"): _DUAL_ENCODER,
    ("sentence_transformers", "SparseEncoder"): _DUAL_ENCODER,
    ("sentence_transformers", "MultiVectorEncoder"): _DUAL_ENCODER,
    ("langchain_core", "Embeddings"): _DUAL_ENCODER,
    ("langchain_core", "BaseDocumentCompressor"): (
        "returns the best documents, not the scores of all. Give the cross-encoder inside it, often its `model`"
    ),
    ("torch", "Module"): _NO_TOKENIZER,
    ("transformers", "Pipeline"): _LABELS,
}


def scorer(source: Any, **options: Any) -> Scorer:
    """The scorer that `source` stands for; `options` go to its class. What was opened is logged (INFO).

    - a scorer: as it is;
    - an .onnx file, or a folder with one: `OnnxCrossEncoder`;
    - a folder with config.json and weights, [EMB] cross-encoders included, or a hub name "org/name":
      `TorchCrossEncoder`; one that only sentence-transformers can run (several modules, a prompt, a chat template):
      `SentenceTransformersScorer`;
    - a URL: `HttpScorer`;
    - a sentence-transformers CrossEncoder, a LangChain cross-encoder, a ranker of rerankers, a PyTerrier transformer:
      `SentenceTransformersScorer`, `LangChainScorer`, `RerankersScorer`, `PyTerrierScorer`;
    - any other callable, plain or async: `FunctionScorer`;
    - "module:name": any of these objects, imported.
    """
    if isinstance(source, Scorer) and not isinstance(source, type):
        if options:
            raise InputError(f"This scorer is open already and takes no options; got {sorted(options)}.")
        return source
    opened = _named(source, options) if isinstance(source, str | Path) else _of_object(source, options)
    if _log.isEnabledFor(logging.INFO):
        # The card of a large model takes seconds: its weights are hashed.
        _log.info("Scorer: %s", opened.card)
    return opened


def is_function_name(source: str) -> bool:
    """Whether a source is "module:name", and no path that exists."""
    return _FUNCTION.fullmatch(source) is not None and not Path(source).exists()


def _named(source: str | Path, options: dict[str, Any]) -> Scorer:
    if _URL.match(str(source)):
        return _open("HttpScorer", source, options)
    path = Path(source)
    if path.suffix == ".onnx" if path.is_file() else any(path.glob("*.onnx")):
        return _open("OnnxCrossEncoder", path, options)
    has_weights = any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin"))
    if (path / "modules.json").is_file() or ((path / "config.json").is_file() and has_weights):
        return _checkpoint(path, path, options)
    if path.is_dir():
        raise UnknownName(
            f"The folder {str(source)!r} holds no model: no .onnx file, and no config.json with weights (*.safetensors "
            "or pytorch_model*.bin). Name the folder that does."
        )
    if path.suffix == ".py" and path.exists():
        raise UnknownName(
            f"{str(source)!r} is a Python file; name the function in it as '{path.stem}:function', where "
            f"`import {path.stem}` works."
        )
    if path.exists():
        raise UnknownName(f"The file {str(source)!r} is not a model. Give an .onnx file or the folder of a model.")
    if function := _FUNCTION.fullmatch(str(source)):
        return _imported(str(source), function["module"], function["name"], options)
    if _NEARLY_URL.match(str(source)):
        raise UnknownName(f"{str(source)!r} looks like a URL, but begins with neither http:// nor https://.")
    if not _HUB_NAME.fullmatch(str(source)):
        raise UnknownName(
            f"There is no file or folder {str(source)!r} here, and it is no other name of a scorer: a name that "
            "`adacur fetch` lists, a hub name 'org/name', 'module:function', or a URL."
        )
    # What no class takes is told before anything is fetched.
    if options.keys() - {*_options_of("SentenceTransformersScorer"), *_options_of("TorchCrossEncoder")}:
        _check_options("TorchCrossEncoder", source, options)
    try:
        # Before gigabytes are fetched that nothing here could run.
        for module in ("torch", "transformers"):
            require(module, extra="torch")
        return _checkpoint(checkpoint_folder(source), source, options)
    except MissingExtra as error:
        raise MissingExtra(
            f"There is no folder {str(source)!r} here, so it is taken for the name of a hub model. {error}"
        ) from error


def _checkpoint(folder: Path, source: str | Path, options: dict[str, Any]) -> Scorer:
    """The scorer of a checkpoint's folder, `source` being that folder or the hub's name of it."""
    is_modular = (folder / "modules.json").is_file()
    if is_modular and json_in(folder, "config_sentence_transformers.json").get("model_type") != "CrossEncoder":
        raise InputError(f"The model in {folder} {_DUAL_ENCODER}.")
    why = None if EmbHead.from_config(json_in(folder, "config.json")) else beyond_plain_pairs(folder)
    if why is None:
        # A lone transformer is a transformers checkpoint, and this the faster way to run it.
        return _open("TorchCrossEncoder", source, options)
    if not is_modular and not has_chat_template(folder):
        raise InputError(
            f"The model {str(source)!r} {why}, without a chat template: how it wants a pair to be written is not "
            "known. Give a sentence_transformers.CrossEncoder with its template, or a function that asks the model."
        )
    try:
        return _open("SentenceTransformersScorer", source, options)
    except MissingExtra as error:
        raise MissingExtra(f"The model {str(source)!r} {why}, which takes sentence-transformers. {error}") from error


def _of_object(source: Any, options: dict[str, Any]) -> Scorer:
    if isinstance(source, type):
        raise InputError(f"{source.__name__} is a class. Give an object of it: scorer({source.__name__}(…)).")
    ancestors = {(ancestor.__module__.split(".")[0], ancestor.__name__) for ancestor in type(source).__mro__}
    for known, kind in _HOSTS.items():
        if known in ancestors:
            return _open(kind, source, options)
    for known, what in _NEAR_MISSES.items():
        if known in ancestors:
            raise InputError(f"An object of type {type(source).__name__} {what}.")
    if callable(source):
        return _open("FunctionScorer", source, options)
    if hasattr(source, "score"):
        raise InputError(
            f"An object of type {type(source).__name__} has `score` but no `card`, so an index could not tell whose "
            "scores it holds. Give it one: card = adacur.core.protocols.ScorerCard(name=…, backend=…)."
        )
    # Not its repr: that may hold a key.
    raise _unknown("None" if source is None else f"an object of type {type(source).__name__}")


def _open(kind: str, source: Any, options: dict[str, Any]) -> Scorer:
    _check_options(kind, source, options)
    opened: Scorer = getattr(importlib.import_module("adacur.scorers"), kind)(source, **options)
    return opened


def _check_options(kind: str, source: Any, options: dict[str, Any]) -> None:
    known = _options_of(kind)
    if unknown := sorted(options.keys() - set(known)):
        raise UnknownOption(
            f"{kind}, which {_shown(source)} opens as, has no option {unknown[0]!r}.{did_you_mean(unknown[0], known)} "
            f"It takes {', '.join(known)}."
        )


def _options_of(kind: str) -> list[str]:
    opens = getattr(importlib.import_module("adacur.scorers"), kind)
    return [
        option.name for option in inspect.signature(opens).parameters.values() if option.kind is option.KEYWORD_ONLY
    ]


def _shown(source: Any) -> str:
    if isinstance(source, str | Path):
        # A URL may carry a key.
        return "a URL" if _URL.match(str(source)) else repr(str(source))
    return f"an object of type {type(source).__name__}"


def _imported(source: str, module: str, name: str, options: dict[str, Any]) -> Scorer:
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but misses one of its own imports must not be reported as absent.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UnknownName(
            f"No module {module!r} can be imported (for the scorer {source!r}). It is looked for where Python looks "
            "for modules; the command line looks in the current folder too."
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            where = getattr(importlib.import_module(module), "__file__", None) or "built in"
            near = did_you_mean(part, [known for known in dir(found) if not known.startswith("_")])
            raise UnknownName(f"Module {module!r} ({where}) has no {name!r}.{near}")
        found = getattr(found, part)
    if isinstance(found, Scorer | str | Path):
        return scorer(found, **options)
    return _of_object(found, {"source": source} | options)


def _unknown(what: str) -> UnknownName:
    return UnknownName(
        f"There is no scorer for {what}. Give a scorer, a function of (query text, item text) pairs, "
        "'module:function', a sentence-transformers CrossEncoder, a LangChain cross-encoder, a rerankers ranker, a "
        "PyTerrier transformer, an .onnx file or a folder with one, a folder with config.json and model weights "
        "(*.safetensors or pytorch_model*.bin), a hub name 'org/name', or a URL that begins with http:// or https://."
    )
