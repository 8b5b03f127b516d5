"""Code for ndarrays works on compressed arrays as a whole: NumPy's functions, operators, methods and files."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th

from arrays.pairs import ENVS, ROWS, Change, assert_same, assert_same_array, pair_of
from sb3_compressed import CompressedArray

FUNCTIONS: dict[str, Change] = {
    "mean": lambda a: a.mean(),
    "sum": lambda a: a.sum(),
    "std": lambda a: np.std(a, axis=(0, 1)),
    "any": lambda a: (a[3] != 0).any(),
    "argmax": lambda a: a.argmax(),
    "unique": lambda a: np.unique(a.reshape(-1, 24), axis=0),
    "astype": lambda a: a.astype(np.float64),
    "T": lambda a: a.T,
    "transpose": lambda a: a.transpose(1, 0, 2, 3, 4),
    "/": lambda a: a / 255,
    "-": lambda a: a - a,
    "np.zeros <": lambda a: np.zeros(3) < a,
    "reduce": lambda a: np.add.reduce(a),
    "concatenate": lambda a: np.concatenate([a, a]),
    "where": lambda a: np.where(a > 4, a, 0),
    "flatten": lambda a: a.flatten(),
    "ravel": lambda a: a.ravel(),
    "reshape": lambda a: a.reshape(ROWS, -1),
    "reshape order": lambda a: a.reshape(-1, 4, 2, 3, order="F"),
    "swapaxes": lambda a: a.swapaxes(0, 2),
    "swap_and_flatten": lambda a: a.swapaxes(0, 1).reshape(ROWS * ENVS, 4, 2, 3),
    "copy": lambda a: a.copy(order="C"),
    "take": lambda a: a.take([0, 2], axis=0),
    "tolist": lambda a: a.tolist(),
    "tobytes": lambda a: np.frombuffer(a.tobytes(), np.uint8),
    "item": lambda a: a.item(7),
    "list": lambda a: list(a),
    "len": lambda a: len(a),
    "in": lambda a: (3 in a, 77 in a),
    "zeros_like": lambda a: np.zeros_like(a),
    "asarray": lambda a: np.asarray(a),
    "einsum": lambda a: np.einsum("ij...->j...", a),
    "tensor": lambda a: th.tensor(a[:3], dtype=th.float32).numpy(),
    "fancy assignment": lambda a: [a.__setitem__([0, 1], a[[2, 3]]), np.asarray(a)][1],
    "out": lambda a: np.add(a, 1, out=np.zeros(a.shape, np.uint8), where=a > 3),
    "at": lambda a: _added(np.zeros(a.shape, np.uint8), a),
    "flat": lambda a: a.flat[7],
}


def _added(target: Any, values: Any) -> Any:
    np.add.at(target, np.arange(len(target)), values)
    return target


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_code_for_ndarrays_works(name: str) -> None:
    ours, plain = pair_of()
    assert_same_array(FUNCTIONS[name](ours[0]), FUNCTIONS[name](plain[0]))
    assert_same(ours, plain)


def test_arrays_are_saved_as_ndarrays_are(tmp_path: Path) -> None:
    ours, plain = pair_of()
    np.save(tmp_path / "array.npy", ours[0])
    np.savez_compressed(tmp_path / "arrays.npz", obs=ours[0])
    ours[0].tofile(tmp_path / "array.bin")
    assert_same([np.load(tmp_path / "array.npy"), np.load(tmp_path / "arrays.npz")["obs"]], [plain[0]] * 2)
    assert (tmp_path / "array.bin").read_bytes() == plain[0].tobytes()


@pytest.mark.parametrize(
    "write",
    [
        lambda array: array.__iadd__(1),
        lambda array: np.add(array, 1, out=array),
        lambda array: np.multiply(np.asarray(array), 2, out=array),
        lambda array: np.add.at(array, [0, 0], 1),
        lambda array: np.copyto(array, 7),
        lambda array: np.place(array, np.asarray(array) > 3, [7]),
        lambda array: np.sum(np.ones((2, *array.shape)), axis=0, out=array),
        lambda array: np.concatenate([array[1:], array[:1]], out=array),
        lambda array: np.fill_diagonal(array[:3, :3, 0, 0, 0], 7),
        lambda array: setattr(array, "flat", 7),
        lambda array: operator.setitem(array.flat, 0, 7),
        lambda array: operator.setitem(array.T, 0, 7),
    ],
)
def test_other_writes_than_assignments_raise(write: Change) -> None:
    ours, plain = pair_of()
    with pytest.raises((ValueError, TypeError, AttributeError)):
        write(ours[0])
    assert_same(ours, plain)


HUGE = (10**5, 4, 400, 84, 84)


@pytest.mark.parametrize(
    "use",
    [
        lambda array: array[: len(array) - 1],
        lambda array: np.asarray(array),
        lambda array: array / 255,
        lambda array: array.reshape(-1, 84),
        lambda array: array.copy()[np.arange(len(array))],
        lambda array: array.T,
    ],
)
def test_decoding_more_than_the_memory_raises_with_advice(use: Change) -> None:
    array = CompressedArray(HUGE)
    with pytest.raises(MemoryError, match=r"array\[start"):
        use(array)


def test_an_array_larger_than_memory_is_still_indexed_and_written() -> None:
    array = CompressedArray(HUGE)
    array[-1, 1, 2] = 7
    array[5, 0, 1, 2, 3] = 8
    assert (array[-1, 1].sum(), array[5, 0].sum()) == (7 * 84 * 84, 8)
    assert np.zeros_like(array[0]).shape == array.shape[1:]


def test_a_mask_over_elements_is_written_as_the_error_says() -> None:
    ours, plain = pair_of()
    mask = plain[0] > 4
    with pytest.raises(IndexError, match=r"np\.where"):
        ours[0][mask] = 3
    np.testing.assert_array_equal(np.asarray(ours[0])[mask], plain[0][mask])
    ours[0][...] = np.where(mask, 3, ours[0])
    plain[0][mask] = 3
    assert_same(ours, plain)


def test_an_array_of_one_element_has_its_truth_value() -> None:
    array = CompressedArray((1, 1))
    assert not array
    array[0] = 1
    assert array


TENSORS: dict[str, Any] = {"from_dlpack": th.utils.dlpack.from_dlpack, "as_tensor": th.as_tensor, "asarray": th.asarray}


@pytest.mark.parametrize(("way", "dtype"), [("from_dlpack", "u1"), ("as_tensor", "f4"), ("asarray", "i8")])
def test_tensors_are_decoded_at_once(way: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array, plain = (arrays[0] for arrays in pair_of(dtype=dtype))
    monkeypatch.setattr(CompressedArray, "__len__", lambda self: pytest.fail("converted element by element"))
    monkeypatch.setattr(CompressedArray, "__iter__", lambda self: pytest.fail("converted element by element"))
    tensor = TENSORS[way](array)
    assert tensor.dtype == th.from_numpy(plain).dtype
    assert np.array_equal(tensor.numpy(), plain)
    tensor += 1  # it has memory of its own
    assert np.array_equal(array, plain)


def test_numpy_imports_it_as_any_other_library_does() -> None:
    array, plain = (arrays[0] for arrays in pair_of())
    assert np.array_equal(np.from_dlpack(array), plain)
    assert array.__dlpack_device__() == plain.__dlpack_device__()
    with pytest.raises(BufferError, match="without a copy"):
        array.__dlpack__(copy=False)
