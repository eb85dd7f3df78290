from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from adacur.core.errors import DuplicateId, InputError, NonFiniteScore, ScoreCountError, ScorerFailed
from adacur.core.records import Item, Query
from adacur.core.scores import score_pairs
from adacur.scorers import PyTerrierScorer
from tests.unit.scorers.cross_encoders.tiny_models import PAIRS

pt = pytest.importorskip("pyterrier")
# PyTerrier 1.1 calls pandas 3 in ways that pandas 4 will not take.
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")


class Lengths(pt.Transformer):
    """A re-ranker that changes the answer by a function, and remembers the frames it was given."""

    def __init__(self, change=lambda frame: frame) -> None:
        self.change = change
        self.asked: list[pd.DataFrame] = []

    def transform(self, inp):
        pt.validate.result_frame(inp, extra_columns=["query", "text"])
        self.asked.append(inp)
        scored = inp.assign(score=inp["query"].str.len() - inp["text"].str.len() / 7)
        return self.change(pt.model.add_ranks(scored))


def expected(pairs) -> list[float]:
    return [len(query.text) - len(item.text) / 7 for query, item in pairs]


def test_scores_are_matched_by_ids_and_each_pair_is_asked_for_once() -> None:
    transformer = Lengths(lambda frame: frame.sample(frac=1, random_state=0))
    order = np.random.default_rng(0).permutation(len(PAIRS))
    pairs = [PAIRS[at] for at in order] + PAIRS[:5]
    np.testing.assert_array_equal(PyTerrierScorer(transformer).score(pairs), expected(pairs))
    (frame,) = transformer.asked
    assert list(frame.columns) == ["qid", "query", "docno", "text"]
    assert len(frame) == len(PAIRS)
    assert (frame["qid"] != frame["qid"].shift()).sum() == 5, "rows of a query stand together"


def test_pipelines_and_functions_of_rows_are_transformers_too() -> None:
    by_row = pt.apply.doc_score(lambda row: float(len(row["text"])))
    pipeline = pt.apply.query(lambda row: row["query"] + "!") >> Lengths()
    lengths = [float(len(item.text)) for _, item in PAIRS]
    np.testing.assert_array_equal(PyTerrierScorer(by_row).score(PAIRS), lengths)
    np.testing.assert_array_equal(PyTerrierScorer(pipeline).score(PAIRS), np.array(expected(PAIRS)) + 1)


def test_rows_that_the_transformer_adds_are_ignored() -> None:
    more = Lengths(lambda frame: pd.concat([frame, frame.head(2).assign(docno="other")]))
    np.testing.assert_array_equal(PyTerrierScorer(more).score(PAIRS), expected(PAIRS))


def test_the_text_may_stand_in_another_column() -> None:
    by_body = pt.apply.doc_score(lambda row: float(len(row["body"])))
    assert PyTerrierScorer(by_body, text_field="body").score([(Query("q", "x"), Item("i", "four"))]).tolist() == [4.0]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda frame: frame[frame["docno"] != "b"], ScoreCountError, "3 pairs.*returned 2.* item 'b'"),
        (lambda frame: pd.concat([frame, frame]), ScoreCountError, "returned 6"),
        (lambda frame: frame.drop(columns="score"), ScoreCountError, "'score'"),
        (lambda frame: frame.assign(score=np.nan), NonFiniteScore, "query 'q' and item 'a'"),
        (lambda frame: 1 / 0, ScorerFailed, "ZeroDivisionError"),
    ],
)
def test_nonsense_is_refused(change, error, says) -> None:
    pairs = [(Query("q", "x"), Item(id_, id_)) for id_ in "abc"]
    with pytest.raises(error, match=says):
        score_pairs(PyTerrierScorer(Lengths(change)), pairs)


def test_a_transformer_that_scores_nothing_does_not_pass() -> None:
    with pytest.raises(ScoreCountError, match="'score'"):
        PyTerrierScorer(pt.Transformer.identity()).score(PAIRS[:3])
    with pytest.raises(ScoreCountError, match=r"5 pairs.*returned 2"):
        PyTerrierScorer(Lengths() % 2).score(PAIRS[:5])


def test_an_id_with_two_texts_is_refused() -> None:
    for pairs in (
        [(Query("q", "x"), Item("i", "a")), (Query("p", "y"), Item("i", "b"))],
        [(Query("q", "x"), Item("i", "a")), (Query("q", "y"), Item("j", "b"))],
    ):
        with pytest.raises(DuplicateId, match="two texts"):
            PyTerrierScorer(Lengths()).score(pairs)


@pytest.mark.parametrize("wrong", [Lengths, object()])
def test_what_cannot_transform_is_refused(wrong) -> None:
    with pytest.raises(InputError, match=r"transform\(frame\)"):
        PyTerrierScorer(wrong)
