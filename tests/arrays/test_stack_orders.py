"""Frame stacks of either order, on any axis, are found; those that skip frames are reported once."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_compressed import (
    CompressedReplayBuffer,
    buffer_statistics,
    load_checkpoint,
    save_checkpoint,
)
from sb3_compressed.arrays.frame_layout import FrameLayout

N, N_ENVS = 60, 2
FILM = np.random.default_rng(0).integers(0, 9, (N + 20, N_ENVS, 6, 20, 3), np.uint8) * 20
ENDS = (25, 44)

Join = Callable[[list[NDArray[Any]]], NDArray[Any]]
STACKS: dict[str, tuple[int, Join]] = {
    "channel-first": (0, lambda frames: np.concatenate([frame.transpose(2, 0, 1) for frame in frames])),
    "channel-last": (-1, lambda frames: np.concatenate(frames, -1)),
    "first axis": (0, np.stack),
    "last axis": (-1, lambda frames: np.stack(frames, -1)),
    "before the channels": (2, lambda frames: np.stack(frames, 2)),
    "after the channels": (1, lambda frames: np.stack([frame.transpose(2, 0, 1) for frame in frames], 1)),
    "gray": (0, lambda frames: np.stack([frame[..., 0] for frame in frames])),
    "vectors": (0, lambda frames: np.stack([frame[..., 0] for frame in frames]).reshape(-1)),
}


def observations(join: Join, n_frames: int, order: int, lag: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return observations and next observations of some episodes, ``(N, N_ENVS, ...)``."""

    def stacks(step: int, start: int) -> NDArray[Any]:
        steps = [max(step - lag * age, start) for age in range(n_frames)][::-1]
        return np.stack([join([FILM[step, env] for step in steps][::order]) for env in range(N_ENVS)])

    rows, start = [], 0
    for step in range(N):
        rows.append((stacks(step, start), stacks(step + 1, start)))
        start = step + 1 if step in ENDS else start
    return np.stack([obs for obs, _ in rows]), np.stack([following for _, following in rows])


def filled(obs: NDArray[Any], following: NDArray[Any], **options: Any) -> Any:
    space = spaces.Box(0, 255, obs.shape[2:], np.uint8)
    options = {"compression_method": "zstd3", "num_threads": 1, **options}
    buffer = CompressedReplayBuffer(N * N_ENVS, space, spaces.Discrete(3), device="cpu", n_envs=N_ENVS, **options)
    for row in range(N):
        buffer.add(obs[row], following[row], np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}] * N_ENVS)
    return buffer


def assert_content(buffer: Any, obs: NDArray[Any], following: NDArray[Any]) -> None:
    assert np.array_equal(buffer.observations, obs)
    assert np.array_equal(buffer.next_observations, following)


@pytest.mark.parametrize(
    ("stack", "n_frames", "order", "method"),
    [
        *((stack, 4, order, "zstd3") for stack in STACKS for order in (1, -1)),
        ("channel-first", 2, -1, "delta"),
        ("channel-last", 2, 1, "zstd-dict"),
        ("after the channels", 4, -1, "delta"),
        ("vectors", 2, -1, "zstd-dict"),
        *((stack, 17 + index, (1, -1)[index % 2], "zstd3") for index, stack in enumerate(STACKS)),
        ("gray", 64, 1, "delta"),
        ("last axis", 64, -1, "zstd-dict"),
    ],
)
def test_each_frame_is_stored_once(stack: str, n_frames: int, order: int, method: str, tmp_path: Path) -> None:
    axis, join = STACKS[stack]
    obs, following = observations(join, n_frames, order)
    buffer = filled(obs, following, compression_method=method)
    layout = buffer.observations.layout
    item_axis = axis if axis < 1 else axis % (obs.ndim - 2)
    assert (layout.axis, layout.n_frames, layout.newest_first) == (item_axis, n_frames, order < 0)
    assert_content(buffer, obs, following)
    # One a step, and a few more where episodes begin and before the layout was found.
    assert buffer_statistics(buffer).stored_frames <= N_ENVS * (N + (len(ENDS) + 1) * n_frames + 4)
    save_checkpoint(buffer, tmp_path)
    loaded = load_checkpoint(tmp_path, device="cpu")
    for copy in (loaded, pickle.loads(pickle.dumps(buffer))):
        assert copy.observations.layout == layout
        assert_content(copy, obs, following)
        before = buffer_statistics(copy).stored_frames
        for row in range(5):  # which continue
            copy.add(obs[row], following[row], np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}] * N_ENVS)
        assert buffer_statistics(copy).stored_frames <= before + N_ENVS * (n_frames + 5)
        assert_content(copy, obs, following)


@pytest.mark.parametrize(("stack", "method"), [("channel-last", "zstd3"), ("gray", "delta")])
def test_the_order_of_a_stack_whose_number_of_frames_is_stated(stack: str, method: str) -> None:
    _, join = STACKS[stack]
    for order in (1, -1):
        obs, following = observations(join, 4, order)
        buffer = filled(obs, following, compression_method=method, frame_stack=4)
        assert buffer.observations.layout.newest_first == (order < 0)
        assert_content(buffer, obs, following)
        assert buffer_statistics(buffer).stored_frames <= N_ENVS * (N + len(ENDS) * 4 + 4 * 5)


def test_a_transposed_view_of_stacks() -> None:
    """As observations arrive from VecTransposeImage."""
    obs, following = observations(STACKS["channel-last"][1], 4, -1)
    views = [each.transpose(0, 1, 4, 2, 3) for each in (obs, following)]
    buffer = filled(*views, compression_method="delta")
    assert buffer.observations.layout == FrameLayout((12, 6, 20), 0, 4, newest_first=True)
    assert_content(buffer, *views)
    assert buffer_statistics(buffer).stored_frames <= N_ENVS * (N + len(ENDS) * 4 + 8)


@pytest.mark.parametrize(("lag", "order"), [(2, 1), (4, -1)])
def test_a_stack_that_skips_frames_is_reported_once(lag: int, order: int) -> None:
    obs, following = observations(STACKS["gray"][1], 4, order, lag)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        buffer = filled(obs, following)
        for row in range(20):
            buffer.add(obs[row], following[row], np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}] * N_ENVS)
    assert [f"{lag} steps apart" in str(each.message) for each in caught] == [True]
    assert buffer.observations.layout is None


def test_noise_and_still_pictures_are_not_reported() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (N + 1, N_ENVS, 4, 20, 20), np.uint8)
    still = np.repeat(noise[:1], N + 1, axis=0)
    for images in (noise, still):
        assert filled(images[:-1], images[1:]).observations.layout is None


def test_sequences_of_stacks_with_the_newest_frame_first() -> None:
    obs, following = observations(STACKS["gray"][1], 4, -1)
    buffer = filled(obs, following)
    batch = buffer.sample_sequences(30, 3).observations.numpy()
    known = {step.tobytes(): row for row, step in enumerate(obs[:, 0])}
    known |= {step.tobytes(): row for row, step in enumerate(obs[:, 1])}
    rows = np.array([[known[step.tobytes()] for step in sequence[:3]] for sequence in batch])
    assert (np.diff(rows, axis=1) == 1).all()
