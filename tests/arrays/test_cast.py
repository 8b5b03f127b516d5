"""Casting to an array's dtype: values are preserved, or an error or a warning is issued."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sb3_compressed.arrays.cast import cast_values, clip_values

INF = float("inf")


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([0, 255]), "u1"),
        (np.array([-128.0, 127.0]), "i1"),
        (np.array([True, False]), "u1"),
        (np.array([1, 0]), "?"),
        (np.array([0.0, 1.0, -0.0]), "?"),
        (np.array([2**63], "u8"), "f4"),
        (np.array([2.0**62]), "i8"),
        (np.array([3], ">i4"), "<i4"),
        (np.array([-1, 7], "i1"), "i8"),
    ],
)
def test_values_that_the_dtype_can_represent_are_cast(values: Any, dtype: str) -> None:
    cast = cast_values(values, np.dtype(dtype))
    assert cast.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(cast, values)


def test_values_are_rounded_to_a_narrower_float_dtype() -> None:
    assert cast_values(np.array([0.1, 1 / 3]), np.dtype("f2")).tolist() == [np.float16(0.1), np.float16(1 / 3)]
    assert cast_values(np.array([2**60 + 1]), np.dtype("f4")).tolist() == [float(2**60)]


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        (np.array([0, 256]), "u1", "int64 do not fit an array of dtype uint8: 256 would become 0"),
        (np.array([[1.0], [0.5]]), "u1", "0.5 would become 0"),
        (np.array([-1]), "u8", "-1 would become 18446744073709551615"),
        (np.array([2**63], "u8"), "i8", "9223372036854775808 would become"),
        (np.array([2.0**63]), "i8", "9.2233.* would become"),
        (np.array([2.0**64]), "u8", "1.8446.* would become"),
        (np.array([np.nan]), "i4", "nan would become"),
        (np.array([INF]), "u1", "inf would become"),
        (np.array([2]), "?", "2 would become True"),
        (np.array([0.5]), "?", "0.5 would become True"),
    ],
)
def test_values_that_the_dtype_cannot_represent_raise(values: Any, dtype: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cast_values(values, np.dtype(dtype))


@pytest.mark.parametrize("values", [["a"], [None], [b"a"], [1j], [2**70], np.array(["2000"], "M8[Y]")])
def test_values_that_are_not_numeric_raise(values: Any) -> None:
    with pytest.raises(TypeError, match="cannot store values of dtype"):
        cast_values(np.asarray(values), np.dtype("f4"))


@pytest.mark.parametrize(
    ("values", "dtype", "clipped"),
    [
        (np.array([-1, 0, 255, 256]), "u1", [0, 0, 255, 255]),
        (np.array([-5.9, 5.9, 300.0, INF, -INF]), "u1", [0, 5, 255, 255, 0]),
        (np.array([200], "u1"), "i1", [127]),
        (np.array([-3, 3], "i1"), "u8", [0, 3]),
        (np.array([1e300, -1e300]), "f4", [INF, -INF]),
        (np.array([True]), "i1", [1]),
        (np.array([0, 3]), "?", [False, True]),
        (np.array([1e10, -1e10], "f4"), "i4", [2**31 - 1, -(2**31)]),
        (np.array([1e300, -1e300]), "i8", [2**63 - 1, -(2**63)]),
    ],
)
def test_a_narrower_dtype_clips_and_truncates(values: Any, dtype: str, clipped: list[Any]) -> None:
    narrow = clip_values(values, np.dtype(dtype))
    assert (narrow.dtype, narrow.tolist()) == (np.dtype(dtype), clipped)
