"""Reductions of large arrays: a part at a time, with the result of NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from arrays.pairs import Change, pair_of
from sb3_compressed.arrays import reductions

LARGE: dict[str, Change] = {
    "sum": lambda a: a.sum(),
    "sum of an axis": lambda a: np.sum(a, axis=0),
    "sum of an inner axis": lambda a: a.sum(axis=-1, keepdims=True),
    "sum of axes": lambda a: a.sum(axis=(0, -1)),
    "kept axes": lambda a: a.sum(axis=(0, 2), keepdims=True),
    "mean": lambda a: a.mean(),
    "mean of an axis": lambda a: a.mean(0),
    "mean of items": lambda a: np.mean(a, axis=(2, 3, 4)),
    "std": lambda a: a.std(axis=(0, 1)),
    "var": lambda a: np.var(a, ddof=1),
    "var of a negative axis": lambda a: a.var(axis=-5),
    "min": lambda a: a.min(),
    "max": lambda a: np.max(a, axis=(0, 1)),
    "any": lambda a: a.any(axis=0),
    "all": lambda a: np.all(a),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", ["u1", "?", "i4", "f2", "f4", "f8"])
@pytest.mark.parametrize("part_nbytes", [1, 200])
def test_large_arrays_are_reduced_in_parts(
    name: str, dtype: str, part_nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reductions, "WHOLE_NBYTES", 0)
    monkeypatch.setattr(reductions, "PART_NBYTES", part_nbytes)
    [array, _], [plain, _] = pair_of("compressed", dtype=dtype)
    result, expected = LARGE[name](array), LARGE[name](plain)
    assert (np.shape(result), result.dtype, type(result)) == (np.shape(expected), expected.dtype, type(expected))
    if dtype.startswith("f") or name.startswith(("mean", "std", "var")):
        np.testing.assert_allclose(result, expected, rtol=2e-3 if dtype == "f2" else 1e-6)
    else:
        assert np.array_equal(result, expected)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda a: a.sum(dtype=np.int8), TypeError, r"takes only axis, keepdims; use it on parts, as in .*\.sum\("),
        (lambda a: a.max(0, np.zeros(3)), TypeError, "takes only axis, keepdims"),
        (lambda a: np.std(a, where=[True]), TypeError, "takes only axis, ddof, keepdims"),
        (lambda a: a.mean(axis=5), ValueError, "axis 5 is out of bounds for array of dimension 5"),
    ],
)
def test_reductions_that_cannot_be_computed_in_parts_raise(
    use: Change, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reductions, "WHOLE_NBYTES", 0)
    with pytest.raises(error, match=message):
        use(pair_of("compressed")[0][0])
