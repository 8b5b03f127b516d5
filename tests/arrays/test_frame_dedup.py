"""Frame deduplication: the payloads that a transition adds to a pair of arrays filled as SB3 fills them."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
from drawn_examples import examples
from gathering import loaded_slots, payload_addresses
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from slot_objects import load_slots

from sb3_compressed import CompressedArray
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.frame_layout import FrameStack, FrameStackDetector
from sb3_compressed.arrays.memory_log import MemoryLog
from sb3_compressed.arrays.observation_stream import ObservationStream
from sb3_compressed.codecs import get_codec

RELAXED = examples(100)

Reset = Literal["zeros", "repeat"]


@dataclass(frozen=True)
class Stacking:
    """How a wrapper makes one observation of its last frames."""

    frame_shape: tuple[int, ...]
    n_frames: int
    join: Callable[[list[NDArray[Any]]], NDArray[Any]]


def concatenated(axis: int) -> Callable[[list[NDArray[Any]]], NDArray[Any]]:
    return lambda frames: np.concatenate(frames, axis)


STACKINGS = {
    "channel-first": Stacking((1, 6, 5), 4, concatenated(0)),
    "channel-last": Stacking((6, 5, 1), 4, concatenated(-1)),
    "RGB channel-first": Stacking((3, 6, 5), 4, concatenated(0)),
    "RGB channel-last": Stacking((6, 5, 3), 4, concatenated(-1)),
    "RGB, 3 frames": Stacking((12, 5, 3), 3, concatenated(-1)),
    "vectors, joined": Stacking((7,), 4, concatenated(-1)),
    "vectors, stacked": Stacking((7,), 5, np.stack),
    "2 frames": Stacking((1, 6, 5), 2, concatenated(0)),
}

stackings = pytest.mark.parametrize("stacking", STACKINGS.values(), ids=list(STACKINGS))


@dataclass
class StackedEnvs:
    """Environments of random frames that end at random, behind a frame-stack wrapper with automatic resets.

    :param first_end: no episode ends before this step
    """

    stacking: Stacking
    n_envs: int = 3
    dtype: str = "u1"
    reset: Reset = "zeros"
    first_end: int = 8
    p_end: float = 0.15
    seed: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def transitions(self, n_steps: int) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]]:
        """Yield ``obs``, ``next_obs`` and whether an episode began with ``obs``, each for all environments."""
        stacks = [self._reset() for _ in range(self.n_envs)]
        began = np.ones(self.n_envs, bool)
        for step in range(n_steps):
            obs = self._join(stacks)
            stacks = [[*frames[1:], self._frame()] for frames in stacks]
            yield obs, self._join(stacks), began
            began = (self.rng.random(self.n_envs) < self.p_end) & (step >= self.first_end)
            stacks = [self._reset() if ended else frames for frames, ended in zip(stacks, began, strict=True)]

    def _frame(self) -> NDArray[Any]:
        return self.rng.integers(0, 256, self.stacking.frame_shape).astype(self.dtype)

    def _reset(self) -> list[NDArray[Any]]:
        first = self._frame()
        older = np.zeros_like(first) if self.reset == "zeros" else first
        return [older] * (self.stacking.n_frames - 1) + [first]

    def _join(self, stacks: list[list[NDArray[Any]]]) -> NDArray[Any]:
        return np.stack([self.stacking.join(frames) for frames in stacks])


class Pair:
    """``observations`` and ``next_observations`` beside their uncompressed counterparts, written as SB3 does."""

    def __init__(self, envs: StackedEnvs, frame_stack: FrameStack, rows: int = 11) -> None:
        items = envs._join([envs._reset()] * envs.n_envs)
        self.obs = CompressedArray((rows, *items.shape), envs.dtype, "rle", frame_stack)
        self.next_obs = self.obs.new_sharing_frames()
        self.plain = np.zeros((2, *self.obs.shape), envs.dtype)
        self.pos = 0
        self.seen: set[int] = set()

    def add(self, obs: NDArray[Any], next_obs: NDArray[Any]) -> list[int]:
        """Write one transition and return how many payloads it added, for each environment."""
        self.obs[self.pos], self.next_obs[self.pos] = obs, next_obs
        self.plain[:, self.pos] = obs, next_obs
        added = [self._count_new(self.obs, env) + self._count_new(self.next_obs, env) for env in range(len(obs))]
        self.pos = (self.pos + 1) % len(self.obs)
        return added

    def assert_equal(self) -> None:
        """Assert that both arrays equal the plain arrays."""
        for array, plain in zip((self.obs, self.next_obs), self.plain, strict=True):
            assert np.asarray(array).tobytes() == plain.tobytes()

    def _count_new(self, array: CompressedArray, env: int) -> int:
        before = len(self.seen)
        self.seen.update(payload_addresses(array, self.pos, env))
        return len(self.seen) - before


@stackings
@pytest.mark.parametrize(("stated", "n_envs", "reset"), [(True, 1, "zeros"), (False, 5, "repeat")])
def test_a_transition_of_a_running_episode_adds_one_payload(
    stacking: Stacking, stated: bool, n_envs: int, reset: Reset
) -> None:
    """Over several laps of the ring and over episode ends, where the new episode's first stack is added in full."""
    envs = StackedEnvs(stacking, n_envs, reset=reset)
    pair = Pair(envs, stacking.n_frames if stated else "auto")
    for step, (obs, next_obs, began) in enumerate(envs.transitions(50)):
        added = pair.add(obs, next_obs)
        pair.assert_equal()
        if stated or step >= 4:  # by then the layout is found, and the last observation stored by frames
            assert added == [1 + stacking.n_frames if new else 1 for new in began]
            assert pair.obs.n_frames == pair.next_obs.n_frames == stacking.n_frames


