"""Rerankers whose files do not say how they want a pair: their prompts and readouts, by name.

Taken from their model cards and packages. A model that says it itself (modules.json, a chat template with the roles
"query" and "document") is believed first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from adacur.scorers.cross_encoders.pair_prompt import PairPrompt
from adacur.scorers.cross_encoders.readout import Readout


@dataclass(frozen=True, slots=True)
class KnownReranker:
    """A prompt and a readout; `told` is how an instruction is written into the prompt, and `usual` the default one."""

    name: re.Pattern[str]
    prompt: str
    readout: Readout
    told: str | None = None
    usual: str | None = None

    def pair_prompt(self, instruction: str | None) -> PairPrompt:
        """Its prompt with this instruction, or the usual one."""
        if self.told is None:
            return PairPrompt.of_format(self.prompt, instruction=instruction)
        task = instruction or self.usual
        # As a part of the text: the line of a missing instruction goes too.
        line = "" if task is None else self.told.replace("{}", task)
        return replace(PairPrompt.of_format(self.prompt, instruction=line), instruction=task)


_CHATML = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"

KNOWN = (
    KnownReranker(
        re.compile(r"qwen3-reranker-", re.IGNORECASE),
        _CHATML.format(
            "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that "
            'the answer can only be "yes" or "no".',
            "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {item}",
        )
        + "<think>\n\n</think>\n\n",
        Readout.odds("yes", "no"),
        told="{}",
        usual="Given a web search query, retrieve relevant passages that answer the query",
    ),
    KnownReranker(
        re.compile(r"mxbai-rerank-(base|large)-v2", re.IGNORECASE),
        _CHATML.format(
            "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
            "{instruction}query: {query}\ndocument: {item}\nYou are a search relevance expert who evaluates how well "
            "documents match search queries. For each query-document pair, carefully analyze the semantic relationship "
            "between them, then provide your binary relevance judgment (0 for not relevant, 1 for relevant).\n"
            "Relevance:",
        ),
        Readout.odds("1", "0"),
        told="instruction: {}\n",
    ),
    KnownReranker(
        re.compile(r"zerank-", re.IGNORECASE), _CHATML.format("{query|trim}", "{item|trim}"), Readout.token("Yes")
    ),
    KnownReranker(
        re.compile(r"bge-reranker-v2-gemma", re.IGNORECASE),
        "<bos>A: {query}\nB: {item}\nGiven a query A and a passage B, determine whether the passage contains an answer "
        "to the query by providing a prediction of either 'Yes' or 'No'.",
        Readout.token("Yes"),
    ),
    KnownReranker(
        re.compile(r"ctxl-rerank-v2", re.IGNORECASE),
        "Check whether a given document contains information helpful to answer the query.\n<Document> {item}\n"
        "<Query> {query}{instruction} ??",
        Readout.token(0),
        told=" {}",
    ),
)


def known_reranker(name: str) -> KnownReranker | None:
    """The entry of a model by its folder's or hub name."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    return next((known for known in KNOWN if known.name.search(last)), None)
