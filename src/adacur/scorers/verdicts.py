"""The text of a judge that gives no logprobs: one of the answers and nothing else, or it is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL | re.IGNORECASE)
# What models write around an answer: Markdown, quotes, a code fence, "Answer: ", a full stop.
_LABEL = re.compile(
    r"^(?:the )?(?:final )?(?:answer|grade|score|verdict|label|rating)(?: is)?\s*[:=]?\s*", re.IGNORECASE
)
_MARKS = " \t\r\n*_`~\"'“”‘’.,:;!()[]{}<>#$\\"


def verdict_in(text: str, answers: Sequence[str]) -> str | None:
    """The answer that a text is, whatever its case and marks; None for prose, for several answers and for none."""
    said = _THOUGHT.sub("", text).strip(_MARKS)
    for shown in (said, _LABEL.sub("", said)):
        plain = shown.strip(_MARKS).casefold()
        for answer in answers:
            if plain == answer.strip(_MARKS).casefold():
                return answer
    return None


def mean_verdict(verdicts: Sequence[str], grades: Mapping[str, float | None]) -> float:
    """The mean grade; of two answers without grades, the share of the first."""
    first = next(iter(grades))
    values = [
        float(verdict == first) if grades[verdict] is None else float(grades[verdict] or 0) for verdict in verdicts
    ]
    return sum(values) / len(values)
