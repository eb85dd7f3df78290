"""One look per method: the same colour and marker in every figure, told apart by colour-blind readers and in grey."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["STEP_COLOURS", "Style", "styles"]

# The palettes of Okabe & Ito and of Paul Tol, less the yellows that vanish on white.
_FAMILIES = {
    "gaussian": ("#d55e00", "o"),
    "adacur": ("#0072b2", "s"),
    "adacur_random": ("#56b4e9", "v"),
    "adacur_softmax": ("#332288", "p"),
    "axn": ("#aa4499", "X"),
    "anncur": ("#009e73", "D"),
    "anncur_dense": ("#44aa99", "d"),
    "anncur_best_split": ("#117733", "P"),
    "anncur_held_out_split": ("#999933", "H"),
    "rerank": ("#333333", "^"),
    "topk_oracle": ("#e69f00", "*"),
    "softmax_oracle": ("#cc79a7", "h"),
    "exact": ("#8c8c8c", "8"),
}
_SPARE = ("#882255", "#6699cc", "#b8860b", "#661100", "#ddaa33", "#777777")
# For the third and later lines of a method, and for methods that are not named above.
_MARKERS = ("<", ">", "P", "p", "d", "H", "8")
_DASHES = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2), (9, 3), (3, 1, 1, 1, 1, 1))

STEP_COLOURS = {
    "score": "#bbbbbb",
    "solve": "#0072b2",
    "predict": "#d55e00",
    "choose": "#e69f00",
    "first": "#009e73",
}


@dataclass(frozen=True, slots=True)
class Style:
    """How a line is drawn. Lines of one family share the colour and differ in dashes, marker and filling."""

    colour: str
    marker: str
    dashes: tuple[float, ...]
    hollow: bool


def styles(methods_of: Mapping[str, str]) -> dict[str, Style]:
    """A style per label, given each label's method; the first line of a method looks the same whatever else is drawn.

    In the order of a legend: known families first, and "5 rounds" before "20 rounds".
    """
    families = _families(list(dict.fromkeys(methods_of.values())))
    order = [*_FAMILIES, *sorted(set(methods_of.values()))]
    members: dict[str, int] = {}
    made = {}
    for label in sorted(methods_of, key=lambda one: (order.index(families[methods_of[one]][0]), _by_numbers(one))):
        family, colour, marker = families[methods_of[label]]
        place = members[family] = members.get(family, -1) + 1
        if place > 1:
            marker = _MARKERS[(place - 2) // 2 % len(_MARKERS)]
        made[label] = Style(colour, marker, tuple(_DASHES[place % len(_DASHES)]), hollow=place % 2 == 1)
    return made


def _by_numbers(label: str) -> list[tuple[int, float, str]]:
    parts = []
    for word in label.replace(",", " ").split():
        try:
            parts.append((0, float(word), ""))
        except ValueError:
            parts.append((1, 0.0, word))
    return parts


def _families(methods: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """Per method its family, colour and marker; a stranger gets a look drawn from its name."""
    made = {}
    used: set[str] = set()
    for method in sorted(methods):
        # The longest name that fits, so that a variant of a variant stays with its own kind.
        fitting = [family for family in _FAMILIES if f"{method}_".startswith(f"{family}_")]
        known = max(fitting, key=len, default=None)
        if known:
            made[method] = (known, *_FAMILIES[known])
            continue
        draw = zlib.crc32(method.encode())
        choices = [_SPARE[(draw + step) % len(_SPARE)] for step in range(len(_SPARE))]
        colour = next((choice for choice in choices if choice not in used), choices[0])
        used.add(colour)
        made[method] = (method, colour, _MARKERS[draw % len(_MARKERS)])
    return made
