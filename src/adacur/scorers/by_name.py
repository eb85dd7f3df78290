"""The door for scorers: from an object, a function, a path, a URL or a name to a scorer.

Library, command line and server all open scorers here; `adacur.first_stages.encoders.encoder` is its twin for encoders.
What an index folder may name without the user's consent is decided in consent.py, before this door is reached.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from adacur.data.catalogue import fetch, names
from adacur.errors import AdacurError, InputError, MissingExtra, UnknownName, UnknownOption
from adacur.protocols import Scorer
from adacur.requirements import install_command, require
from adacur.scorers.cross_encoders.checkpoints import checkpoint_folder, json_in, shape_of
from adacur.scorers.cross_encoders.onnx import OnnxCrossEncoder
from adacur.scorers.cross_encoders.torch import TorchCrossEncoder
from adacur.scorers.function import FunctionScorer
from adacur.scorers.http import HttpScorer
from adacur.scorers.http_dialects import JUDGE
from adacur.scorers.judge import JudgeScorer
from adacur.scorers.remote import Address
from adacur.scorers.sentence_transformers import SentenceTransformersScorer
from adacur.spelling import did_you_mean

_log = logging.getLogger("adacur.scorers")

_URL = re.compile(r"https?://", re.IGNORECASE)
_FUNCTION = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")
# What can only be a path: ./model, /models/a, ~/a, model/ and C:\\models.
_PATH = re.compile(r"[./~]|[A-Za-z]:\\|.*/$")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_ONNX_EXPORT = Path("onnx", "model.onnx")

# Objects of other libraries are recognised by the package and name of a base class, so that a library is imported
# only where an object of it exists, and then it is imported already.
_CROSS_ENCODER = ("sentence_transformers", "CrossEncoder")
_DUAL_ENCODER = (
    "is a dual encoder: it embeds each text by itself and scores no pairs. Give a cross-encoder; this one can serve as "
    "the `encoder` of the dense first stage"
)
_WHAT_TO_GIVE = (
    "Give a scorer; a function of (query text, item text) pairs, or its 'module:function'; a sentence-transformers "
    "CrossEncoder; a name of `adacur.data.names()`; an .onnx file or the folder of a model; a hub name 'org/name'; or "
    "a URL (http:// or https://)."
)


def scorer(source: Any, **options: Any) -> Scorer:
    """Open a scorer; `options` go to its class, and what was opened is logged (INFO, "adacur.scorers").

    `source` is one of:

    - a scorer: returned as it is;
    - a function of (query text, item text) pairs, plain or async: `FunctionScorer`;
    - a sentence-transformers CrossEncoder;
    - "module:name" of any of these objects;
    - a name of `adacur.data.names()`, such as "ms-marco-MiniLM-L-12-v2", fetched if needed;
    - an .onnx file, or a folder with one: `OnnxCrossEncoder`;
    - a folder with config.json and weights, or a hub name "org/name": `TorchCrossEncoder`, also for language models
      (`instruction="…"` where they take one); for several modules, and a prompt before plain pairs,
      `SentenceTransformersScorer`. Without torch, the checkpoint's onnx/model.onnx, where there is one:
      `OnnxCrossEncoder`;
    - the URL of a rerank server: `HttpScorer`;
    - the URL of a language model, with kind="judge" or ending in /chat/completions: `JudgeScorer`.
    """
    if isinstance(source, Scorer) and not isinstance(source, type):
        if options:
            raise InputError(f"This scorer is open already and takes no options; got {sorted(options)}.")
        return source
    opened = _from_name(source, options) if isinstance(source, str | Path) else _from_object(source, options)
    if _log.isEnabledFor(logging.INFO):
        # The card of a large model takes seconds: its weights are hashed.
        _log.info("Scorer: %s", opened.card)
    return opened


def is_function_name(source: str) -> bool:
    """Whether a source is "module:name" rather than an existing path."""
    return _FUNCTION.fullmatch(source) is not None and not Path(source).exists()


def imported(source: str, *, what: str = "scorer") -> Any:
    """The object that "module:name" names; `what` it is for is said in errors."""
    module, _, name = source.partition(":")
    try:
        value: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but lacks one of its own imports must not be reported as absent.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UnknownName(
            f"The module {module!r} of the {what} {source!r} cannot be imported. It is looked for where Python looks "
            "for modules; the command line looks in the current folder too."
        ) from error
    where = getattr(value, "__file__", None) or "built in"
    for part in name.split("."):
        if not hasattr(value, part):
            near = did_you_mean(part, [known for known in dir(value) if not known.startswith("_")])
            raise UnknownName(f"Module {module!r} ({where}) has no {name!r}.{near}")
        value = getattr(value, part)
    return value


def _from_name(source: str | Path, options: dict[str, Any]) -> Scorer:
    text = str(source)
    if _URL.match(text):
        if Address.of(text, options.get("kind")).kind == JUDGE:
            return _open(JudgeScorer, source, {name: value for name, value in options.items() if name != "kind"})
        return _open(HttpScorer, source, options)
    path = fetch(text) if text in names() else Path(source)
    if path.suffix == ".onnx" if path.is_file() else any(path.glob("*.onnx")):
        return _open(OnnxCrossEncoder, path, options)
    has_weights = any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin"))
    if (path / "modules.json").is_file() or ((path / "config.json").is_file() and has_weights):
        return _from_checkpoint(path, path, options)
    if path.exists() or _PATH.match(text):
        fault = f"{'holds no' if path.is_dir() else 'is not a'} model. {_WHAT_TO_GIVE}"
        raise UnknownName(f"{text!r} {fault if path.exists() else 'does not exist. Check the path of the model.'}")
    if _FUNCTION.fullmatch(text):
        value = imported(text)
        if isinstance(value, Scorer | str | Path):
            if isinstance(value, FunctionScorer):
                # By this it is found again, whatever function it is around.
                value.card = replace(value.card, source=text)
            # A scorer that has its name already: an index gives the one that it was built with.
            same = isinstance(value, Scorer) and options.get("name") == value.card.name
            return scorer(value, **{name: one for name, one in options.items() if not (same and name == "name")})
        return _from_object(value, {"source": text} | options)
    if _HUB_NAME.fullmatch(text):
        return _from_hub(text, options)
    raise UnknownName(f"There is no scorer called {text!r}.{did_you_mean(text, names())} {_WHAT_TO_GIVE}")


def _from_hub(name: str, options: dict[str, Any]) -> Scorer:
    missing = _missing("torch", "transformers")
    taken_for = f"There is no folder {name!r} here, so it is taken for the name of a hub model. {missing}"
    if missing is not None and _missing("onnxruntime", "tokenizers") is not None:
        raise MissingExtra(f"{taken_for} Or, for a model with an ONNX export: {install_command('onnx')}", name="torch")
    folder = checkpoint_folder(name, onnx=missing is not None)
    if missing is not None and not (folder / _ONNX_EXPORT).is_file():
        raise MissingExtra(f"{taken_for} It has no ONNX export ({_ONNX_EXPORT}).", name="torch")
    return _from_checkpoint(folder, name, options)


def _from_checkpoint(folder: Path, source: str | Path, options: dict[str, Any]) -> Scorer:
    """The scorer of a checkpoint's folder, `source` being that folder or its hub name."""
    try:
        return _of_files(folder, source, options)
    except AdacurError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, OSError) as error:
        # Anyone may have written its files.
        raise InputError(f"The model in {folder} cannot be opened ({type(error).__name__}: {error}).") from error


