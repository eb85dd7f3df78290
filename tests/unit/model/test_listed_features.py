"""Features that only listed items have."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adacur.model.rank_slopes import RISE, ListedFeatures, RankSlopes, room_for

lists = st.lists(st.lists(st.integers(0, 40), max_size=30), min_size=1, max_size=3)


@given(of_query=lists)
def test_a_listed_item_has_the_rise_of_its_best_rank_in_each_stage(of_query) -> None:
    stages = [np.array(some, dtype=np.intp) for some in of_query]
    features = RankSlopes.assumed(len(stages)).features(stages)

    assert features.positions.tolist() == sorted({at for some in of_query for at in some})
    expected = [[RISE[some.index(at)] if at in some else 0.0 for some in of_query] for at in features.positions]
    assert features.values.tolist() == expected


def test_there_is_room_for_the_longest_list_and_the_most_features() -> None:
    short, long = (RankSlopes.assumed(n).features([np.arange(m)] * n) for n, m in ((5, 3), (1, 1000)))

    n_items, n_features = room_for([short, long, ListedFeatures.none()])

    assert n_items >= 1000
    assert n_features >= 5
    assert room_for([ListedFeatures.none()]) == (0, 0)
