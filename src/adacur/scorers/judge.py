"""A language model as a judge: any OpenAI-compatible chat, by the logprobs of its answer or by what it says."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adacur.budget import at_least
from adacur.errors import InputError
from adacur.protocols import ScorerCard
from adacur.records import Item, Pair, Query
from adacur.scorers.cross_encoders.pair_prompt import PairPrompt
from adacur.scorers.http_dialects import JUDGE
from adacur.scorers.remote import CHAT, Address, Answer, RemoteScorer, by_query, checked_extra, source, where

ANSWERS = ("Yes", "No")
_TASK = "Judge whether the document is relevant to the query."
# What pairs share comes first, for servers that keep prefixes.
_PAIR_TEXT = "{instruction}\n\nQuery: {query}\n\nDocument: {item}\n\n"
# Services write −9999 or −inf for what cannot be.
_IMPOSSIBLE = -100.0
_CERTAIN = 1e-3
_SHOWN = 5
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL | re.IGNORECASE)
# What models write around an answer: Markdown, quotes, a code fence, "Answer: ", a full stop.
_LABEL = re.compile(
    r"^(?:the )?(?:final )?(?:answer|grade|score|verdict|label|rating)(?: is)?\s*[:=]?\s*", re.IGNORECASE
)
_MARKS = " \t\r\n*_`~\"'“”‘’.,:;!()[]{}<>#$\\"


class JudgeScorer(RemoteScorer):
    """A chat endpoint asked for one answer per pair, whose logprobs, or text, make the score.

    - url: the root of the server (its `/v1/chat/completions` is asked), or an address that ends so;
    - model: its name, where the server has several or a cache is to recognise it;
    - answers: two texts, ("Yes", "No"): the score is log p(first) − log p(second). Or grades, {"0": 0, …, "3": 3}: the
      score is the expected grade. Each must be one token; upper and lower case and spaces do not matter;
    - prompt: a text with {query} and {item}, and perhaps {instruction}, in this order if the server keeps prefixes. By
      default a plain question that names the answers;
    - instruction: what makes a document relevant, in a sentence or more; the first thing in the default prompt;
    - top_logprobs: how many likely tokens are asked for, by default 20. An answer that is not among them counts as
      likely as the least likely of them (a grade: as impossible). Where none is, the judge talks, thinks or refuses: an
      error;
    - logprobs: False reads the answer itself, for models that give none: the score is 1 for the first answer
      and 0 for the second, or the grade. Anything but an answer is an error. Temperature and length of the answer are
      the server's own, unless `extra` says: such models often refuse both;
    - samples: the answers per pair (the chat's `n`) whose mean is the score, without logprobs; all are paid for, and
      only calls are counted;
    - extra: more fields for every request, such as {"chat_template_kwargs": {"enable_thinking": False}}; an index
      stores them, so no secrets here;
    - api_key: sent as a bearer token. Without it, OPENAI_API_KEY is read for openai.com, and likewise for DeepInfra,
      Fireworks, OpenRouter and Together. No card, error or repr shows it; a pickle of the scorer holds it;
    - concurrency, timeout, attempts, backoff, name: as of `HttpScorer`.

    `prompt`, `answers`, `url` and `model` say what was taken, and `card.source` is a URL that opens the same again.
    What a call costs is not known here.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        answers: Sequence[str] | Mapping[str, float] | None = None,
        prompt: str | None = None,
        instruction: str | None = None,
        top_logprobs: int | None = None,
        logprobs: bool | None = None,
        samples: int | None = None,
        extra: Mapping[str, Any] | None = None,
        api_key: str | None = None,
        concurrency: int = 8,
        timeout: float = 60.0,
        attempts: int = 5,
        backoff: float = 0.5,
        name: str | None = None,
    ) -> None:
        address = Address.of(url, JUDGE)
        remembered = address.remembered
        top_logprobs = _count_in(remembered, "top_logprobs", 20) if top_logprobs is None else top_logprobs
        samples = _count_in(remembered, "samples", None) if samples is None else samples
        at_least(1, top_logprobs=top_logprobs, samples=samples)
        if samples is not None and logprobs:
            raise InputError("samples are of a judge that is read without logprobs. Leave samples out, or logprobs.")
        # None where logprobs make the score.
        self.samples = (samples or 1) if logprobs is False or samples is not None else None
        given_prompt = prompt or remembered.get("prompt")
        self.instruction = instruction or remembered.get("instruction")
        self.answers = _checked_answers(answers, remembered)
        limits: dict[str, Any] = {"concurrency": concurrency, "timeout": timeout}
        limits |= {"attempts": attempts, "backoff": backoff}
        super().__init__(address, api_key=api_key, model=model, name=name, **limits)
        self.pairs_at_once = concurrency
        self.url = address.endpoint(f"/v1{CHAT}")
        if given_prompt is None:
            usual = _PAIR_TEXT + _question(self.answers, is_graded=self._is_graded)
            self.prompt = PairPrompt.of_format(usual, instruction=self.instruction or _TASK)
        else:
            self.prompt = PairPrompt.of_format(given_prompt, instruction=self.instruction)
        self._top = top_logprobs if self.samples is None else None
        self._extra = checked_extra(extra, remembered, taken=frozenset({*self._body([]), "n"}))
        decides = [self.prompt.text, list(self.answers.items()), self._top, self._extra, self.samples]
        is_usual = tuple(self.answers) == ANSWERS
        self.card = ScorerCard(
            name=self._name,
            backend="judge",
            source=source(
                self.url,
                kind=JUDGE,
                model=self.model,
                answers=None if is_usual else self.answers if self._is_graded else list(self.answers),
                prompt=given_prompt,
                instruction=self.instruction,
                extra=self._extra,
                samples=self.samples,
                top_logprobs=None if self._top == 20 else self._top,
            ),
            settings=hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest(),
        )

    def render(self, query: Query, item: Item) -> str:
        """The prompt of a pair, as it is sent."""
        return self.prompt.render(query.text, item.text)

    @property
    def _is_graded(self) -> bool:
        return any(grade is not None for grade in self.answers.values())

    def _batches(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        # A chat is one prompt; those of a query follow one another, for servers that keep prefixes.
        return [[pair] for group in by_query(pairs) for pair in group]

    def _body(self, batch: Sequence[Pair]) -> dict[str, Any]:
        messages = [{"role": "user", "content": self.render(query, item)} for query, item in batch]
        asked: dict[str, Any] = {"messages": messages, **({} if self.model is None else {"model": self.model})}
        if self.samples is not None:
            return {**asked, "n": self.samples} if self.samples > 1 else asked
        return {**asked, "max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": self._top}

    def _advice(self, answer: Answer) -> str:
        return f" {_ADVICE}" if "logprobs" in answer.text else ""

    def _scores_in(self, answer: Any, batch: list[Pair]) -> list[float]:
        n_choices, at = self.samples or 1, where(batch)
        try:
            choices = answer["choices"]
            if 0 < len(choices) < n_choices:
                raise self._failed(
                    f"{self.url} gave {len(choices)} answers, and samples={n_choices} asks for that many: this server "
                    f"may not know the chat's 'n'. Give samples=1.{at}"
                )
            if sorted(choice["index"] for choice in choices) != list(range(n_choices)):
                raise LookupError
        except (LookupError, TypeError, ValueError) as error:
            raise self._failed(
                f"A language model answers with a JSON object that has 'choices'; {self.url} answered "
                f"{self._shown(json.dumps(answer))}. Is this the address of one?{at}"
            ) from error
        if self.samples is None:
            return [self._read(choices[0], at)]
        return [sum(self._verdict(choice, at) for choice in choices) / n_choices]

    def _verdict(self, choice: Mapping[str, Any], at: str) -> float:
        """The grade of the answer that a choice is; of two answers without grades, the first is 1."""
        said = self._said(choice, at)
        plain = _THOUGHT.sub("", said).strip(_MARKS)
        shown = {text.strip(_MARKS).casefold() for text in (plain, _LABEL.sub("", plain))}
        for answer, grade in self.answers.items():
            if answer.strip(_MARKS).casefold() in shown:
                return float(answer == next(iter(self.answers))) if grade is None else float(grade)
        raise self._failed(
            f"The judge {self.model!r} must answer with one of {', '.join(map(repr, self.answers))} and nothing else; "
            f"it said {said[:200]!r}. Ask for that in prompt=, or cap its length: extra={{'max_tokens': 5}}.{at}"
        )

    def _said(self, choice: Mapping[str, Any], at: str) -> str:
        """The text of a choice; an error where the judge refused."""
        given = choice.get("message")
        message = given if isinstance(given, dict) else {}
        said = self._without_key(str(message.get("refusal") or message.get("content") or ""))
        if message.get("refusal") or choice.get("finish_reason") == "content_filter":
            raise self._failed(f"The judge {self.model!r} refused to judge: {said[:200]!r}.{at}")
        return said

    def _read(self, choice: Mapping[str, Any], at: str) -> float:
        said = self._said(choice, at)
        if not isinstance(choice.get("logprobs"), dict):
            raise self._failed(f"{self.url} gave no logprobs for {self.model!r}. {_ADVICE}{at}")
        try:
            listed = _listed(choice["logprobs"])
        except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
            shown = self._without_key(json.dumps(choice["logprobs"]))[:200]
            raise self._failed(f"{self.url} gave logprobs that cannot be read: {shown}.{at}") from error
        found: dict[str, list[float]] = {}
        for token, logprob in listed:
            found.setdefault(_plain(token), []).append(logprob)
        known = [np.logaddexp.reduce(found.get(_plain(answer), [-math.inf])) for answer in self.answers]
        if max(known) == -math.inf:
            best = ", ".join(repr(token) for token, _ in sorted(listed, key=lambda one: -one[1])[:_SHOWN])
            raise self._failed(
                f"None of the answers {', '.join(map(repr, self.answers))} is among the {len(listed)} likeliest tokens "
                f"of {self.model!r}, which begins {said[:60]!r} (likeliest: {best or 'none'}). Say in prompt= what the "
                "answers are; each must be one token, or give logprobs=False. A model that thinks first must be "
                "told not to, for example by "
                f"extra={{'chat_template_kwargs': {{'enable_thinking': False}}}}.{at}"
            )
        if self._is_graded:
            shares = np.exp(np.array(known) - max(known))
            return float(shares @ np.array(list(self.answers.values())) / shares.sum())
        least = min(logprob for _, logprob in listed)
        first, second = (least if logprob == -math.inf else logprob for logprob in known)
        return float(first - second)


_ADVICE = (
    "A judge's score is made of them. vLLM, SGLang and llama.cpp give them, and many hosted models; models that reason "
    "in secret do not. Give logprobs=False, which reads its answer, or take another model or server."
)


def _listed(logprobs: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The likeliest first tokens."""
    places = logprobs["content"]
    entries = [(one["token"], one["logprob"]) for one in places[0]["top_logprobs"]] if places else []
    # bool is a kind of int, and servers write null or NaN too for what cannot be; a rounded 0 may lie a little above.
    if any(at is not None and (type(at) not in (int, float) or at > _CERTAIN) for _, at in entries):
        raise TypeError
    return [(str(token), float(at)) for token, at in entries if at is not None and at > _IMPOSSIBLE]


def _plain(token: str) -> str:
    """A token as an answer is compared: without case, spaces, and the marks that tokenizers write for spaces."""
    return token.strip(" \t\r\n▁Ġ").casefold()


def _count_in(remembered: Mapping[str, str], name: str, usual: int | None) -> int | None:
    """A count that a URL remembers; 0, which is refused, for one that cannot be meant."""
    text = remembered.get(name)
    return usual if text is None else int(text) if re.fullmatch(r"\d{1,9}", text) else 0


def _checked_answers(
    answers: Sequence[str] | Mapping[str, float] | None, remembered: Mapping[str, str]
) -> dict[str, float | None]:
    """The answers with their grades, which are None where the score is the odds of two."""
    if answers is None:
        try:
            answers = json.loads(remembered["answers"]) if "answers" in remembered else ANSWERS
        except (ValueError, RecursionError):
            answers = ()
    grades: dict[str, float | None] = {}
    if isinstance(answers, Mapping):
        grades = dict(answers)
        numbers = all(type(grade) in (int, float) and math.isfinite(grade) for grade in answers.values())
        fits = numbers and len(set(grades.values())) > 1
    elif fits := isinstance(answers, list | tuple) and [type(one) for one in answers] == [str, str]:
        grades = dict.fromkeys(answers)
    distinct = {_plain(answer) for answer in grades if isinstance(answer, str)} - {""}
    if not fits or len(distinct) != len(grades) or len(distinct) < 2:
        raise InputError(
            f"answers must be two different texts, such as {ANSWERS!r}, or a mapping from two texts or more to grades, "
            f"such as {{'0': 0, '1': 1, '2': 2, '3': 3}}; case and spaces do not count. Got {answers!r}."
        )
    return grades


def _question(answers: Mapping[str, float | None], *, is_graded: bool) -> str:
    if not is_graded:
        return f"Is the document relevant to the query? Answer with one word, {' or '.join(answers)}."
    rising = sorted(answers, key=lambda answer: answers[answer] or 0)
    return f"How relevant is it? Answer with one of {', '.join(rising)}, from not at all to perfectly."
