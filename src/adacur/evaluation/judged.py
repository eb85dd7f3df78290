"""Judged quality: whether the hits are what people call relevant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError
from adacur.core.extras import require
from adacur.core.results import Hits

__all__ = ["judged_quality"]


def judged_quality(
    found: Sequence[Hits], qrels: Mapping[str, Mapping[str, int]], *, measure: str = "nDCG@10"
) -> FloatArray:
    """A ranking measure of ir_measures per judged query, in the order of the hits; unjudged queries are left out."""
    ir_measures = require("ir_measures", extra="evaluation")
    judged = [hits for hits in found if qrels.get(hits.query.id)]
    if not judged:
        raise InputError("None of these queries is judged. Check that the judgements use the same query ids.")
    run = {hits.query.id: dict(zip(hits.ids, hits.scores.tolist(), strict=True)) for hits in judged}
    wanted = {id_: dict(qrels[id_]) for id_ in run}
    values = {
        metric.query_id: metric.value
        for metric in ir_measures.iter_calc([ir_measures.parse_measure(measure)], wanted, run)
    }
    return np.array([values.get(hits.query.id, 0.0) for hits in judged])
