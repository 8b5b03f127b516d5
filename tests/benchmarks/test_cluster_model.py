"""The model of clusters: what each resource allows, computed by hand."""

from __future__ import annotations

import pytest
from cluster_model import Cluster, Costs, limits

COSTS = Costs(
    act=9e-4, encode=1e-4, collect=1e-5, insert=2e-5, draw=5e-6, decode=2e-5, decode_elapsed=1e-5, ray_insert=2e-6,
    ray_sample=1e-6, publish=0.01, receive=0.02, inserted_nbytes=500, sampled_nbytes=1_000, weights_nbytes=1e7,
)  # fmt: skip


def test_processes_are_limited_by_their_costs() -> None:
    found = limits(COSTS, Cluster(n_collectors=8, n_shards=2, samples_per_insert=4, n_cores=64))
    assert found["collectors"] == pytest.approx(8 / 1e-3)
    assert found["shards"] == pytest.approx(2 / (2e-5 + 4 * 5e-6))
    assert found["learner"] == pytest.approx(1 / (1e-5 + 4 * 1e-5))


def test_processes_of_one_machine_share_its_cores() -> None:
    found = limits(COSTS, Cluster(n_collectors=8, n_shards=2, samples_per_insert=4, n_cores=2))
    of_all = 1e-3 + (2e-5 + 4 * 5e-6) + 1e-5 + 4 * 2e-5 + 2e-6 + 4 * 1e-6
    assert found["cores"] == pytest.approx(2 / of_all)
    assert "network into the learner" not in found


def test_nodes_are_limited_by_their_network() -> None:
    cluster = Cluster(n_collectors=64, n_shards=4, samples_per_insert=8, n_nodes=9, n_cores=8, bits_per_second=8e9)
    found = limits(COSTS, cluster)
    assert found["network into the learner"] == pytest.approx(1e9 / (8 * 1_000))
    assert found["network into the shards"] == pytest.approx(4 * 1e9 / 500)
    assert found["network out of the shards"] == pytest.approx(4 * 1e9 / (8 * 1_000))
    assert "cores" not in found
