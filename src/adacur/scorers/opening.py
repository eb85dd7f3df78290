"""From a path, a name or a function to a scorer."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adacur.core.errors import InputError, UnknownName
from adacur.core.protocols import Scorer
from adacur.scorers.function import FunctionScorer

__all__ = ["scorer"]

_FUNCTION = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def scorer(source: Scorer | Callable[..., Any] | str | Path, **options: Any) -> Scorer:
    """The scorer that `source` stands for; `options` go to its class.

    A scorer is returned as it is; a callable or "module:function" becomes a `FunctionScorer`; an .onnx file or a
    folder with one an `OnnxCrossEncoder`; a folder with config.json and weights, or a hub name "org/name", a
    `TorchCrossEncoder`.
    """
    if isinstance(source, Scorer) and not isinstance(source, type):
        if options:
            raise InputError(f"This scorer is open already and takes no options; got {sorted(options)}.")
        return source
    if isinstance(source, str | Path):
        return _named(source, options)
    if callable(source):
        return FunctionScorer(source, **options)
    raise _unknown(source)


def _named(source: str | Path, options: dict[str, Any]) -> Scorer:
    path = Path(source)
    if path.suffix == ".onnx" if path.is_file() else any(path.glob("*.onnx")):
        from adacur.scorers.onnx import OnnxCrossEncoder

        return OnnxCrossEncoder(path, **options)
    weights = [*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")]
    if (path / "config.json").is_file() and weights:
        return _torch(path, options)
    if path.exists():
        raise _unknown(source)
    if function := _FUNCTION.fullmatch(str(source)):
        return _imported(str(source), function["module"], function["name"], options)
    if _HUB_NAME.fullmatch(str(source)):
        return _torch(source, options)
    raise _unknown(source)


def _torch(source: str | Path, options: dict[str, Any]) -> Scorer:
    from adacur.scorers.torch import TorchCrossEncoder

    return TorchCrossEncoder(source, **options)


def _imported(source: str, module: str, name: str, options: dict[str, Any]) -> Scorer:
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but misses one of its own imports must not be reported as absent.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UnknownName(f"No module {module!r} can be imported (for the scorer {source!r}).") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise UnknownName(f"Module {module!r} has no {name!r} (for the scorer {source!r}).")
        found = getattr(found, part)
    if not callable(found):
        return scorer(found, **options)
    return FunctionScorer(found, **({"source": source} | options))


def _unknown(source: object) -> UnknownName:
    return UnknownName(
        f"No scorer is known by {source!r}. Give a scorer, a function of (query text, item text) pairs, "
        "'module:function', an .onnx file or a folder with one, a folder with config.json and model weights "
        "(*.safetensors or pytorch_model*.bin), or a hub name 'org/name'."
    )
