"""What a model reads of a pair, as text: prefix, query, middle, item, suffix; or the item before the query."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adacur.errors import InputError

_PLACE = re.compile(r"\{(query|item)(\|trim)?\}")
# Some templates say what day it is, and a scorer must be the same tomorrow.
_ONE_DAY = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}"
_PAIR_ROLES = {"query": "{query}", "document": "{item}"}
_LONGEST, _LONGEST_REASON = 2**15, 1000
_REMEDY = (
    "Give the model's prompt, prompt='… {query} … {item} …', or messages for the template: prompt=[{'role': 'user', "
    "'content': '… {query} … {item} …'}]."
)
_SENTINELS = {"query": "qPLACEq7f1e", "item": "iPLACEi7f1e"}


@dataclass(frozen=True, slots=True)
class PairPrompt:
    """A prompt with one place for the query and one for the item; equal texts are equal prompts.

    Make one from a format text with {query} and {item} (`of_format`) or from a chat template (`of_chat`). `instruction`
    is the task that was written into it. `trims` names the texts ("query", "item") whose ends are stripped of spaces,
    as some chat templates do; in `text` that is {query|trim}.
    """

    prefix: str
    middle: str
    suffix: str
    item_first: bool = False
    trims: frozenset[str] = frozenset()
    instruction: str | None = None

    def __post_init__(self) -> None:
        if re.search("[\ud800-\udfff]", self.prefix + self.middle + self.suffix):
            raise InputError(f"A prompt must be Unicode text; {self.text!r} holds half of a surrogate pair.")

    @classmethod
    def of_format(cls, text: str, *, instruction: str | None = None) -> PairPrompt:
        """A prompt of exactly this text, with {query} and {item}, and {instruction} where an instruction goes.

        Nothing is added, not even the token that a model wants at the beginning: write it.
        """
        places = {found[1]: found for found in _PLACE.finditer(text)}
        times = {name: len(re.findall(rf"\{{{name}(\|trim)?\}}", text)) for name in ("query", "item")}
        if wrong := next((name for name, n in times.items() if n != 1), None):
            raise InputError(
                f"A prompt must have one place for the query, {{query}}, and one for the item, {{item}}; {text!r} has "
                f"{times[wrong]} of {{{wrong}}}."
            )
        first, second = sorted(places.values(), key=lambda found: found.start())
        parts = [text[: first.start()], text[first.end() : second.start()], text[second.end() :]]
        has_place = any("{instruction}" in part for part in parts)
        if has_place and instruction is None:
            raise InputError(f"The prompt {text!r} has a place for an {{instruction}}: give instruction='…'.")
        if instruction is not None and not has_place:
            raise no_place_for(instruction, "the prompt has no {instruction}")
        prefix, middle, suffix = (part.replace("{instruction}", instruction or "") for part in parts)
        trims = frozenset(name for name, found in places.items() if found[2])
        return cls(prefix, middle, suffix, first[1] == "item", trims, instruction)

    @classmethod
    def of_chat(
        cls,
        tokenizer: Any,
        messages: Sequence[Mapping[str, str]] | None = None,
        *,
        instruction: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> PairPrompt:
        """What the chat template of a transformers tokenizer makes of a pair, found with two texts that stand out.

        By default the query has the role "query" and the item the role "document", and an instruction is a system
        message: what sentence-transformers gives. Given `messages` have {query}, {item} and {instruction} in
        their contents, and the template opens the answer. `options` go to the template.
        """
        if messages is None:
            plain = [{"role": role, "content": text} for role, text in _PAIR_ROLES.items()]
            told = [{"role": "system", "content": "{instruction}"}, *plain]
            rendered = _rendered(tokenizer, told if instruction else plain, instruction, options or {})
            if instruction and rendered == _rendered(tokenizer, plain, None, options or {}):
                raise no_place_for(instruction, "the model's chat template renders no system message")
        else:
            has_place = any("{instruction}" in str(message.get("content")) for message in messages)
            if instruction is not None and not has_place:
                raise no_place_for(instruction, "the messages have no {instruction}")
            rendered = _rendered(
                tokenizer, messages, instruction, {"add_generation_prompt": True} | dict(options or {})
            )
        made = cls.of_format(rendered)
        return cls(made.prefix, made.middle, made.suffix, made.item_first, made.trims, instruction)

    @property
    def text(self) -> str:
        """The prompt as `of_format` reads it."""
        places = [f"{{{name}|trim}}" if name in self.trims else f"{{{name}}}" for name in ("query", "item")]
        first, second = reversed(places) if self.item_first else places
        return f"{self.prefix}{first}{self.middle}{second}{self.suffix}"

    def render(self, query: str, item: str) -> str:
        """The prompt of a pair."""
        first, second = self.trimmed("query", query), self.trimmed("item", item)
        if self.item_first:
            first, second = second, first
        return f"{self.prefix}{first}{self.middle}{second}{self.suffix}"

    def trimmed(self, name: str, text: str) -> str:
        """A query's or an item's text as it goes into the prompt."""
        return text.strip() if name in self.trims else text


def knows_pairs(tokenizer: Any) -> bool:
    """Whether a chat template names the roles of a query and a document; those of conversations do not."""
    template = str(tokenizer.get_chat_template())
    return all(re.search(rf"['\"]{role}['\"]", template) for role in _PAIR_ROLES)


def no_place_for(instruction: str, why: str) -> InputError:
    """The error of an instruction that would be lost."""
    return InputError(
        f"This scorer has no place for an instruction ({why}), so {instruction!r} would be lost. Leave it out, or give "
        "a prompt='…' with {instruction}, {query} and {item}."
    )


def _rendered(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], instruction: str | None, options: Mapping[str, Any]
) -> str:
    """The format text that a chat template makes of messages."""
    fault = ""
    # A template that takes no plain contents may take structured ones.
    for structured in (False, True):
        try:
            text, spaced = (_filled(tokenizer, messages, instruction, options, structured, gap) for gap in ("", " "))
        # Anyone may have written it.
        except Exception as error:
            fault = fault or f"cannot be rendered ({str(error)[:_LONGEST_REASON] or type(error).__name__})"
            continue
        if absent := [f"the {name}" for name, sentinel in _SENTINELS.items() if sentinel not in text]:
            fault = f"has no place for {' or '.join(absent)}"
            continue
        for name, sentinel in _SENTINELS.items():
            if text.count(sentinel) > 1:
                raise InputError(f"A prompt must have one place for the {name}; the model's chat template repeats it.")
            text = text.replace(sentinel, f"{{{name}{'' if f' {sentinel} ' in spaced else '|trim'}}}")
        return text
    raise InputError(f"The model's chat template {fault}. {_REMEDY}")


def _filled(
    tokenizer: Any,
    messages: Sequence[Mapping[str, str]],
    instruction: str | None,
    options: Mapping[str, Any],
    structured: bool,
    gap: str,
) -> str:
    """What a chat template makes of messages whose places hold texts that stand out, with gaps around them."""
    chat = []
    for message in messages:
        content = str(message["content"]).replace("{instruction}", instruction or "")
        for name, sentinel in _SENTINELS.items():
            content = content.replace(f"{{{name}}}", f"{gap}{sentinel}{gap}")
        chat.append({**message, "content": [{"type": "text", "text": content}] if structured else content})
    template = str(tokenizer.get_chat_template())
    template = _ONE_DAY + template if "strftime_now" in template else template
    # Jinja2's sandbox: a template may loop for long, and can neither import nor call what it is not given.
    text = str(tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False, **options))
    if len(text) > _LONGEST:
        raise ValueError(f"it makes {len(text):,} characters of a pair")
    return text
