"""What a tuning comes to, in a few sentences."""

from __future__ import annotations

import math

from adacur.search.tuned import Judged, Mean, Tuning

# What an index has to add to re-ranking before one would build it for that.
_WORTH = 0.02


def verdict(tuning: Tuning) -> str:
    """In words: what the judges prefer, what the index adds to re-ranking, and whether that is worth having."""
    k, budget, gain = tuning.k, tuning.budget, tuning.gain
    by_judges = f"{_judges_verdict(tuning, tuning.judged)} " if tuning.judged else ""
    if gain is None:
        return "There were too few anchor queries to tune with. The default settings are used."
    if tuning.is_exact:
        return f"{by_judges}{budget} calls score every item: every method finds the exact top {k}. Nothing to tune."
    plain, more, low, high = map(_short, (tuning.recall_of("rerank").recall, gain.recall, gain.low, gain.high))
    reranked = tuning.rerank_first or tuning.first
    without = f"Re-ranking {reranked}'s best {budget}" if reranked else f"Scoring {budget} at random"
    if gain.high < 0:
        advice = "re-ranking does better here. Search with method='rerank'."
    elif gain.low <= 0 and gain.high >= _WORTH:
        # Queries that would tell this gain from none, or from one that is not worth having, if it stays as it is.
        narrow = max(gain.recall, _WORTH - gain.recall)
        needed = -(-math.ceil(tuning.n_queries * ((gain.high - gain.low) / 2 / narrow) ** 2) // 10) * 10
        advice = f"too few anchor queries to tell; {tuning.n_queries} were replayed, and about {needed:,} are needed."
    else:
        advice = "probably not worth building for this." if gain.recall < _WORTH else "worth having."
    if tuning.pseudo:
        advice += " The anchor queries are pseudo-queries, made from the items: real queries may give other numbers."
    return f"{by_judges}{without} finds {plain} of the top {k}; the index adds {more} [{low}, {high}]: {advice}"


def _judges_verdict(tuning: Tuning, judged: Judged) -> str:
    means = (judged.chosen, judged.plain, judged.rerank, judged.alone)
    quality, plain, rerank, alone = (_short(mean.value) for mean in means)
    said = (
        f"By {judged.n_queries} judged queries: {tuning.budget} calls from {tuning.first} with {judged.order()} reach "
        f"{judged.measure} {quality}, {_more(judged.gain)} more than a search of {judged.largest} calls without "
        f"tuning ({plain}); re-ranking as many with the same order reaches {rerank}."
    )
    if (worth := judged.worth) is None:
        return said
    said += f" {judged.alone_first} alone, 0 calls, reaches {alone}: the calls add {_more(worth)}."
    if worth.high < 0:
        return f"{said} Use no scorer here."
    if worth.low <= 0:
        return f"{said} No gain is proved: use no scorer here, or judge more queries."
    if judged.rerank.value >= judged.chosen.value:
        said += " The judges see nothing in what the search finds beyond re-ranking."
    return said


def _more(gain: Mean) -> str:
    return f"{_short(gain.value)} [{_short(gain.low)}, {_short(gain.high)}]"


def _short(value: float) -> str:
    return f"{value:.2f}".replace("0.", ".", 1).replace("-", "−")
