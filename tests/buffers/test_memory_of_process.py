"""The memory of the process is what buffers report, whatever was stored in them before.

Real sizes: 100 MB of noise, 84x84 frames, a million transitions of a game. Each program runs in an interpreter of its
own, without what others freed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from programs import environment_with, fresh_outcome, run_python
from support import atari_env, record

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux reports the memory of a process in /proc"
)

PROGRAM = """
import copy, gc, pickle, sys
import numpy as np
import torch as th
from gymnasium import spaces
from memory import memory_of_process
from sb3_compressed import (CompressedDictReplayBuffer, CompressedDictRolloutBuffer, CompressedReplayBuffer,
    CompressedRolloutBuffer)

N_ENVS = 4
IMAGE, ACTIONS = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(4)
IMAGES = spaces.Dict({"left": IMAGE, "right": IMAGE, "state": spaces.Box(-1, 1, (3,))})
ZEROS, OPTIONS, rng = np.zeros(N_ENVS), {"device": "cpu", "n_envs": N_ENVS}, np.random.default_rng(0)

def new(noise, step):
    return rng.integers(0, 256, (N_ENVS, 84, 84), np.uint8) if noise else np.uint8(step % 50)

def steps(space, noise, n):
    keys = [key for key, part in space.items() if part == IMAGE] if isinstance(space, spaces.Dict) else [None]
    frames = {key: np.zeros((N_ENVS, 4, 84, 84), np.uint8) for key in keys}
    def observation():
        if None in frames:
            return frames[None]
        return {**frames, "state": np.zeros((N_ENVS, 3), np.float32)}
    for step in range(n):
        before = observation()
        frames = {key: np.roll(stack, -1, axis=1) for key, stack in frames.items()}
        for stack in frames.values():
            stack[:, -1] = new(noise, step)
        yield before, observation()

def lap(buffer, noise, n=None):
    n = n or buffer.buffer_size
    if hasattr(buffer, "log_probs"):
        for obs, _ in steps(buffer.observation_space, noise, n):
            buffer.add(obs, ZEROS[:, None], ZEROS, ZEROS, th.zeros(N_ENVS), th.zeros(N_ENVS))
        return
    for obs, following in steps(buffer.observation_space, noise, n):
        buffer.add(obs, following, ZEROS[:, None], ZEROS, ZEROS, [{}] * N_ENVS)

def replay(kind=CompressedReplayBuffer, n=4_000, space=IMAGE):
    return kind(n * N_ENVS, space, ACTIONS, **OPTIONS)

