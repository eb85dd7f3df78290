"""What the model assumes before it has seen anything: its five constants, chosen by replay of anchor queries.

docs/design/predictions.md says how, and what moving each of them does. Other numbers of this room are sizes of samples,
lists and blocks.
"""

from __future__ import annotations

import math

# The variance of a score that nothing explains, relative to that of an item's score; and of an anchor score that query
# vectors do not explain, relative to what they do. Half and twice as much hardly matter.
NOISE = 0.3
# The cosine distance at which the likeness of two queries falls by a factor of e.
QUERY_SCALE = 0.2
# How much predictions rise with the logarithm of a rank, give or take half of it; with what a word adds, nothing, give
# or take as much.
SLOPE = 0.5
# The deviation of a first stage's best items, which vary more than all items, whose rarities have deviation 1.
FIRST_DEVIATION = 1.5
# What is assumed counts as much as this many anchor queries: slopes, and how items that embed alike vary together.
ASSUMED_QUERIES = 10

SLOPE_DEVIATION = SLOPE / 2


def embedding_share(n_anchors: int) -> float:
    """The embeddings' share of covariance, relative to the anchor scores'; without these, all of it is theirs."""
    return 1 + ASSUMED_QUERIES / n_anchors if n_anchors else 1.0


def locality(n_anchors: int) -> float:
    """The temperature at which anchor queries count by their likeness: the fewer, the more queries each speaks for."""
    return QUERY_SCALE * math.sqrt(60 / min(max(n_anchors, 30), 500))
