"""The packed decoder: prompts that share a beginning are computed once, with the scores of transformers."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.extras.kernels.decoder import PromptBatches
from adacur.extras.kernels.decoder_forward import PackedDecoder
from adacur.records import Query
from adacur.scorers import PairPrompt, TorchCrossEncoder
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer
from tests.unit.scorers.cross_encoders.tiny_models import ITEMS, PAIRS, QUERIES, tiny_decoder


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    return tiny_decoder(tmp_path_factory.mktemp("causal") / "model", kind="causal")


class Watched(PackedDecoder):
    """Counts the tokens that it computes of prompts which share prefixes."""

    tokens, calls = 0, 0

    def last_hidden(self, sequences):
        n = len(sequences)
        return super().last_hidden_shared([()], sequences, np.zeros(n, int), continuation_of=np.arange(n))

    def last_hidden_shared(self, prefixes, continuations, prefix_of, *, continuation_of):
        assert all(map(len, continuations))
        assert len({tuple(row) for row in continuations}) == len(continuations)
        type(self).calls += 1
        type(self).tokens += sum(map(len, prefixes)) + sum(len(continuations[of]) for of in continuation_of)
        return super().last_hidden_shared(prefixes, continuations, prefix_of, continuation_of=continuation_of)


@pytest.mark.parametrize("text", ["w1 {query} w5 {item} w6", "w1 {item} w5 {query} w6"])
def test_the_packed_pass_scores_as_transformers_does(causal, text, monkeypatch) -> None:
    with TorchCrossEncoder(causal, prompt=text, device="cpu") as packed:
        assert isinstance(packed._forward._body, PackedDecoder)
        scores = packed.score(PAIRS), packed.score_grid(QUERIES, ITEMS)
    monkeypatch.setattr(PackedDecoder, "can_run", lambda body: False)
    with TorchCrossEncoder(causal, prompt=text, device="cpu") as plain:
        np.testing.assert_allclose(scores[0], plain.score(PAIRS), atol=1e-4)
        np.testing.assert_allclose(scores[1], plain.score_grid(QUERIES, ITEMS), atol=1e-4)


@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("batch_tokens", [60, 4096])
def test_what_prompts_share_is_handed_over_once(causal, item_first, batch_tokens, monkeypatch) -> None:
    monkeypatch.setattr("adacur.extras.kernels.fast_forwards.PackedDecoder", Watched)
    Watched.tokens = Watched.calls = 0
    text = "w1 w2 {item} w5 {query} w6" if item_first else "w1 w2 {query} w5 {item} w6"
    with TorchCrossEncoder(causal, prompt=text, device="cpu", batch_tokens=batch_tokens) as opened:
        plain = np.array([opened.score([pair])[0] for pair in PAIRS])
        assert Watched.calls == 0
        scores = opened.score_grid(QUERIES, ITEMS).ravel()
    np.testing.assert_allclose(scores, plain, atol=1e-4)
    words = {
        "query": [len(query.text.split()) for query in QUERIES],
        "item": [len(item.text.split()) for item in ITEMS],
    }
    first, second = ("item", "query") if item_first else ("query", "item")
    whole = sum((4 + a + b) for a in words["query"] for b in words["item"])
    at_best = sum(3 + n for n in words[first]) + len(words[first]) * sum(1 + n for n in words[second])
    assert Watched.tokens < whole
    if batch_tokens == 4096:
        assert Watched.tokens == at_best


def test_pairs_of_many_queries_share_the_beginning_of_the_prompt(causal, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(causal).backend_tokenizer
    tokens = PairTokenizer(tokenizer, max_tokens=64, prompt=PairPrompt.of_format("w1 w2 w3 w4 {query} w5 {item} w6"))
    queries = [Query(str(n), f"w{n + 10}") for n in range(6)]
    batches = PromptBatches(
        torch, tokens.pairs(list(zip(queries, ITEMS[1:7], strict=True))), device=torch.device("cpu")
    )
    assert batches._prefixes.tolist() == [4]
    assert batches.end(0, tokens=10**6) == 6
    one = PromptBatches(torch, tokens.pairs([(queries[0], item) for item in ITEMS]), device=torch.device("cpu"))
    assert one._prefixes.tolist() == [6]
    ends = [0]
    while ends[-1] < len(one):
        ends.append(one.end(ends[-1], tokens=40))
        counted = 6 + sum(one._rest[ends[-2] : ends[-1]])
        assert counted <= 40 or ends[-1] == ends[-2] + 1