def test_next_obs_is_shared_without_frames() -> None:
    envs = StackedEnvs(STACKINGS["channel-first"])
    pair = Pair(envs, None)
    for obs, next_obs, began in envs.transitions(50):
        assert pair.add(obs, next_obs) == [2 if new else 1 for new in began]
    pair.assert_equal()
    assert {type(slot) for slot in loaded_slots(pair.obs)[0].flat} == {bytes}


@pytest.mark.parametrize("frame_shape", [(3,), (8,), (6, 6), (4, 6, 6), (6, 6, 4)])
def test_auto_does_not_take_single_observations_for_stacks(frame_shape: tuple[int, ...]) -> None:
    envs = StackedEnvs(Stacking(frame_shape, 1, lambda frames: frames[-1]), n_envs=2)
    pair = Pair(envs, "auto")
    for obs, next_obs, began in envs.transitions(FrameStackDetector.PATIENCE):  # two pairs of observations a step
        assert pair.add(obs, next_obs) == [2 if new else 1 for new in began]
        assert pair.obs.n_frames == 1
    pair.assert_equal()


@pytest.mark.filterwarnings("ignore:frames do not repeat")
@pytest.mark.parametrize(
    ("item", "wrong"),
    [("channel-first", 2), ("RGB channel-last", 3), ("vectors, joined", 14)],
)
def test_a_wrong_number_of_frames_costs_bytes_but_is_lossless(item: str, wrong: int) -> None:
    stacking = STACKINGS[item]
    envs = StackedEnvs(stacking)
    right_pair, wrong_pair = Pair(envs, stacking.n_frames), Pair(envs, wrong)
    for obs, next_obs, _ in envs.transitions(40):
        right_pair.add(obs, next_obs)
        wrong_pair.add(obs, next_obs)
        wrong_pair.assert_equal()
    assert wrong_pair.obs.n_frames == wrong
    assert wrong_pair.obs.nbytes > right_pair.obs.nbytes


@RELAXED
@given(
    moves=st.lists(st.lists(st.integers(-1, 3), min_size=2, max_size=2), max_size=30),
    frame_stack=st.sampled_from([3, "auto", None]),
    kind=st.sampled_from(["first", "last"]),
)
def test_sharing_is_lossless_for_any_order_of_frames(
    moves: list[list[int]], frame_stack: FrameStack, kind: str
) -> None:
    """Each environment goes through a film of few different frames, forwards, backwards, or stands still."""
    film = np.random.default_rng(0).integers(0, 2, (400, 2, 2), dtype=np.uint8)
    array = CompressedArray(
        (7, 2, *((3, 2, 2) if kind == "first" else (2, 2, 3))), codec="none", frame_stack=frame_stack
    )
    plain = np.zeros(array.shape, np.uint8)
    at = np.array([200, 200])
    for step, move in enumerate(moves):
        at += move
        stacks = np.stack([film[start : start + 3] for start in at])
        array[step % 7] = plain[step % 7] = stacks if kind == "first" else np.moveaxis(stacks, 1, -1)
    np.testing.assert_array_equal(np.asarray(array), plain)


