"""Small worlds with known answers, and the real models where a test needs them.

With a seed in $ADACUR_REHEARSAL, every int8 score is moved as another processor would: here and, by Python's
sitecustomize, in every process that a test starts.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from adacur import AnchorIndex, Item, Query
from adacur.first_stages import Matrix, as_hits
from adacur.results import Hits
from adacur.scorers import MatrixScorer

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
# Read when Haystack is imported: tests report to nobody.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"

REHEARSAL = Path(__file__).parent / "rehearsal"
if os.environ.get("ADACUR_REHEARSAL"):
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(REHEARSAL)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REHEARSAL), *paths])
    sys.path.insert(0, str(REHEARSAL))
    import other_processor  # noqa: F401

SHARED = Path(__file__).parents[2] / "shared"


@dataclass(frozen=True)
class World:
    """Queries and items whose scores are all known."""

    items: list[Item]
    anchors: list[Query]
    test: list[Query]
    anchor_scores: np.ndarray
    test_scores: np.ndarray
    item_embeddings: np.ndarray

    @property
    def index(self) -> AnchorIndex:
        return AnchorIndex.from_arrays(items=self.items, anchor_queries=self.anchors, scores=self.anchor_scores)

    @property
    def scorer(self) -> MatrixScorer:
        return MatrixScorer(queries=self.test, items=self.items, scores=self.test_scores)

    def noisy_first(self, noise: float = 1.0, seed: int = 1) -> Matrix:
        """A first stage that knows the scores, blurred."""
        blur = np.random.default_rng(seed).normal(size=self.test_scores.shape) * noise
        return Matrix(queries=self.test, items=self.items, scores=self.test_scores + blur)

    def noisy_hits(self, k: int, noise: float = 1.0) -> list[Hits]:
        """What that first stage finds for the test queries, by id."""
        first = self.noisy_first(noise)
        return as_hits(self.test, first.search(self.test, k), first.ids)


def make_world(
    *, n_items: int = 200, n_anchors: int = 30, n_test: int = 6, rank: int = 10, noise: float = 0.0, seed: int = 0
) -> World:
    """Scores of a given rank, plus noise that no anchor can explain."""
    rng = np.random.default_rng(seed)
    item_factors = rng.normal(size=(rank, n_items))
    scores = rng.normal(size=(n_anchors + n_test, rank)) @ item_factors
    scores += noise * rng.normal(size=scores.shape)
    return World(
        items=[Item(f"i{position}", f"item number {position}") for position in range(n_items)],
        anchors=[Query(f"a{position}", f"anchor {position}") for position in range(n_anchors)],
        test=[Query(f"t{position}", f"test {position}") for position in range(n_test)],
        anchor_scores=scores[:n_anchors],
        test_scores=scores[n_anchors:],
        item_embeddings=item_factors.T + rng.normal(size=item_factors.T.shape),
    )


@pytest.fixture(name="make_world")
def make_world_fixture():
    return make_world


@pytest.fixture
def world() -> World:
    return make_world(noise=0.3)


@pytest.fixture(scope="session")
def ray_cluster():
    """A Ray cluster on this machine, of one node with two CPUs, to which tests may add; this process is connected."""
    from ray.cluster_utils import Cluster

    from adacur.extras.ray import Ray

    # By default Ray sets a third of the memory aside for objects, and each process that tests starts a cluster.
    node = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 200 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        with Ray(cluster.address).connected():
            yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def shared_folder() -> Path:
    if not SHARED.exists():
        pytest.skip("needs the score folders of ../shared, which only developers' machines have")
    return SHARED
