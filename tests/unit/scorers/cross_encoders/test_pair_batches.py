from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacur.records import Item, Query
from adacur.scorers.cross_encoders.pair_batches import PairBatches
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer
from tests.unit.scorers.cross_encoders.tiny_models import PAIRS, tiny_tokenizer

torch = pytest.importorskip("torch")
TOKENS = PairTokenizer(tiny_tokenizer("bert"), max_tokens=300)
# A query of one word and three special tokens.
AROUND = 4


def batches_of(item_lengths: list[int]) -> PairBatches:
    query = Query("q", "w1")
    pairs = [(query, Item(str(at), " ".join(["w2"] * length))) for at, length in enumerate(item_lengths)]
    return PairBatches(torch, TOKENS.pairs(pairs), device=torch.device("cpu"), pad_id=0)


def cut(batches: PairBatches, how: str, tokens: int) -> list[range]:
    ends = [0]
    while ends[-1] < len(batches):
        ends.append(getattr(batches, how)(ends[-1], tokens=tokens))
    return [range(start, end) for start, end in itertools.pairwise(ends)]


@given(
    lengths=st.lists(st.integers(1, 280), min_size=1, max_size=40),
    tokens=st.integers(1, 3000),
    how=st.sampled_from(["packed_end", "padded_end"]),
)
def test_batches_hold_every_pair_once_within_the_budget(lengths: list[int], tokens: int, how: str) -> None:
    batches = batches_of(lengths)
    own = np.array(lengths)[batches.order.numpy()] + AROUND
    assert sorted(batches.order.tolist()) == list(range(len(lengths)))
    for batch in cut(batches, how, tokens):
        assert batches.tokens(batch.start, batch.stop) == own[batch].sum()
        cost = own[batch].sum() if how == "packed_end" else len(batch) * own[batch].max()
        assert len(batch) == 1 or cost <= tokens


def test_a_padded_batch_ends_before_it_is_mostly_padding() -> None:
    batches = batches_of([100] * 10 + [10] * 100)
    assert [len(batch) for batch in cut(batches, "padded_end", 4000)] == [10, 100]


def test_packed_and_padded_batches_hold_the_pairs_as_tokenised() -> None:
    pairs = TOKENS.pairs(PAIRS)
    batches = PairBatches(torch, pairs, device=torch.device("cpu"), pad_id=0)
    packed = batches.packed(0, len(PAIRS))
    padded = batches.padded(0, len(PAIRS))
    for place, at in enumerate(batches.order.tolist()):
        ids, types = pairs.texts.pair(pairs.query_of[at], pairs.item_of[at])
        rows = slice(packed.starts[place], packed.starts[place + 1])
        assert packed.ids[rows].tolist() == ids.tolist()
        assert packed.types[rows].tolist() == types.tolist()
        assert packed.positions[rows].tolist() == list(range(len(ids)))
        assert padded["input_ids"][place].tolist()[: len(ids)] == ids.tolist()
        assert padded["token_type_ids"][place].tolist()[: len(ids)] == types.tolist()
        assert padded["attention_mask"][place].tolist() == [1] * len(ids) + [0] * (packed.longest - len(ids))
        assert packed.read_rows[place].tolist() == [packed.starts[place]]
    assert len(packed.ids) == packed.starts[-1]
