"""How many transitions a second a cluster can collect and sample, from the cost of each step, and what limits it.

Each resource has a limit: the processes of the collectors, those of the shards, the learner, the cores of a machine
that all of them share, and the network of the learner's node and of the shards' nodes. Every cost is proportional to
the number of transitions, but that of publishing weights, so the limits are found one by one, and the lowest counts.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cluster", "Costs", "limits"]


@dataclass(frozen=True)
class Costs:
    """Seconds of CPU time, and bytes.

    :param act: of a collector for each transition, without the buffer: environment and policy
    :param encode: of a collector for each transition, to add and send it
    :param collect: of the learner for each transition that is collected
    :param insert: of a shard for each transition
    :param draw: of a shard for each sampled transition
    :param decode: of the learner for each sampled transition
    :param decode_elapsed: the same by the clock, since several threads decode
    :param ray_insert: of Ray's own processes for each transition that is inserted
    :param ray_sample: of these for each sampled transition
    :param publish: of the learner for each version of the weights
    :param receive: of a collector for each version
    :param inserted_nbytes: from collectors to shards for each transition
    :param sampled_nbytes: from shards to the learner for each sampled transition
    :param weights_nbytes: of each version
    """

    act: float
    encode: float
    collect: float
    insert: float
    draw: float
    decode: float
    decode_elapsed: float
    ray_insert: float
    ray_sample: float
    publish: float
    receive: float
    inserted_nbytes: float
    sampled_nbytes: float
    weights_nbytes: float


@dataclass(frozen=True)
class Cluster:
    """What the processes run on.

    :param n_collectors: number of collectors
    :param n_shards: number of shards
    :param samples_per_insert: sampled transitions for each one that is inserted
    :param n_nodes: number of nodes: one with the learner, and the others with equally many collectors and shards; 1 if
        all are on one machine
    :param n_cores: cores of each node
    :param bits_per_second: of the network of each node, in each direction
    :param weights_interval: seconds between versions of the weights; infinite for none
    """

    n_collectors: int
    n_shards: int
    samples_per_insert: float
    n_nodes: int = 1
    n_cores: int = 2
    bits_per_second: float = 10e9
    weights_interval: float = float("inf")


def limits(costs: Costs, cluster: Cluster) -> dict[str, float]:
    """Return how many transitions a second each resource allows to be collected; the lowest one is the bottleneck.

    >>> costs = Costs(1e-3, 1e-5, 0, 1e-5, 1e-5, 1e-5, 1e-5, 0, 0, 0, 0, 500, 1000, 1e6)
    >>> found = limits(costs, Cluster(n_collectors=2, n_shards=1, samples_per_insert=1, n_nodes=3))
    >>> [round(found[key]) for key in ("collectors", "shards", "learner")]
    [1980, 50000, 100000]
    """
    versions = 1 / cluster.weights_interval
    ratio = cluster.samples_per_insert
    of_collector = costs.act + costs.encode
    of_shard = costs.insert + ratio * costs.draw
    of_learner = costs.collect + ratio * costs.decode_elapsed
    of_ray = costs.ray_insert + ratio * costs.ray_sample
    found = {
        "collectors": cluster.n_collectors * (1 - versions * costs.receive) / of_collector,
        "shards": cluster.n_shards / of_shard,
        "learner": _ratio(1 - versions * costs.publish, of_learner),
    }
    n_cores = cluster.n_cores
    if cluster.n_nodes == 1:
        of_all = of_collector + of_shard + costs.collect + ratio * costs.decode + of_ray
        for_weights = versions * (costs.publish + cluster.n_collectors * costs.receive)
        return {**found, "cores": (n_cores - for_weights) / of_all}
    n_others = cluster.n_nodes - 1
    for_weights = versions * costs.receive * cluster.n_collectors
    bytes_per_second = cluster.bits_per_second / 8
    # Every shard sends and receives over the network: collectors are on all nodes.
    n_with_shards = min(cluster.n_shards, n_others)
    return {
        **found,
        "cores of the nodes": (n_others * n_cores - for_weights) / (of_collector + of_shard + of_ray),
        "network into the learner": _ratio(bytes_per_second, ratio * costs.sampled_nbytes),
        "network into the shards": n_with_shards * bytes_per_second / costs.inserted_nbytes,
        "network out of the shards": _ratio(n_with_shards * bytes_per_second, ratio * costs.sampled_nbytes),
    }


def weights_share(costs: Costs, cluster: Cluster) -> float:
    """Return the share of the network out of the learner's node that weights take, which each node receives once."""
    bits = 8 * costs.weights_nbytes * (cluster.n_nodes - 1) / cluster.weights_interval
    return bits / cluster.bits_per_second


def _ratio(capacity: float, cost: float) -> float:
    return capacity / cost if cost else float("inf")
