"""Observations and their successors beside two ndarrays: whatever is written where, both read as these."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray
from programs import run

from sb3_compressed.arrays.successor_store import SuccessorStore
from sb3_compressed.arrays.successors import ObservationArray, SuccessorArray, successor_arrays

RELAXED = settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])

DTYPES = ("?", "u1", "i4", "f2", "f4", "f8", ">f4")

#: What differs in bits alone, or does not equal itself.
SPECIAL = (0.0, -0.0, 1.0, np.nan, -np.nan, np.inf)


class Pair:
    """Our two arrays and the ndarrays that they stand for; everything is done to both."""

    def __init__(self, shape: tuple[int, ...], dtype: str, n_staged: int) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        share = SuccessorStore.STAGED_SHARE
        SuccessorStore.STAGED_SHARE = n_staged / shape[0]
        try:
            self.ours: list[Any] = list(successor_arrays(shape, dtype))
        finally:
            SuccessorStore.STAGED_SHARE = share
        self.plain = [np.zeros(shape, dtype), np.zeros(shape, dtype)]
        self.pos = 0

    def values(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return values of which many are equal."""
        return rng.choice(SPECIAL if self.dtype.kind == "f" else (0, 0, 1), shape).astype(self.dtype)

    def write(self, which: int, index: Any, value: Any) -> None:
        """Write one value, or the error that it is, to both."""
        try:
            self.plain[which][index] = value
        except (ValueError, IndexError) as error:
            with pytest.raises(type(error)):
                self.ours[which][index] = value
        else:
            self.ours[which][index] = value

    def add(self, rng: np.random.Generator, n_steps: int) -> None:
        """Write rows as replay buffers do: each episode's observations follow each other."""
        shape = self.shape[1:]
        obs = self.values(rng, shape)
        for _ in range(n_steps):
            next_obs = self.values(rng, shape)
            self.write(0, self.pos, obs)
            self.write(1, self.pos, next_obs)
            ended = rng.random(shape[0]) < 0.2
            obs = np.where(ended.reshape(-1, *[1] * (len(shape) - 1)), self.values(rng, shape), next_obs)
            self.pos = (self.pos + 1) % self.shape[0]

    def assert_same(self) -> None:
        """Hold that all of both is the same."""
        for ours, plain in zip(self.ours, self.plain, strict=True):
            assert_same(np.asarray(ours), plain)


def assert_same(actual: Any, expected: Any) -> None:
    """Hold that two arrays or scalars agree in shape, dtype and every bit."""
    actual, expected = (
        np.asarray(values[()] if isinstance(values, np.ndarray) else values) for values in (actual, expected)
    )
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    assert actual.tobytes() == expected.tobytes()