FLOATS = np.array([0x00000000, 0x80000000, 0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7FA00000, 0x7F800000], "<u4")


@pytest.mark.parametrize("frame_stack", [2, None])
@pytest.mark.parametrize("first", FLOATS)
def test_only_bit_identical_frames_are_shared(frame_stack: FrameStack, first: np.uint32) -> None:
    """NaN equals itself, and neither NaN with other bits nor -0.0 and 0.0 are one."""
    for then in FLOATS:
        array = CompressedArray((2, 1, 2), "<f4", "none", frame_stack)
        items = np.array([[[first, first]], [[first, then]]], "<u4")
        array[0], array[1] = items.view("<f4")
        assert np.asarray(array).tobytes() == items.tobytes()
        assert (array.references[1, 0] == array.references[0, 0]) == (first == then)


@pytest.mark.parametrize(("frame_stack", "n_before"), [(4, 30), ("auto", 2), ("auto", 30)])
def test_a_pickled_pair_continues_to_share_independently(frame_stack: FrameStack, n_before: int) -> None:
    envs = StackedEnvs(STACKINGS["channel-first"])
    pair = Pair(envs, frame_stack)
    steps = list(envs.transitions(60))
    for obs, next_obs, _ in steps[:n_before]:
        pair.add(obs, next_obs)
    other = pickle.loads(pickle.dumps(pair))
    other.assert_equal()
    for array in (other.obs, other.next_obs):
        for row, env in np.argwhere(array.references != 0).tolist():
            other.seen.update(payload_addresses(array, row, env))
    for step, (obs, next_obs, began) in enumerate(steps[n_before:], start=n_before):
        added = other.add(obs, next_obs)
        if step > max(n_before, 4):  # the first row continues one that is in another segment
            assert added == [5 if new else 1 for new in began]
    other.assert_equal()
    pair.assert_equal()
    for obs, next_obs, _ in steps[n_before:]:
        pair.add(obs, next_obs)
    pair.assert_equal()


def test_one_array_with_next_observations_shares_frames_like_two_arrays() -> None:
    """As with SB3's ``optimize_memory_usage``: what comes next is written to the next row, and again as what is."""
    envs = StackedEnvs(STACKINGS["channel-first"])
    pair = Pair(envs, 4)
    for step, (obs, next_obs, began) in enumerate(envs.transitions(40)):
        rows = [np.int64(step % 11), np.int64((step + 1) % 11)]
        pair.obs[rows[0]], pair.obs[rows[1]] = obs, next_obs
        np.testing.assert_array_equal(pair.obs[rows], [obs, next_obs])
        added = []
        for env in range(envs.n_envs):
            n_before = len(pair.seen)
            for row in rows:
                pair.seen.update(payload_addresses(pair.obs, int(row), env))
            added.append(len(pair.seen) - n_before)
        assert added == [5 if new else 1 for new in began]


def test_an_invalid_row_does_not_affect_the_stream() -> None:
    envs = StackedEnvs(STACKINGS["channel-first"])
    pair = Pair(envs, 4)
    for obs, next_obs, began in envs.transitions(20):
        with pytest.raises(ValueError, match="cannot write"):
            pair.obs[0] = np.ones((2, 2), np.uint8)
        with pytest.raises(ValueError, match="do not fit"):
            pair.obs[0] = obs + 0.5
        assert pair.add(obs, next_obs) == [5 if new else 1 for new in began]
    pair.assert_equal()


