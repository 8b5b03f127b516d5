"""Code for ndarrays works on compressed arrays as a whole: NumPy's functions, operators, methods and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th

from arrays.pairs import ENVS, KINDS, ROWS, Change, assert_same, iadd, pair_of
from sb3_compressed import CompressedArray

FUNCTIONS: dict[str, Change] = {
    "mean": lambda a: a.mean(),
    "mean of an axis": lambda a: a.mean(axis=0),
    "mean of axes": lambda a: np.mean(a, axis=(0, 1), keepdims=True),
    "sum": lambda a: a.sum(),
    "np.sum": lambda a: np.sum(a, axis=-1, dtype=np.float64),
    "std": lambda a: np.std(a, axis=(0, 1)),
    "var": lambda a: a.var(ddof=1),
    "min": lambda a: a.min(),
    "max": lambda a: np.max(a, axis=0),
    "amax": lambda a: np.amax(a),
    "any": lambda a: np.any(a[3] != 0),
    "all": lambda a: a.all(axis=0),
    "argmax": lambda a: a.argmax(),
    "median": lambda a: np.median(a),
    "quantile": lambda a: np.quantile(a, 0.3),
    "prod": lambda a: a.prod(),
    "ptp": lambda a: np.ptp(a),
    "cumsum": lambda a: np.cumsum(a, axis=0),
    "nonzero": lambda a: np.array(np.nonzero(a)),
    "count_nonzero": lambda a: np.count_nonzero(a),
    "unique": lambda a: np.unique(a.reshape(-1, 24), axis=0),
    "histogram": lambda a: np.histogram(a)[0],
    "norm": lambda a: np.linalg.norm(a[1] - a[0]),
    "astype": lambda a: a.astype(np.float64),
    "T": lambda a: a.T,
    "transpose": lambda a: a.transpose(1, 0, 2, 3, 4),
    "np.transpose": lambda a: np.transpose(a),
    "/": lambda a: a / 255,
    "reflected /": lambda a: 255 / (a + 1),
    "-": lambda a: a - a,
    "==": lambda a: a == 3,
    "np.zeros <": lambda a: np.zeros(3) < a,
    "exp": lambda a: np.exp(a),
    "reduce": lambda a: np.add.reduce(a),
    "concatenate": lambda a: np.concatenate([a, a]),
    "concatenate parts": lambda a: np.concatenate([a[:3].reshape(3, -1), a[1:4].reshape(3, -1)], axis=1),
    "stack": lambda a: np.stack([a, a], axis=1),
    "vstack": lambda a: np.vstack((a, np.ones((1, ENVS, 4, 2, 3), np.uint8))),
    "where": lambda a: np.where(a > 4, a, 0),
    "clip": lambda a: np.clip(a, 2, 4),
    "pad": lambda a: np.pad(np.squeeze(a[:, 0]), ((0, 0), (0, 0), (0, 0), (0, 1))),
    "squeeze": lambda a: np.squeeze(a),
    "flatten": lambda a: a.flatten(),
    "ravel": lambda a: a.ravel(),
    "np.ravel": lambda a: np.ravel(a),
    "reshape": lambda a: a.reshape(ROWS, -1),
    "reshape items": lambda a: a.reshape(ROWS * ENVS, 8, 3),
    "reshape leading": lambda a: a.reshape(-1, 4, 2, 3),
    "reshape order": lambda a: a.reshape(-1, 4, 2, 3, order="F"),
    "np.reshape": lambda a: np.reshape(a, (-1, 24)),
    "swapaxes": lambda a: a.swapaxes(0, 2),
    "swap_and_flatten": lambda a: a.swapaxes(0, 1).reshape(ROWS * ENVS, 4, 2, 3),
    "np.swapaxes": lambda a: np.swapaxes(a, 0, 1),
    "copy": lambda a: a.copy(order="C"),
    "np.copy": lambda a: np.copy(a),
    "view": lambda a: a.view(np.int8),
    "take": lambda a: a.take([0, 2], axis=0),
    "repeat": lambda a: np.repeat(a, 2, axis=0),
    "flip": lambda a: np.flip(a, axis=0),
    "roll": lambda a: np.roll(a, 1, axis=0),
    "tolist": lambda a: a.tolist(),
    "tobytes": lambda a: np.frombuffer(a.tobytes(), np.uint8),
    "item": lambda a: a.item(7),
    "list": lambda a: list(a),
    "sorted": lambda a: np.sort(a, axis=0),
    "len": lambda a: len(a),
    "in": lambda a: (3 in a, 77 in a),
    "shape": lambda a: np.shape(a),
    "zeros_like": lambda a: np.zeros_like(a),
    "ones_like": lambda a: np.ones_like(a, dtype=np.float32),
    "asarray": lambda a: np.asarray(a),
    "asarray float": lambda a: np.asarray(a, dtype=np.float32),
    "ascontiguousarray": lambda a: np.ascontiguousarray(a),
    "array_equal": lambda a: np.array_equal(a, np.asarray(a)),
    "einsum": lambda a: np.einsum("ij...->j...", a),
    "broadcast_to": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "apply": lambda a: np.apply_along_axis(np.sum, 0, a),
    "moveaxis": lambda a: np.moveaxis(a, 0, 1),
    "tensor": lambda a: th.tensor(a[:3], dtype=th.float32).numpy(),
    "as_tensor": lambda a: th.as_tensor(a[:3].copy()).numpy(),
    "fancy assignment": lambda a: [a.__setitem__([0, 1], a[[2, 3]]), np.asarray(a)][1],
    "slice assignment": lambda a: [a.__setitem__(slice(0, 2), a[2:4]), np.asarray(a)][1],
    "augmented item": lambda a: [a.__setitem__(0, iadd(a[0])), np.asarray(a)][1],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_code_for_ndarrays_works(kind: str, name: str) -> None:
    ours, plain = pair_of(kind)
    result, expected = np.asarray(FUNCTIONS[name](ours[0])), np.asarray(FUNCTIONS[name](plain[0]))
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert result.tobytes() == expected.tobytes()
    assert_same(ours, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_are_saved_as_ndarrays_are(kind: str, tmp_path: Path) -> None:
    ours, plain = pair_of(kind)
    np.save(tmp_path / "array.npy", ours[0])
    np.savez_compressed(tmp_path / "arrays.npz", obs=ours[0])
    ours[0].tofile(tmp_path / "array.bin")
    assert_same([np.load(tmp_path / "array.npy"), np.load(tmp_path / "arrays.npz")["obs"]], [plain[0]] * 2)
    assert (tmp_path / "array.bin").read_bytes() == plain[0].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_has_no_truth_value(kind: str) -> None:
    with pytest.raises(ValueError, match="ambiguous"):
        bool(pair_of(kind)[0][0])


@pytest.mark.parametrize("kind", KINDS)
def test_asarray_is_read_only_and_array_a_copy(kind: str) -> None:
    ours, plain = pair_of(kind)
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(ours[0])[0] = 1
    np.array(ours[0])[0] = 1
    assert_same(ours, plain)


@pytest.mark.parametrize("name", ["strides", "flags", "data", "ctypes", "base", "resize", "setflags"])
def test_attributes_of_ndarray_memory_raise(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no '{name}', since it does not have .* np\.array\(array\)"):
        getattr(pair_of("compressed")[0][0], name)


HUGE = (10**7, 4, 4, 84, 84)


@pytest.mark.parametrize(
    "use",
    [
        lambda array: array[:],
        lambda array: array[: len(array) - 1],
        lambda array: np.asarray(array),
        lambda array: array / 255,
        lambda array: np.concatenate([array, array]),
        lambda array: array.reshape(-1, 84),
        lambda array: array.astype(np.float32),
        lambda array: np.save("array.npy", array),
        lambda array: array.copy()[np.arange(len(array))],
        lambda array: array.T,
    ],
)
def test_decoding_more_than_the_memory_raises_with_advice(use: Change, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    array = CompressedArray(HUGE)
    with pytest.raises(MemoryError, match=r"observations takes .* GB .* as in array\[start : start \+ 1000\]"):
        use(array)


def test_an_array_larger_than_memory_is_still_indexed_and_written_through() -> None:
    array = CompressedArray(HUGE)
    array[-1][1][2] = 7
    array[5, 0, 1, 2, 3] = 8
    assert (array[-1, 1].sum(), array[5, 0].sum()) == (7 * 84 * 84, 8)
    assert np.zeros_like(array[0]).shape == array.shape[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_over_elements_is_written_as_the_error_says(kind: str) -> None:
    ours, plain = pair_of(kind)
    mask = plain[0] > 4
    if isinstance(ours[0], CompressedArray):
        with pytest.raises(IndexError, match=r"np\.copyto\(array, value, where=mask\)"):
            ours[0][mask] = 3
    np.testing.assert_array_equal(np.asarray(ours[0])[mask], plain[0][mask])
    np.copyto(ours[0], 3, where=mask)
    plain[0][mask] = 3
    assert_same(ours, plain)


def test_an_array_of_one_element_has_its_truth_value() -> None:
    array = CompressedArray((1, 1))
    assert not array
    array[0] = 1
    assert array


@pytest.mark.parametrize("kind", KINDS)
def test_copyto_refuses_the_casts_that_numpy_refuses(kind: str) -> None:
    ours, plain = pair_of(kind)
    for array in (ours[0], plain[0]):
        with pytest.raises(TypeError, match=r"(?i)cannot cast .*same_kind"):
            np.copyto(array, np.ones(3, np.float32))
    np.copyto(ours[0], np.full(3, 2.0), casting="unsafe")
    np.copyto(plain[0], np.full(3, 2.0), casting="unsafe")
    assert_same(ours, plain)
