"""A training on Ray that is made to be killed: ``python -m distributed.fault_program FOLDER``.

It trains DQN with two collectors and two shards in ``FOLDER/shards``. With ``--memory``, it fills and samples a second
buffer in memory as well, with n-step returns. Each sampled transition is compared with what the environment emitted,
and both buffers are saved now and then, to ``FOLDER/saves`` and ``FOLDER/memory``: a save that returns must contain
what was acknowledged before it began, and one that raises must leave the one before. It prints a line of JSON, a
:class:`Report`, several times a second, and continues from ``FOLDER`` when it is started again after a kill. When
``FOLDER/stop`` exists, it saves the second buffer once more, prints a :class:`Result` and ends.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import torch as th
from fork_server import fork_executables
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from distributed.checkable_env import ACTIONS, SPACE, CheckableEnv, check_samples
from distributed.ledger import audit, read_ledger
from sb3_compressed import CompressedReplayBuffer
from sb3_compressed.distributed import Collectors, DistributedReplayBuffer
from sb3_compressed.distributed.checkpoint_manifest import read_manifest
from sb3_compressed.distributed.ray_session import ACTOR_FAILURES
from sb3_compressed.errors import ShardUnavailable

N_COLLECTORS, N_ENVS, N_SHARDS = 2, 2, 2
STEPS_PER_CALL = 16
MEMORY_N_STEPS, MEMORY_GAMMA = 3, 0.5  # sums of small integers are exact in float32
#: Seconds between reports.
INTERVAL = 0.1
#: Seconds between saves of the model and the buffers.
SAVE_INTERVAL = 3.0
#: What Ray reserves actors of this program, so that they are on the nodes that may be killed.
WORKER = {"resources": {"worker": 0.001}}


class ShardsReport(NamedTuple):
    """The state of the shards of a buffer.

    :param n_checked: number of transitions that were sampled, and compared
    :param pids: their process ids, 0 where unknown
    :param n_sampled: how many transitions were sampled from the process of each
    :param n_restarts: how often each was restarted
    :param n_late: number of requests that were not answered in time
    :param n_dropped: number of transitions that were dropped since a shard did not answer
    """

    n_checked: int
    pids: list[int]
    n_sampled: list[int]
    n_restarts: list[int]
    n_late: int
    n_dropped: int


class Report(NamedTuple):
    """What the program prints.

    :param n_timesteps: number of transitions that the training has counted
    :param shards: those with folders
    :param memory: those in memory, if there are any
    :param raylets: process ids of Ray on the nodes that may be killed
    """

    n_timesteps: int
    shards: ShardsReport
    memory: ShardsReport | None
    raylets: list[int]

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Report:
        """Return the report in a line."""
        memory = line["memory"]
        return cls(
            line["n_timesteps"], ShardsReport(*line["shards"]), None if memory is None else ShardsReport(*memory),
            line["raylets"],
        )  # fmt: skip


class Result(NamedTuple):
    """What the program prints at its end.

    :param n_restarts: how often shards with folders were restarted
    :param n_lost: number of transitions that these have lost
    :param n_memory_restarts: how often shards in memory were restarted
    :param n_memory_lost: number of transitions that these have lost, as far as the learner knows
    :param n_memory_acknowledged: number of transitions that they have acknowledged
    :param n_collector_restarts: how often collectors were restarted
    :param n_saves: how many saves of buffers have returned since it began
    """

    n_restarts: int
    n_lost: int
    n_memory_restarts: int
    n_memory_lost: int
    n_memory_acknowledged: int
    n_collector_restarts: int
    n_saves: int


class CheckedReplayBuffer(DistributedReplayBuffer):
    """Compares each batch with what the environment emitted."""

    n_checked = 0

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Sample a batch."""
        samples = super().sample(batch_size, env)
        check_samples(samples, n_steps=self.n_steps, gamma=self.gamma or 1.0)
        self.n_checked += batch_size
        return samples


class ShardsReporter:
    """Reports the state of the shards of a buffer, without waiting for them."""

    def __init__(self, buffer: CheckedReplayBuffer) -> None:
        self._buffer = buffer
        self._requests: list[Any] = [None] * N_SHARDS
        self._pids = [0] * N_SHARDS

    def report(self) -> ShardsReport:
        """Return what is known."""
        buffer = self._buffer
        for index, view in enumerate(buffer._group.shards):
            request = self._requests[index]
            if request is not None and ray.wait([request], timeout=0)[0]:
                try:
                    self._pids[index] = ray.get(request)
                except ACTOR_FAILURES:
                    self._pids[index] = 0
                request = None
            self._requests[index] = view.actor.ping.remote() if request is None else request
        statistics, views = buffer.statistics(), buffer._group.shards
        return ShardsReport(
            buffer.n_checked, self._pids, [view.status.n_sampled if view.status else 0 for view in views],
            [view.n_restarts for view in views], statistics.n_late, n_dropped(buffer),
        )  # fmt: skip