def check_reported(what, reported, kind="VmRSS"):
    gc.collect()
    grown = memory_of_process(kind) - BEFORE
    print(what, grown // 10**6, reported // 10**6)
    assert grown < 1.15 * reported + 64e6, (what, grown, reported)

def check(what, *buffers):
    check_reported(what, sum(buffer.observations_nbytes for buffer in buffers))

warm_up = replay(n=100)
lap(warm_up, True), lap(warm_up, False), warm_up.sample(32)
rollout = CompressedDictRolloutBuffer(10, IMAGES, ACTIONS, **OPTIONS)
lap(rollout, True), next(rollout.get(8))
del warm_up, rollout
gc.collect()
BEFORE = memory_of_process("VmRSS")
"""

REPLAY = """
buffer = replay()
for _ in range(2):
    lap(buffer, True)
    check("noise", buffer)
    buffer.sample(256)
    lap(buffer, False)
    check("plain", buffer)
"""

DICT = """
buffer = replay(CompressedDictReplayBuffer, 2_000, IMAGES)
for _ in range(2):
    lap(buffer, True)
    check("noise", buffer)
    lap(buffer, False)
    check("plain", buffer)
"""

SEVERAL = """
first, second = replay(n=2_000), replay(n=2_500)
for buffer in (first, second):
    lap(buffer, True)
check("noise", first, second)
lap(first, False), lap(second, False, 1000)
check("plain", first, second)
lap(second, False)
check("plain", first, second)
lap(first, True)
twin = copy.deepcopy(first)  # they share their segments
check("copy", first, second)
lap(twin, False)
check("overwritten copy", first, second, twin)
lap(first, False)
check("overwritten original", first, second, twin)
first.reset()
check("reset", first, second, twin)
del first, second, twin, buffer
check("deleted")
"""

EXTEND = """
buffer = replay()
for noise in (True, False, True, False):
    rows = [*zip(*steps(IMAGE, noise, 50))]
    obs, following = map(np.stack, rows)
    zeros = np.zeros((50, N_ENVS))
    for _ in range(80):
        if noise:
            obs = rng.integers(0, 256, obs.shape, np.uint8)
            following = np.roll(obs, -1, axis=0)
        buffer.extend(obs, following, zeros[..., None], zeros, zeros, timeouts=zeros)
    del rows
    check(noise, buffer)
"""

PICKLED = """
buffer = replay()
lap(buffer, True)
data = pickle.dumps(buffer)
del buffer
check_reported("pickled", len(data))
buffer = pickle.loads(data)
del data
check("loaded", buffer)
lap(buffer, False)
check("plain", buffer)
del buffer
check("deleted")
"""

ROLLOUT = """
for kind, space in ((CompressedRolloutBuffer, IMAGE), (CompressedDictRolloutBuffer, IMAGES)):
    buffer = kind(2_500, space, ACTIONS, **OPTIONS)
    for noise in (True, False, True, False):
        lap(buffer, noise)
        check((kind, noise), buffer)
        for batch in buffer.get(256):
            pass
        del batch
        buffer.reset()
        check((kind, noise, "reset"), buffer)
    del buffer
    check("deleted")
"""

#: Transitions of a game whose frames are repeated, but for one pixel; their rewards are their numbers.
GAME = """
from pathlib import Path
from sb3_compressed import buffer_statistics, load_checkpoint

FOLDER, N_ROWS, N_STEPS = Path(sys.argv[1]), int(sys.argv[2]), 250
END = N_ROWS * 4 // 3 // N_STEPS * N_STEPS  # a third is overwritten
GAME, PIXELS, ENVS = np.load(FOLDER / "game.npy"), 84 * 84, np.arange(N_ENVS)

def frames(first, n):
    numbers = np.arange(first, first + n)
    shown = GAME[numbers % len(GAME)]
    changed = numbers // PIXELS * 7
    shown.reshape(n, N_ENVS, PIXELS)[np.arange(n)[:, None], ENVS, numbers[:, None] % PIXELS] = changed[:, None] + ENVS
    return shown

def extend(buffer, first, last):
    zeros = np.zeros((N_STEPS, N_ENVS))
    for begin in range(first, last, N_STEPS):
        shown = np.lib.stride_tricks.sliding_window_view(frames(begin, N_STEPS + 4), 4, axis=0)
        stacks = np.moveaxis(shown, -1, 2)
        numbers = np.arange(begin, begin + N_STEPS)[:, None] * N_ENVS + ENVS
        buffer.extend(stacks[:-1], stacks[1:], numbers[..., None] % 4, numbers, zeros, timeouts=zeros)

def compare(buffer):
    batch = buffer.sample(1000)
    numbers = batch.rewards.flatten().long().tolist()
    assert len({*numbers}) > 900
    assert N_ENVS * (END - N_ROWS) <= min(numbers) < N_ENVS * N_ROWS < max(numbers)
    for number, *observations in zip(numbers, batch.observations, batch.next_observations):
        step, env = divmod(number, N_ENVS)
        for first, observation in enumerate(observations, step):
            assert np.array_equal(frames(first, 4)[:, env], observation)

warm_up = replay(n=500)
extend(warm_up, 0, 1000)
warm_up.save_checkpoint(FOLDER / sys.argv[3])
load_checkpoint(FOLDER / sys.argv[3], device="cpu").sample(1000)
del warm_up
gc.collect()
BEFORE = memory_of_process("VmRSS")

def check_all(what, further=0, kind="VmRSS"):
    statistics = buffer_statistics(buffer)
    check_reported(what, statistics.memory_nbytes + statistics.batch_memory_nbytes + further, kind)
"""

FILL = """
buffer = replay(n=N_ROWS)
extend(buffer, 0, N_ROWS)
check_all("full")
extend(buffer, N_ROWS, END)
check_all("overwritten")
compare(buffer)
check_all("sampled")
buffer.save_checkpoint(FOLDER / "checkpoint")
check_all("saved")
"""

LOAD = """
buffer = load_checkpoint(FOLDER / "checkpoint", device="cpu")
assert buffer.full and buffer.buffer_size == N_ROWS
check_all("loaded")
read = sum(path.stat().st_size for path in (FOLDER / "checkpoint").rglob("*"))  # files that were mapped
check_all("peak", read, "VmHWM")
compare(buffer)
check_all("sampled")
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(REPLAY, id="replay"),
        pytest.param(ROLLOUT, id="rollout"),
        pytest.param(DICT, id="dict", marks=pytest.mark.slow),
        pytest.param(SEVERAL, id="several", marks=pytest.mark.slow),
        pytest.param(EXTEND, id="extend", marks=pytest.mark.slow),
        pytest.param(PICKLED, id="pickled", marks=pytest.mark.slow),
    ],
)
def test_the_process_keeps_only_what_buffers_report(program: str) -> None:
    done = fresh_outcome(PROGRAM + program)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


@pytest.mark.slow
def test_a_million_transitions_are_stored_saved_and_loaded(tmp_path: Path) -> None:
    game = record(atari_env("MsPacman", 4, max_steps=2000), 1500)
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:  # of 300 MB, which pytest would keep
        np.save(f"{folder}/game.npy", np.stack([transition.obs[:, -1] for transition in game]))
        for program, name in ((FILL, "before-fill"), (LOAD, "before-load")):
            command = ["-c", PROGRAM + GAME + program, folder, 250_000, name]
            done = run_python(command, environment_with(), timeout=None, fresh=True)
            assert done.returncode == 0, done.stdout + done.stderr
            print(done.stdout)