MEMORY: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "one frame after the other": np.ascontiguousarray,
    "pixel by pixel": lambda items: np.ascontiguousarray(np.moveaxis(items, 1, -1)).transpose(0, 3, 1, 2),
    "environments last": lambda items: np.ascontiguousarray(np.moveaxis(items, 0, -1)).transpose(3, 0, 1, 2),
    "backwards": lambda items: np.ascontiguousarray(items[..., ::-1])[..., ::-1],
    "part of a larger array": lambda items: np.repeat(np.repeat(items, 2, axis=-1), 2, axis=1)[:, ::2, :, ::2],
}


@pytest.mark.filterwarnings("ignore:frames do not repeat")  # if the first rows are such, which is right
@RELAXED
@given(data=st.data())
def test_the_layout_in_memory_may_change_from_row_to_row(data: st.DataObject) -> None:
    # One pixel at a time changes, so that a comparison that leaves out a single byte is found out.
    dtype = data.draw(st.sampled_from(["u1", "i2", "f4"]))
    item_shape = data.draw(st.sampled_from([(4, 3, 5), (6, 3, 2), (3, 5, 4)]))
    n_frames = data.draw(st.sampled_from([n for n in (2, 3, 4) if item_shape[0] % n == 0 or item_shape[2] % n == 0]))
    array = CompressedArray((40, 2, *item_shape), dtype, "zstd", n_frames)
    axis = item_shape.index(max(item_shape)) - 3 if item_shape[0] % n_frames else 0
    items = np.zeros((2, *item_shape), dtype)
    expected = np.zeros(array.shape, dtype)
    for row in range(40):
        move = data.draw(st.sampled_from(["repeat", "shift", "pixel"]))
        if move == "shift":
            items = np.roll(items, -(item_shape[axis] // n_frames), axis=axis + 1 if axis == 0 else axis)
        if move != "repeat":
            items = items.copy()
            items.reshape(-1)[data.draw(st.integers(0, items.size - 1))] += 1
        array[row] = MEMORY[data.draw(st.sampled_from(sorted(MEMORY)))](items)
        expected[row] = items
    np.testing.assert_array_equal(np.asarray(array), expected)


@pytest.mark.parametrize(
    ("n_frames", "shape", "message"),
    [
        (4, (4, 8, 8), None),
        (6, (12, 8, 8), "4 frames along axis 0"),  # of three channels, where frames have three
        (8, (8, 8, 12), "4 frames along axis -1"),  # the first axis, since 8 does not divide the last one
    ],
)
def test_a_frame_stack_that_contradicts_the_observations_warns_once(
    n_frames: int, shape: tuple[int, ...], message: str | None
) -> None:
    axis = 0 if shape[0] != 8 else -1
    channels = shape[axis] // 4
    rng = np.random.default_rng(0)
    frames = rng.integers(256, size=(40, channels, 8, 8), dtype=np.uint8)
    stacks = np.stack([np.concatenate(frames[step : step + 4]) for step in range(30)])
    stacks = stacks if axis == 0 else np.moveaxis(stacks, 1, -1)
    array = CompressedArray((30, 1, *shape), codec="none", frame_stack=n_frames)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for step in range(30):
            array[step] = stacks[step][np.newaxis]
    assert [message in str(each.message) for each in found if message] == [True] * (message is not None)
    assert len(found) == (message is not None)
    np.testing.assert_array_equal(np.asarray(array)[:, 0], stacks)


@pytest.mark.parametrize("wrong", ["dtype", "next shape", "next dtype"])
def test_rows_of_another_size_with_the_same_strides_are_errors(wrong: str) -> None:
    log = MemoryLog()
    stream = ObservationStream(FrameEncoder((4, 6), np.dtype(np.uint8), get_codec("none"), None), None, log)
    row = np.broadcast_to(np.uint8(1), (2, 4, 6))
    stream.append(row)
    rows: dict[str, tuple[NDArray[Any], ...]] = {
        "dtype": (np.broadcast_to(np.int64(1), (2, 4, 6)),),
        "next shape": (row, np.broadcast_to(np.uint8(1), (2, 4, 3))),
        "next dtype": (row, np.broadcast_to(np.int64(1), (2, 4, 6))),
    }
    with pytest.raises(ValueError, match=r"rows must be of shape \(2, 4, 6\)"):
        stream.append(*rows[wrong])
    [references] = stream.append(row)
    assert load_slots(log, references).tolist() == [b"\1" * 24] * 2