def _of_files(folder: Path, source: str | Path, options: dict[str, Any]) -> Scorer:
    is_modular = (folder / "modules.json").is_file()
    if is_modular and json_in(folder, "config_sentence_transformers.json").get("model_type") != "CrossEncoder":
        raise InputError(f"The model in {folder} {_DUAL_ENCODER}.")
    shape, why = shape_of(folder)
    if shape == "pairs" and (folder / _ONNX_EXPORT).is_file() and _missing("torch", "transformers") is not None:
        name = {"name": source} if isinstance(source, str) else {}
        return _open(OnnxCrossEncoder, folder / _ONNX_EXPORT, name | options)
    if shape != "other":
        return _open(TorchCrossEncoder, source, options)
    try:
        return _open(SentenceTransformersScorer, source, options)
    except MissingExtra as error:
        raise MissingExtra(f"The model {str(source)!r} {why}, which takes sentence-transformers. {error}") from error


def _from_object(source: Any, options: dict[str, Any]) -> Scorer:
    if isinstance(source, type):
        raise InputError(f"{source.__name__} is a class. Give an object of it: scorer({source.__name__}(…)).")
    ancestors = {(ancestor.__module__.split(".")[0], ancestor.__name__) for ancestor in type(source).__mro__}
    if _CROSS_ENCODER in ancestors:
        return _open(SentenceTransformersScorer, source, options)
    if ("torch", "Module") in ancestors:
        raise InputError(f"A {type(source).__name__} scores no pairs of texts. Give a function of pairs around it.")
    if callable(source):
        return _open(FunctionScorer, source, options)
    if hasattr(source, "score"):
        raise InputError(
            f"An object of type {type(source).__name__} has `score` but no `card`, so an index could not tell whose "
            "scores it holds. Give it one: card = adacur.protocols.ScorerCard(name=…, backend=…)."
        )
    # Its type, not its repr: that may hold a key.
    what = "None" if source is None else f"an object of type {type(source).__name__}"
    raise UnknownName(f"There is no scorer for {what}. {_WHAT_TO_GIVE}")


def _open(kind: Any, source: Any, options: dict[str, Any]) -> Scorer:
    parameters = inspect.signature(kind).parameters.values()
    known = [option.name for option in parameters if option.kind is option.KEYWORD_ONLY]
    if unknown := sorted(options.keys() - set(known)):
        shown = f"an object of type {type(source).__name__}"
        if isinstance(source, str | Path):
            # A URL may carry a key.
            shown = "a URL" if _URL.match(str(source)) else repr(str(source))
        raise UnknownOption(
            f"{kind.__name__}, which {shown} opens as, has no option {unknown[0]!r}.{did_you_mean(unknown[0], known)} "
            f"It takes {', '.join(known)}."
        )
    opened: Scorer = kind(source, **options)
    return opened


def _missing(*modules: str) -> MissingExtra | None:
    """The error of the first of these modules that is not installed."""
    try:
        for module in modules:
            require(module, extra="torch")
    except MissingExtra as error:
        return error
    return None
