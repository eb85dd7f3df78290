"""A digest of what a function does, so that a cache never takes one function for another."""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from adacur.core.errors import InputError

HOW_TO_GIVE_A_KEY = "Give the cache a key that names it and its version: Cached(scorer, path, key='my-model-v1')."
_NUMBERS_AND_TEXTS = (type(None), type(Ellipsis), bool, int, float, complex, str, bytes)
_MAY_HOLD_ITSELF = (FunctionType, functools.partial, list, dict)


def code_digest(function: Any) -> str:
    """A digest that two functions share only if they do the same; InputError where that cannot be read.

    Read are the code, defaults, closure and globals of the function, of partials, and of the functions of its module
    that it uses. Objects of other modules are known by their names. Values are read as they are now, and only those
    that can be read in full: numbers, texts, lists and dictionaries of them.
    """
    reader = _Reader()
    reader.read(function, "it")
    return reader.digest.hexdigest()[:32]


def importable_name(value: Any) -> str | None:
    """The "module:name" that imports this very object."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or "<" in name:
        return None
    there: Any = sys.modules.get(module)
    for part in name.split("."):
        there = getattr(there, part, None)
    return f"{module}:{name}" if there is value else None


class _Reader:
    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self._module: str | None = None
        # The values are kept alive, so that no id is given twice.
        self._seen: dict[int, tuple[int, Any]] = {}

    def read(self, value: Any, what: str) -> None:
        """Add a value to the digest; `what` names it in the error."""
        kind = type(value)
        if kind in _MAY_HOLD_ITSELF:
            if id(value) in self._seen:
                self._add("again", str(self._seen[id(value)][0]))
                return
            self._seen[id(value)] = len(self._seen), value
        if kind in _NUMBERS_AND_TEXTS:
            self._add(kind.__name__, repr(value))
        elif kind is CodeType:
            self._add("code", value.co_code.hex())
            self._read_all((value.co_names, value.co_varnames, value.co_freevars, value.co_consts), what)
        elif kind is FunctionType and not self._is_of_another_module(value):
            self._read_function(value, what)
        elif kind is functools.partial:
            self._add("partial", "")
            self._read_all((value.func, value.args, value.keywords), what)
        elif kind in (tuple, list):
            self._add(kind.__name__, str(len(value)))
            self._read_all(value, f"a value in {what}")
        elif kind is dict:
            self._add("dict", str(len(value)))
            self._read_all((part for pair in value.items() for part in pair), f"a value in {what}")
        elif kind in (set, frozenset) and all(type(part) in (int, float, str, bytes) for part in value):
            self._add(kind.__name__, repr(sorted(value, key=repr)))
        elif kind is ModuleType:
            self._add("module", value.__name__)
        elif (name := importable_name(value)) is not None and name.partition(":")[0] != self._module:
            self._add("importable", name)
        else:
            raise InputError(f"{what} is an object of type {kind.__name__}")

    def _read_all(self, values: Iterable[Any], what: str) -> None:
        for value in values:
            self.read(value, what)

    def _read_function(self, function: FunctionType, what: str) -> None:
        outer, self._module = self._module, function.__module__
        self._add("function", "")
        self.read(function.__code__, what)
        self._read_all((function.__defaults__, function.__kwdefaults__), f"a default of {function.__name__!r}")
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                self._add("unset", name)
                continue
            self.read(value, f"{name!r}, which {function.__name__!r} closes over,")
        for name in sorted(set(_global_names(function.__code__))):
            # Others are builtins, or not there yet.
            if name in function.__globals__:
                self._add("global", name)
                self.read(function.__globals__[name], f"the global {name!r} that {function.__name__!r} uses")
        self._module = outer

    def _is_of_another_module(self, function: FunctionType) -> bool:
        return self._module not in (None, function.__module__) and importable_name(function) is not None

    def _add(self, kind: str, value: str) -> None:
        self.digest.update(f"{kind} {len(value)} {value},".encode(errors="surrogatepass"))


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