def n_dropped(buffer: DistributedReplayBuffer) -> int:
    """Return how many transitions were dropped since a shard did not answer."""
    return sum(writer.n_lost for _, writer in buffer._local)


def n_lost(buffer: DistributedReplayBuffer) -> int:
    """Return how many transitions restarts have lost."""
    return sum(view.n_lost for view in buffer._group.shards)


class SaveCheck:
    """Saves a buffer, and checks each save.

    :param buffer: the buffer
    :param folder: that of the saves
    :param ledger: what shards have acknowledged to collectors, ``None`` if they may lose it
    """

    def __init__(self, buffer: DistributedReplayBuffer, folder: Path, ledger: Path | None) -> None:
        self._buffer, self._folder, self._ledger = buffer, folder, ledger
        self._manifest = read_manifest(folder) if (folder / "distributed.json").exists() else None
        self.n_saves = 0

    def save(self) -> None:
        """Save the buffer; nothing may be missing, and if that fails, the save before must still be there."""
        before = {} if self._ledger is None else read_ledger(self._ledger)
        is_saved = False
        with suppress(ShardUnavailable):
            self._buffer.save_checkpoint(self._folder, overwrite=True)
            is_saved = True
            self.n_saves += 1
            self._manifest = read_manifest(self._folder)
        if self._manifest is None:
            return
        assert read_manifest(self._folder) == self._manifest
        paths = self._manifest.rings_in(self._folder).values()  # which compares checksums
        if is_saved and self._ledger is not None:
            rings = [CompressedReplayBuffer.from_checkpoint(path, device="cpu", num_threads=1) for path in paths]
            audit(rings, {**read_ledger(self._ledger), **before})


class Nodes:
    """Nodes of a cluster on this machine; those that were killed are replaced."""

    def __init__(self, n_nodes: int) -> None:
        from ray.cluster_utils import Cluster

        config = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
        self._cluster: Any = Cluster(
            initialize_head=True, connect=True,
            head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": config},
        )  # fmt: skip
        self._nodes = [self._new_node() for _ in range(n_nodes)]

    def _new_node(self) -> Any:
        return self._cluster.add_node(num_cpus=2, resources={"worker": 1}, wait=False)

    def update(self) -> list[int]:
        """Replace nodes that were killed, and return the process ids of all."""
        for index, node in enumerate(self._nodes):
            if not node.any_processes_alive() or node.dead_processes():
                self._cluster.remove_node(node, allow_graceful=False)
                self._nodes[index] = self._new_node()
        return [_raylet(node) for node in self._nodes]

    def shutdown(self) -> None:
        """End all nodes."""
        ray.shutdown()
        self._cluster.shutdown()


def _raylet(node: Any) -> int:
    (process,) = node.all_processes["raylet"]
    return int(process.process.pid)


class Reporter(BaseCallback):
    """Fills and samples the second buffer, prints reports, and saves the model.

    :param folder: that of the program
    :param memory: the second buffer
    :param nodes: those that may be killed
    """

    def __init__(self, folder: Path, memory: CheckedReplayBuffer | None, nodes: Nodes | None) -> None:
        super().__init__()
        self._folder, self._memory, self._nodes = folder, memory, nodes
        self._env = DummyVecEnv([CheckableEnv] * N_ENVS)
        self._observations: Any = self._env.reset()
        self._printed_at = 0.0
        self._saved_at = time.monotonic()
        self.checks: list[SaveCheck] = []

    def _on_training_start(self) -> None:
        buffer: Any = self.model.replay_buffer  # type: ignore[attr-defined]
        self._shards = ShardsReporter(buffer)
        self._memory_shards = None if self._memory is None else ShardsReporter(self._memory)
        self.checks = [SaveCheck(buffer, self._folder / "saves", self._folder / "ledger")]
        if self._memory is not None:
            self.checks.append(SaveCheck(self._memory, self._folder / "memory", None))

    def _on_step(self) -> bool:
        now = time.monotonic()
        is_due = now - self._printed_at > INTERVAL
        if self._memory is not None:
            self._fill(self._memory)
            if is_due:
                self._memory.sample(16)
        if is_due:
            self._printed_at = now
            memory = None if self._memory_shards is None else self._memory_shards.report()
            raylets = [] if self._nodes is None else self._nodes.update()
            report = Report(self.num_timesteps, self._shards.report(), memory, raylets)
            print(json.dumps(report._asdict()), flush=True)
        if now - self._saved_at > SAVE_INTERVAL:
            self._save()
            for check in self.checks:
                check.save()
            self._saved_at = time.monotonic()
        return not (self._folder / "stop").exists()

    def _fill(self, buffer: CheckedReplayBuffer) -> None:
        actions = np.array([ACTIONS.sample() for _ in range(N_ENVS)])
        before = self._observations
        self._observations, rewards, dones, infos = self._env.step(actions)
        after = np.stack(
            [
                info["terminal_observation"] if done else observation
                for observation, done, info in zip(self._observations, dones, infos, strict=True)
            ]
        )
        while True:
            with suppress(ShardUnavailable):  # at the first call, while shards start
                return buffer.add(before, after, actions[:, np.newaxis], rewards, dones, infos)

    def _save(self) -> None:
        unfinished = self._folder / "unfinished.zip"
        self.model.save(unfinished)
        unfinished.replace(self._folder / "model.zip")


