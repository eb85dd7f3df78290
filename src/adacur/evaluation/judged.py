"""Judged quality: whether the hits are what people call relevant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import DuplicateId, InputError, UnknownName
from adacur.core.extras import require
from adacur.core.records import first_repeat
from adacur.core.results import Hits


def judged_quality(
    found: Sequence[Hits], qrels: Mapping[str, Mapping[str, int]], *, measures: Sequence[str] = ("nDCG@10",)
) -> dict[str, FloatArray]:
    """Measures of ir_measures ("nDCG@10", "R@100", "RR@10", "AP") per query, in the order of the hits.

    NaN for queries that nobody judged. The hits are judged in the order in which they come, fused or not.
    """
    ir_measures = require("ir_measures", extra="evaluation")
    parsed = {name: _parse(ir_measures, name) for name in measures}
    ids = [hits.query.id for hits in found]
    if len(set(ids)) < len(ids):
        raise DuplicateId(f"Each query is judged once; {first_repeat(ids)!r} was answered more than once.")
    # The measures' own providers break ties between scores in different ways, and in float32; ranks have no ties.
    ranked = {
        hits.query.id: {id_: -float(rank) for rank, id_ in enumerate(dict.fromkeys(hits.ids))}
        for hits in found
        if qrels.get(hits.query.id)
    }
    if not ranked:
        raise InputError("None of these queries is judged. Check that the judgements use the same query ids.")
    wanted = {id_: dict(qrels[id_]) for id_ in ranked}
    try:
        values = {
            (metric.measure, metric.query_id): metric.value
            for metric in ir_measures.iter_calc(list(parsed.values()), wanted, ranked)
        }
    except (ValueError, AssertionError) as error:
        raise InputError(f"ir_measures cannot compute {', '.join(measures)}: {error}") from error
    return {
        name: np.array([values.get((measure, id_), 0.0) if id_ in ranked else np.nan for id_ in ids])
        for name, measure in parsed.items()
    }


def _parse(ir_measures: Any, name: str) -> Any:
    """The measure called "Name" or "Name@depth"; ir_measures' own parser fails on Python 3.14."""
    try:
        kind, has_depth, depth = name.partition("@")
        measure = ir_measures.measures.registry[kind]
        return measure(**{measure.AT_PARAM: int(depth)}) if has_depth else measure()
    except (KeyError, TypeError, ValueError) as error:
        raise UnknownName(
            f"ir_measures knows no measure {name!r}. Try 'nDCG@10', 'R@100', 'RR@10' or 'AP'; "
            "recall of the scorer's own top k is top_k_recall."
        ) from error
