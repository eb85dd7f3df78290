from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacur.extras.kernels.pair_batches import PairBatches
from adacur.records import Item, Query
from adacur.scorers.cross_encoders.forwards import PaddedBatches
from adacur.scorers.cross_encoders.pair_prompt import PairPrompt
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer
from tests.unit.scorers.cross_encoders.tiny_models import PAIRS, byte_level, tiny_tokenizer

torch = pytest.importorskip("torch")
TOKENS = PairTokenizer(tiny_tokenizer("bert"), max_tokens=300)
# A query of one word and three special tokens.
AROUND = 4
PADDED = partial(PaddedBatches, torch, device=torch.device("cpu"), pad_id=0)
PACKED = partial(PairBatches, torch, device=torch.device("cpu"))


def pairs_of(item_lengths: list[int]):
    return TOKENS.pairs([(Query("q", "w1"), Item(str(at), "w2 " * n)) for at, n in enumerate(item_lengths)])


def cut(end, n: int, tokens: int) -> list[range]:
    ends = [0]
    while ends[-1] < n:
        ends.append(end(ends[-1], tokens=tokens))
    return [range(start, end) for start, end in itertools.pairwise(ends)]


@given(lengths=st.lists(st.integers(1, 280), min_size=1, max_size=40), tokens=st.integers(1, 3000))
@pytest.mark.parametrize("is_packed", [False, True])
def test_batches_hold_every_pair_once_within_the_budget(is_packed: bool, lengths: list[int], tokens: int) -> None:
    batches = (PACKED if is_packed else PADDED)(pairs_of(lengths))
    own = np.array(lengths)[batches.order.numpy()] + AROUND
    assert sorted(batches.order.tolist()) == list(range(len(lengths)))
    for batch in cut(batches.packed_end if is_packed else batches.end, len(lengths), tokens):
        cost = own[batch].sum() if is_packed else len(batch) * own[batch].max()
        assert len(batch) == 1 or cost <= tokens


def test_a_padded_batch_ends_before_it_is_mostly_padding() -> None:
    batches = PADDED(pairs_of([100] * 10 + [10] * 100))
    assert [len(batch) for batch in cut(batches.end, 110, 4000)] == [10, 100]


def cut_in_a_prompt():
    prompt = PairPrompt.of_format("<|x|>{query}\n<{item}>\nyes?", instruction=None)
    tokens = PairTokenizer(byte_level(), max_tokens=60, prompt=prompt)
    items = [Item(str(n), "some words " * n) for n in (1, 40, 80)]
    return tokens.texts([Query("q", "what"), Query("r", "what is this then")], items).grid()


@pytest.mark.parametrize("pairs", [TOKENS.pairs(PAIRS), cut_in_a_prompt()], ids=["pairs", "a prompt with cut items"])
def test_packed_and_padded_batches_hold_the_pairs_as_tokenised(pairs) -> None:
    padded, packed = PADDED(pairs), PACKED(pairs)
    inputs, rows = padded.inputs(0, len(pairs)), packed.packed(0, len(pairs))
    assert padded.order.tolist() == packed.order.tolist()
    for place, at in enumerate(padded.order.tolist()):
        ids, types = pairs.texts.pair(pairs.query_of[at], pairs.item_of[at])
        own = slice(rows.starts[place], rows.starts[place + 1])
        assert rows.ids[own].tolist() == inputs["input_ids"][place].tolist()[: len(ids)] == ids.tolist()
        assert rows.types[own].tolist() == inputs["token_type_ids"][place].tolist()[: len(ids)] == types.tolist()
        assert rows.positions[own].tolist() == list(range(len(ids)))
        assert inputs["attention_mask"][place].tolist() == [1] * len(ids) + [0] * (rows.longest - len(ids))
        assert rows.read_rows[place].tolist() == [rows.starts[place]]
    assert len(rows.ids) == rows.starts[-1]
