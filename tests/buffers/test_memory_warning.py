"""The warnings that a buffer does not fit into memory are about the memory that the process would take."""

from __future__ import annotations

import sys

import pytest
from programs import fresh_outcome

from sb3_compressed.arrays.frame_layout import likely_n_frames

PROGRAM = """
import gc, re, sys, warnings
import gymnasium as gym, numpy as np
from memory import memory_of_process
from stable_baselines3.common.env_util import make_vec_env
from sb3_compressed import CompressedReplayBuffer, buffer_statistics
from sb3_compressed.arrays.memory_estimate import observation_nbytes
from sb3_compressed.common import memory_warning
from sb3_compressed.step import with_last_observations
from support import atari_env

kind, n_steps = sys.argv[1], int(sys.argv[2])
if kind == "stack":
    env, codec = atari_env("MsPacman", 4, max_steps=2000), "auto"
elif kind == "color":
    env, codec = make_vec_env("ALE/MsPacman-v5", 4, seed=0), "zstd3"
else:
    as_floats = lambda env: gym.wrappers.DtypeObservation(env, np.float32)
    env, codec = make_vec_env("ALE/MsPacman-v5", 4, 0, env_kwargs={"obs_type": "ram"}, wrapper_class=as_floats), "none"
env.action_space.seed(0)
SIZE = 100_000_000
memory_warning.available_memory = lambda: 0
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    buffer = CompressedReplayBuffer(SIZE, env.observation_space, env.action_space, "cpu", 4, compression_method=codec)
    obs = env.reset().copy()
    for step in range(n_steps):
        if step == n_steps // 3:  # without what the first transitions and trainings take
            gc.collect()
            before = memory_of_process("VmRSS")
        actions = np.array([env.action_space.sample() for _ in range(4)])
        new_obs, rewards, dones, infos = env.step(actions)
        buffer.add(obs, with_last_observations(new_obs, dones, infos), actions, rewards, dones, infos)
        obs = new_obs.copy()
gc.collect()
statistics = buffer_statistics(buffer)
grown = (memory_of_process("VmRSS") - before) / (4 * (n_steps - n_steps // 3))
estimates = [re.search("about ([0-9.]+)GB", str(each.message)) for each in caught]
exact = observation_nbytes(statistics.payload_nbytes_per_transition, buffer.observations.stream.encoder.n_frames)
print(grown, exact, *(float(each[1]) * 1e9 / SIZE for each in estimates if each))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux reports the memory of a process in /proc")
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "n_steps"), [("stack", 3000), ("color", 1000), ("vector", 2000)])
def test_estimates_are_the_growth_of_the_process(kind: str, n_steps: int) -> None:
    done = fresh_outcome(PROGRAM, kind, n_steps)
    assert done.returncode == 0, done.stderr
    grown, of_payloads, *warned = map(float, done.stdout.split())
    # The first warning is about typical sizes of payloads, which those of color images are not; another one follows the
    # training of a codec.
    assert len(warned) == (2 if kind == "stack" else 1)
    for estimate in (of_payloads, *(warned if kind != "color" else ())):
        assert grown / 1.25 < estimate < 1.25 * grown, (grown, of_payloads, warned)


@pytest.mark.parametrize(
    ("shape", "n_frames"),
    [((1, 84, 84), 1), ((9, 64, 64), 3), ((210, 160, 3), 1), ((111, 8, 8), 1), ((17, 19, 19), 1), ((0, 84, 84), 1)],
)
def test_images_are_no_stacks_for_the_first_estimate(shape: tuple[int, ...], n_frames: int) -> None:
    assert likely_n_frames(shape) == n_frames
