"""Collectors as actors: they are started, restarted after failures, and ended."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from distributed.collected_envs import Deadly, Numbered, failing, numbered_processes
from distributed.stopped import short_timeout, stopped, until, until_ended
from sb3_compressed.distributed import DistributedReplayBuffer, collector_group
from sb3_compressed.distributed.collector import CollectorSettings, CollectResult
from sb3_compressed.distributed.collector_group import CollectorGroup, Member
from sb3_compressed.distributed.exploration import ExplorationConfig
from sb3_compressed.distributed.policy_copy import policy_factory, policy_weights

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


@pytest.fixture(scope="module")
def buffer(local_ray: None) -> Iterator[DistributedReplayBuffer]:
    """Return a buffer for environments that number their steps, with returns of several steps."""
    env = Numbered()
    buffer = DistributedReplayBuffer(
        20_000, env.observation_space, env.action_space, "cpu", prefetch=0, segment_length=16, n_steps=3
    )
    yield buffer
    buffer.close()


def group_of(
    buffer: DistributedReplayBuffer, make_env: Any = Numbered, timeout: float = 60.0, ray_options: Any = None,
    **options: Any,
) -> closing[CollectorGroup]:  # fmt: skip
    """Return collectors of environments that number their steps."""
    policy = DQN("MlpPolicy", Numbered(), device="cpu", buffer_size=100).policy
    settings = CollectorSettings(
        make_env, buffer.observation_space, buffer.action_space, policy_factory(policy), ExplorationConfig(),
        **{"seed": 0, **options},
    )  # fmt: skip
    return closing(CollectorGroup(settings, buffer, timeout=timeout, ray_options=ray_options))


def results(group: CollectorGroup, n: int) -> list[CollectResult]:
    """Return the next results."""
    received: list[CollectResult] = []

    def are_received() -> bool:
        received.extend(group.poll(timeout=1.0))
        return len(received) >= n

    until(are_received)
    return received


def idle(group: CollectorGroup, n: int = 1) -> list[Member]:
    """Return the collectors without calls, when there are so many."""

    def are_idle() -> bool:
        if len(group.idle(1)) < n:
            group.poll(timeout=1.0)
        return len(group.idle(1)) >= n

    until(are_idle)
    return group.idle(1)


def collect(group: CollectorGroup, n_steps: int, n_members: int = 1) -> list[CollectResult]:
    """Let some collectors collect at random, and return their results."""
    members = idle(group, n_members)
    for member in members:
        group.submit(member, n_steps, n_random_steps=n_steps)
    return results(group, len(members))


def pid_of(member: Member) -> int:
    pid: int = ray.get(member.actor.__ray_call__.remote(lambda _: os.getpid()))
    return pid


def pids_in(buffer: DistributedReplayBuffer) -> set[int]:
    """Return the processes whose environments have emitted the transitions in a buffer."""
    return {int(pid) for pid in np.unique(buffer.sample(5000).observations[:, 1].numpy())}


# -- calls -----------------------------------------------------------------------------------------------------


def test_each_collector_has_a_process_and_a_ring(buffer: DistributedReplayBuffer) -> None:
    n_before = buffer.n_transitions
    with group_of(buffer, partial(make_vec_env, Numbered, 3), n_collectors=2) as group:
        group.start()
        for member in idle(group, 2):
            assert group.n_envs == 3
            group.submit(member, 40, n_random_steps=40)
        assert group.n_in_flight == 240
        received = results(group, 2)
        assert [result.n_transitions for result in received] == [120, 120]
        assert group.n_in_flight == 0
        assert buffer.n_transitions == n_before + 240  # known from their results
        pids = {pid_of(member) for member in group.members}
        assert len(pids) == 2
        assert pids <= pids_in(buffer)
    until_ended(pids)


def test_calls_are_answered_in_their_order_and_use_the_published_policy(buffer: DistributedReplayBuffer) -> None:
    model = DQN("MlpPolicy", Numbered(), device="cpu", buffer_size=100)
    with group_of(buffer) as group:
        group.start()
        (member,) = idle(group)
        for n_steps in (3, 1, 2):
            group.submit(member, n_steps, n_random_steps=n_steps)
        assert (group.idle(3), group.idle(4)) == ([], [member])
        assert [result.n_transitions for result in results(group, 3)] == [3, 1, 2]
        for version, action in ((1, 2), (2, 1)):
            weights = {name: np.zeros_like(array) for name, array in policy_weights(model.policy).items()}
            weights["q_net.q_net.4.bias"][action] = 1
            group.publish(weights)
            assert group.policy_version == version
            group.submit(member, 14)  # two episodes
            (result,) = results(group, 1)
            assert [end.info["episode"]["r"] for end in result.episodes[-1:]] == [7 * action]


# -- mistakes --------------------------------------------------------------------------------------------------


def test_functions_that_cannot_be_sent_are_raised_at_the_start(buffer: DistributedReplayBuffer) -> None:
    lock = Lock()
    with group_of(buffer, lambda: lock) as group, pytest.raises(TypeError, match="lock"):
        group.start()


# -- failures --------------------------------------------------------------------------------------------------


def test_a_killed_collector_is_restarted(buffer: DistributedReplayBuffer, caplog: pytest.LogCaptureFixture) -> None:
    with group_of(buffer, n_collectors=2) as group:
        group.start()
        collect(group, 33, 2)  # in the middle of an episode
        killed = {pid_of(member) for member in group.members}
        for member in group.members:
            group.submit(member, 100_000_000, n_random_steps=100_000_000)  # until they are killed
        with caplog.at_level(logging.WARNING, "sb3_compressed"):
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            idle(group, 2)
        assert group.n_restarts == 2, "each is counted once, although calls fail until its process has started"
        assert group.n_lost == 200_000_000
        for index in range(2):
            warning = f"collector {index} failed and is restarted; up to "
            assert [message.count(f"{warning}100000000 ") for message in caplog.messages if warning in message] == [1]
        assert [result.n_transitions for result in collect(group, 33, 2)] == [33, 33]
        pids = {pid_of(member) for member in group.members}
        assert not pids & killed
        assert pids <= pids_in(buffer)
    # Returns of several steps do not continue in the episodes of another process.
    samples = buffer.sample(5000)
    np.testing.assert_array_equal(samples.observations[:, 1], samples.next_observations[:, 1])


def test_a_crashed_environment_is_created_again(
    buffer: DistributedReplayBuffer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with group_of(buffer, failing(tmp_path / "has-failed")) as group:
        group.start()
        (member,) = idle(group)
        with caplog.at_level(logging.WARNING, "sb3_compressed"):
            for _ in range(3):
                group.submit(member, 40, n_random_steps=40)
            (result,) = results(group, 1)
            idle(group)
        assert "the game has crashed" in caplog.text
        assert (result.n_transitions, group.n_lost, group.n_restarts) == (40, 80, 1)
        assert collect(group, 60)[0].n_transitions == 60


def test_an_environment_that_always_kills_its_process_is_an_error(
    buffer: DistributedReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_group, "MAX_FAILURES", 2)
    with group_of(buffer, Deadly) as group:
        group.start()

        def play() -> None:
            for _ in range(2):
                (member,) = idle(group)
                group.submit(member, 10, n_random_steps=10)
                idle(group)

        with pytest.raises(RuntimeError, match="collector 0 failed 2 times"):
            play()


# -- end -------------------------------------------------------------------------------------------------------


def test_processes_of_environments_end_with_their_collector(buffer: DistributedReplayBuffer) -> None:
    with group_of(buffer, partial(numbered_processes, 2)) as group:
        group.start()
        collect(group, 5)
        children = {child.pid for child in psutil.Process(pid_of(group.members[0])).children(recursive=True)}
        assert len(children) >= 2
        assert children & pids_in(buffer)
        group.close()
    until_ended(children)


# -- collectors that do not answer -----------------------------------------------------------------------------


def test_resources_that_no_node_has_are_an_error(buffer: DistributedReplayBuffer) -> None:
    with group_of(buffer, timeout=1.0, ray_options={"num_cpus": 64}) as group:
        group.start()
        with pytest.raises(TimeoutError, match=r"collectors 0.*'num_cpus': 64"):
            until(lambda: group.poll(1.0))


def test_a_stopped_shard_that_collectors_wait_for_is_named(local_ray: None) -> None:
    env = Numbered()
    buffer = DistributedReplayBuffer(200, env.observation_space, env.action_space, "cpu", segment_length=16)
    with group_of(buffer) as group:
        group.start()
        (member,) = idle(group)
        pid = ray.get(buffer._group.shards[0].actor.ping.remote())
        with stopped(pid), short_timeout(1.0, group, buffer):
            group.submit(member, 40, n_random_steps=40)
            with pytest.raises(TimeoutError, match="shard 0"):
                results(group, 1)
    buffer.close()