def new_memory(timeout: float, options: dict[str, Any]) -> CheckedReplayBuffer:
    """Return the second buffer, which is large enough that nothing is overwritten."""
    return CheckedReplayBuffer(
        400_000, SPACE, ACTIONS, "cpu", n_envs=N_ENVS, n_shards=N_SHARDS, n_steps=MEMORY_N_STEPS, gamma=MEMORY_GAMMA,
        timeout=timeout, segment_length=4, prefetch=4, ray_options=options,
    )  # fmt: skip


def new_model(folder: Path, n_rows: int, timeout: float, options: dict[str, Any]) -> DQN:
    """Return the model, or the last one that was saved."""
    env = DummyVecEnv([CheckableEnv])
    saved = folder / "model.zip"
    if saved.exists():
        return DQN.load(saved, env, device="cpu")
    storage = {
        "n_shards": N_SHARDS, "storage": folder / "shards", "storage_mode": "resume", "timeout": timeout,
        "segment_length": 5, "ray_options": options,
    }  # fmt: skip
    return DQN(
        "MlpPolicy", env, buffer_size=n_rows * N_COLLECTORS * N_ENVS, learning_starts=64, batch_size=32, train_freq=1,
        gradient_steps=1, policy_kwargs={"net_arch": [8]}, device="cpu", replay_buffer_class=CheckedReplayBuffer,
        replay_buffer_kwargs=storage,
    )  # fmt: skip


def main() -> None:
    """Train until stopped or killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=0, help="nodes of a cluster; 0 for Ray on this machine")
    parser.add_argument("--memory", action="store_true", help="fill and sample a second buffer")
    parser.add_argument("--rows", type=int, default=2_000, help="rows of each ring")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds to wait for a shard")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.absolute()
    faulthandler.enable()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    th.set_num_threads(1)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    fork_executables()
    nodes = Nodes(arguments.nodes) if arguments.nodes else None
    options: dict[str, Any] = {} if nodes is None else WORKER
    model = new_model(folder, arguments.rows, arguments.timeout, options)
    memory = new_memory(arguments.timeout, options) if arguments.memory else None
    collectors = Collectors(
        partial(make_vec_env, partial(CheckableEnv, folder / "ledger", STEPS_PER_CALL), N_ENVS), N_COLLECTORS,
        steps_per_call=STEPS_PER_CALL, samples_per_insert=4, ray_options={"num_cpus": 0, **options},
    )  # fmt: skip
    reporter = Reporter(folder, memory, nodes)
    model.learn(10**9, callback=[collectors, reporter], reset_num_timesteps=False)
    buffer: Any = model.replay_buffer
    of_memory = 0, 0, 0
    if memory is not None:
        memory.flush()
        memory.save_checkpoint(folder / "memory", overwrite=True)
        n_acknowledged = sum(writer.n_acknowledged for _, writer in memory._local)
        of_memory = memory.statistics().n_restarts, n_lost(memory), n_acknowledged
        memory.close()
    result = Result(
        buffer.statistics().n_restarts, n_lost(buffer), *of_memory, collectors.statistics().n_restarts,
        sum(check.n_saves for check in reporter.checks),
    )  # fmt: skip
    buffer.close()
    if nodes is None:
        ray.shutdown()
    else:
        nodes.shutdown()
    print(json.dumps(result._asdict()), flush=True)


if __name__ == "__main__":
    main()
