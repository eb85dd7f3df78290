"""The table of search options, which the command line, the server and the hosts of other libraries read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


def _as_typed(value: Any) -> Any:
    return value


def _effort(text: str) -> float | str:
    """A number, or a word for the library to judge."""
    try:
        return float(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a search, as single values give it.

    - `kind`, `rule`: its value in a request, and the bounds of that by pydantic's names; or one of `words`;
    - `typed`, `read`: its type on a command line, and what makes a value of what was typed;
    - `in_requests`: False where a server decides it, or has a form of its own for it.
    """

    name: str
    help: str
    kind: Any
    rule: Mapping[str, Any] = field(default_factory=dict)
    typed: type = str
    read: Callable[[Any], Any] = _as_typed
    in_requests: bool = True
    metavar: str | None = None
    words: tuple[str, ...] = ()


# To add an option: an entry here, and what `plan_search` makes of it.
OPTIONS = (
    Option(
        "budget",
        "Scorer calls per question, and more limits: '100', '20000 tokens', '100, 0.02 USD'; default: as tuned by "
        "judgements, or 100 calls.",
        int,
        in_requests=False,
    ),
    Option("deadline", "Seconds for all questions together.", float, typed=float, in_requests=False),
    Option("tokens", "The most tokens of question and items, per question.", int, {"ge": 1, "lt": 2**31}, typed=int),
    Option("cost", "The most money per question, such as '0.02 USD'.", str, {"max_length": 40, "pattern": r"\S"}),
    Option("price", "What the scorer costs, such as '0.05 USD / 1M tokens'.", str, in_requests=False),
    Option(
        "method",
        "gaussian, adacur (the paper's), anncur, rerank, first (the first stage, 0 calls) or exact; default: "
        "gaussian, or rerank where the index has neither anchor queries nor dense vectors.",
        str,
        in_requests=False,
    ),
    Option(
        "first",
        "First stage; default: as tuned, or the first there is of bm25+dense, dense, bm25, random.",
        str,
        {"max_length": 1000},
    ),
    Option(
        "fuse",
        "The first stage's weight in the order; 0 is the scorer's own order; default: as tuned or built, else 1 for a "
        "reranker (.5 beside bm25 alone), 0 for a function or a judge.",
        float,
        {"ge": 0, "le": 1000},
        typed=float,
    ),
    Option(
        "effort",
        "auto: spend what a question needs; or the mean recall to reach. Of a tuned index.",
        float,
        {"gt": 0, "lt": 1},
        read=_effort,
        words=("auto",),
    ),
    Option(
        "min_relevance",
        "Leave out hits below this relevance, from 0 to 1.",
        float,
        {"ge": 0, "le": 1},
        typed=float,
    ),
    Option("min_score", "Leave out hits below this score.", float, typed=float),
    Option(
        "filter",
        "Metadata that items must have; of a name that is repeated, any of its values.",
        dict,
        typed=list,
        in_requests=False,
        metavar="NAME=VALUE",
    ),
)
SEARCH_OPTIONS = tuple(option.name for option in OPTIONS)
_SHARED = ("deadline", "tokens", "cost", "price", "first", "filter")
# Those of `find`, which `plan_find` reads.
FIND_OPTIONS = (
    Option("above", "The line: find all items that score this or higher.", float, typed=float),
    Option("recall", "The share of them to find; default: 0.9.", float, {"gt": 0, "le": 1}, typed=float),
    Option(
        "budget",
        "The most scorer calls per question, and more limits: '2000', '100000 tokens'; default: 1,000 calls. Most "
        "searches end before.",
        int,
        in_requests=False,
    ),
    Option(
        "audit", "Of the calls, draw N at random, to certify each question.", int, {"ge": 0, "lt": 2**31}, typed=int
    ),
    Option(
        "confidence",
        "The chance that a promise is kept; default: 0.9.",
        float,
        {"ge": 0.5, "lt": 1},
        typed=float,
    ),
    *(option for option in OPTIONS if option.name in _SHARED),
)
# Options that become fields of a `Budget`.
OF_BUDGET = ("deadline", "tokens", "cost", "price")