def indices(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Draw indices of all kinds."""
    rows, n_envs = shape[:2]
    some = st.integers(-rows, rows - 1)
    pairs = st.integers(0, 5).flatmap(
        lambda n: st.tuples(
            npst.arrays(np.int64, n, elements=some),
            npst.arrays(np.int64, n, elements=st.integers(-n_envs, n_envs - 1)),
        )
    )
    return st.one_of(
        some,
        pairs,
        pairs.map(lambda pair: (*pair, ...)),
        pairs.map(lambda pair: (*pair, slice(None)) if len(shape) > 2 else pair),
        pairs.map(lambda pair: (*pair, slice(1)) if len(shape) > 2 else pair),
        pairs.map(lambda pair: tuple(numbers[::-1].astype(np.int32) for numbers in pair)),
        npst.arrays(bool, (rows,)),
        npst.arrays(bool, (rows, n_envs)),
        npst.arrays(bool, shape),
        st.tuples(st.integers(-rows - 1, rows), st.integers(0, n_envs)),  # some of them out of bounds
        st.lists(some, min_size=1, max_size=4),
        st.tuples(st.slices(rows), st.integers(0, n_envs - 1)),
        st.tuples(st.just(slice(None)), npst.arrays(bool, (n_envs,))),
        st.tuples(*map(npst_numbers, shape)),
        npst.basic_indices(shape, allow_newaxis=True, max_dims=8),
    )


def npst_numbers(length: int) -> st.SearchStrategy[Any]:
    """Draw two numbers along an axis, as a list."""
    return st.lists(st.integers(0, length - 1), min_size=2, max_size=2)


COPIES: list[Callable[[Any], Any]] = [copy.deepcopy, lambda arrays: pickle.loads(pickle.dumps(arrays))]


@RELAXED
@given(data=st.data())
def test_any_writes_and_reads_are_those_of_two_ndarrays(data: st.DataObject) -> None:
    rows, n_envs = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    shape = (rows, n_envs, *data.draw(st.sampled_from([(), (1,), (5,), (2, 3)])))
    pair = Pair(shape, data.draw(st.sampled_from(DTYPES)), n_staged=data.draw(st.integers(1, 9)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["add", "write", "write", "read", "copy", "swap", "jump"]))
        which = data.draw(st.integers(0, 1))
        if action == "add":
            pair.add(rng, data.draw(st.integers(1, 2 * rows)))
        elif action == "jump":
            pair.pos = data.draw(st.integers(0, rows - 1))
        elif action == "copy":
            before = pair.ours
            how = data.draw(st.sampled_from(COPIES))
            pair.ours, pair.plain = how(before), how(pair.plain)  # pickles have the byte order of the machine
            for array in before:  # the copy has nothing to do with it any more
                array[...] = 1
        elif action == "swap" and rows > 1:
            pair.write(which, 0, pair.plain[1 - which][1])
        else:
            index = data.draw(indices(shape))
            try:
                expected = pair.plain[which][index]
            except IndexError:
                with pytest.raises(IndexError):
                    pair.ours[which][index]
                continue
            assert_same(pair.ours[which][index], expected)
            if action == "write":
                values = pair.values(rng, data.draw(st.sampled_from([(), np.shape(expected)])))
                pair.write(which, index, values)
    pair.assert_same()


def filled(shape: tuple[int, ...] = (64, 2, 5), n_steps: int = 100) -> Pair:
    pair = Pair(shape, "f8", n_staged=8)
    pair.add(np.random.default_rng(0), n_steps)
    return pair


@pytest.mark.parametrize("n_steps", [0, 1, 63, 64, 65, 100, 300])
def test_whatever_was_added_comes_back(n_steps: int) -> None:
    filled(n_steps=n_steps).assert_same()


def own_slots(array: SuccessorArray) -> int:
    """Return how many next observations are kept."""
    return int(np.count_nonzero(array._store._places))


def test_only_what_does_not_follow_is_kept() -> None:
    observations, next_observations = successor_arrays((1000, 2, 17), "f8")
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(2, 17))
    for lap in range(5):
        for row in range(1000):
            observations[row] = obs
            obs = rng.normal(size=(2, 17))
            next_observations[row] = obs
            if row % 100 == 99:
                obs = rng.normal(size=(2, 17))  # an episode ends
        next_observations._store.settle(0)
        assert own_slots(next_observations) == 20, f"lap {lap}"
    assert next_observations.nbytes < 0.08 * observations.nbytes


def test_slots_are_used_again() -> None:
    pair = Pair((50, 2, 4), "f8", n_staged=5)
    rng = np.random.default_rng(0)
    for row in range(1000):  # no observation follows another
        for which in (0, 1):
            pair.write(which, row % 50, rng.normal(size=(2, 4)))
    pair.assert_same()
    store = pair.ours[1]._store
    assert store.extra_nbytes <= 100 * (32 + 4 + 4) + store.stage.nbytes


def test_what_numpy_would_give_views_of_is_written_through() -> None:
    pair = filled()
    for array, plain in zip(pair.ours, pair.plain, strict=True):
        for number, index in enumerate((3, (3, 1), slice(2, 5), (slice(None), 0), ..., None, (4, 1, slice(2)))):
            array[index][...] = plain[index][...] = number
            pair.assert_same()
        array.fill(7)
        plain.fill(7)
        with pytest.raises(ValueError, match="read-only"):
            np.asarray(array)[0] = 7
        for copied in (array[[1, 2], [0, 1]], array[np.array([1, 2]), np.array([0, 1])], np.array(array), array.copy()):
            copied[...] = 8  # as in NumPy, a copy
    pair.assert_same()


def test_they_can_do_what_ndarrays_can() -> None:
    pair = filled()
    for ours, plain in zip(pair.ours, pair.plain, strict=True):
        ours[...] = plain[...] = np.nan_to_num(plain, posinf=2.0)
        for name in ("shape", "dtype", "ndim", "size", "itemsize"):
            assert getattr(ours, name) == getattr(plain, name)
        assert len(ours) == len(plain)
        assert ours.raw_nbytes == plain.nbytes
        assert (ours == plain).all()
        assert np.array_equal(ours, plain)
        assert_same(ours + 1, plain + 1)
        assert_same(1 - ours, 1 - plain)
        assert_same(-ours, -plain)
        assert_same(ours.mean(axis=0), plain.mean(axis=0))
        assert_same(ours.swapaxes(0, 1).reshape(-1, 5), plain.swapaxes(0, 1).reshape(-1, 5))
        assert_same(np.concatenate([ours, ours]), np.concatenate([plain, plain]))
        assert_same(np.array(ours, dtype="f4"), plain.astype("f4"))
        assert_same(np.add.reduce(ours), np.add.reduce(plain))
        assert_same(np.stack(list(ours)), plain)
        ours += 1
        plain += 1
        assert isinstance(ours, ObservationArray | SuccessorArray)
        with pytest.raises(AttributeError, match="no attribute 'decompress'"):
            _ = ours.decompress
        assert "shape=(64, 2, 5)" in repr(ours)
        assert_same(copy.copy(ours), plain)
    pair.assert_same()


def test_an_index_out_of_bounds_is_an_error_and_changes_nothing() -> None:
    pair = filled()
    bad: list[Any] = [64, -65, (0, 2), (np.array([0, 64]), np.array([0, 0])), (np.array([0]), np.array([-3]))]
    for array in pair.ours:
        for index in bad:
            with pytest.raises(IndexError, match="out of bounds"):
                array[index]
            with pytest.raises(IndexError, match="out of bounds"):
                array[index] = 1
        with pytest.raises(IndexError, match="too many indices"):
            array[0, 0, 0, 0]
    pair.assert_same()


@pytest.mark.parametrize("shape", [(4,), (0, 2, 3), (4, 0, 3), (4, 2, 0), (2**20, 2**12, 1)])
def test_shapes_without_elements_or_with_too_many_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="shape must be"):
        successor_arrays(shape, "f4")


def test_a_pickle_holds_observations_once() -> None:
    observations, next_observations = filled((500, 2, 50), n_steps=700).ours
    once = len(pickle.dumps(np.asarray(observations)))
    assert len(pickle.dumps((observations, next_observations))) < 1.3 * once  # a fifth of the steps end an episode


def test_memory_is_taken_as_it_is_used() -> None:
    code = """
import psutil, numpy as np
from sb3_compressed.arrays.successors import successor_arrays
successor_arrays((10, 2, 5), np.float64)
before = psutil.Process().memory_info().rss
a, b = successor_arrays((100_000, 4, 100), np.float64)  # 320 MB
for row in range(0, 2000):
    a[row] = row
    b[row] = row + 1
print(psutil.Process().memory_info().rss - before)
"""
    assert int(run(code)) < 2000 * 4 * 100 * 8 + 8e6


def test_a_thread_that_reads_never_sees_a_row_halfway_moved() -> None:
    observations, next_observations = successor_arrays((64, 2, 4), "f8")
    for row in range(64):  # next observations are odd or even as their rows, some of them follow
        observations[row], next_observations[row] = row, row + (1 if row % 3 else 3)
    wrong: list[Any] = []
    over = threading.Event()

    def look() -> None:
        rows, envs = np.arange(64), np.zeros(64, np.int64)
        while not over.is_set():
            read = next_observations[rows, envs]
            wrong.extend(read[(read[:, 0] - rows) % 2 != 1])

    thread = threading.Thread(target=look)
    thread.start()
    for step in range(64, 6400):
        row = step % 64
        observations[row], next_observations[row] = row, row + (1 if step % 3 else 3)
    over.set()
    thread.join()
    assert not wrong


def test_what_is_written_in_place_follows_the_rules_of_numpy() -> None:
    for ours in filled().ours:
        plain = np.array(ours)
        for array in (ours, plain):
            np.add(array, 1, out=array, where=plain > 5)
        assert_same(ours, plain)
        with pytest.raises(ValueError, match="without a copy"):
            ours.__array__(np.dtype("f2"), copy=False)  # as NumPy 2 calls it
    for ours in successor_arrays((8, 2, 3), np.uint8):
        with pytest.raises(TypeError, match="casting rule"):
            ours += 0.5
        assert not ours.any()
