"""``rle``: its format, compared with an encoder and a decoder in plain Python."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from sb3_compressed.codecs import get_codec
from sb3_compressed.codecs.rle import Rle, smallest_runs_type
from sb3_compressed.errors import CodecError, CorruptPayload

RELAXED = examples(120)


def encoded(frame: bytes, elem_size: int, run_size: int) -> bytes:
    longest = 256**run_size - 1
    runs = []
    for elem, group in groupby(frame[at : at + elem_size] for at in range(0, len(frame), elem_size)):
        n = len([*group])
        runs += [(min(longest, n - start).to_bytes(run_size, "little"), elem) for start in range(0, n, longest)]
    payload = b"".join((bytes([run_size]), *(length for length, _ in runs), *(elem for _, elem in runs)))
    return payload if len(payload) <= len(frame) else b"\0" + frame


def decoded(payload: bytes, elem_size: int, nbytes: int) -> bytes | None:
    """Return the frame of a payload, ``None`` if it is corrupt."""
    run_size, content = payload[0], payload[1:]
    if run_size == 0:
        return content if len(content) == nbytes else None
    n_runs, rest = divmod(len(content), run_size + elem_size)
    if run_size not in (1, 2, 4, 8) or rest or len(payload) > nbytes:
        return None
    lengths = [int.from_bytes(content[k * run_size :][:run_size], "little") for k in range(n_runs)]
    if 0 in lengths or sum(lengths) * elem_size != nbytes:
        return None
    return b"".join(content[n_runs * run_size + k * elem_size :][:elem_size] * lengths[k] for k in range(n_runs))


@RELAXED
@given(
    runs=st.lists(st.tuples(st.integers(1, 3) | st.integers(1, 700), st.integers(0, 3)), max_size=24),
    dtype=st.sampled_from(["?", "u1", "<i2", "<f2", "S3", ">f8", "<c16"]),
    runs_type=st.sampled_from([None, "u1", "u2", "u4", "u8"]),
)
def test_payloads_are_those_of_the_format(runs: list[tuple[int, int]], dtype: str, runs_type: str | None) -> None:
    frame = np.repeat([value for _, value in runs], [length for length, _ in runs]).astype(dtype)
    run_size = (smallest_runs_type(frame.size) if runs_type is None else np.dtype(runs_type)).itemsize
    [payload] = Rle(runs_type).encode(frame[np.newaxis])
    assert payload == encoded(frame.tobytes(), frame.itemsize, run_size)
    out = np.empty_like(frame)
    get_codec("rle-jit").decode_into([payload], out[np.newaxis])
    np.testing.assert_array_equal(out, frame)


@RELAXED
@given(
    payload=st.binary(max_size=30) | st.lists(st.integers(0, 3), max_size=12).map(bytes),
    elem_size=st.sampled_from([1, 2, 4]),
    run_size=st.sampled_from([0, 1, 2, 4, 8, 3]),
)
def test_any_payload_is_decoded_as_by_the_format(payload: bytes, elem_size: int, run_size: int) -> None:
    payload = bytes([run_size]) + payload
    expected = decoded(payload, elem_size, 24)
    out = np.zeros((1, 24 // elem_size), f"u{elem_size}")
    if expected is None:
        with pytest.raises(CorruptPayload):
            Rle().decode_into([payload], out)
    else:
        Rle().decode_into([payload], out)
        assert out.tobytes() == expected


@pytest.mark.parametrize(
    ("n_elems", "runs_type", "runs"),
    [
        (510, "u1", "ff ff"),
        (1000, "u1", "ff ff ff eb"),
        (65536, "u2", "ffff 0100"),
        (65536, None, "00000100"),
        (1000, "u8", "e803000000000000"),
        (1000, ">u2", "e803"),
    ],
)
def test_long_runs_are_split_into_full_ones_and_a_remainder(n_elems: int, runs_type: str | None, runs: str) -> None:
    frame = np.full((1, n_elems), 0x0107, "<u2")
    lengths = bytes.fromhex(runs)
    run_size = smallest_runs_type(n_elems).itemsize if runs_type is None else np.dtype(runs_type).itemsize
    assert Rle(runs_type).encode(frame) == [
        bytes([run_size]) + lengths + bytes.fromhex("0701") * (len(lengths) // run_size)
    ]


@pytest.mark.parametrize(
    "payload",
    [
        "", "00 0102", "03 08080808 07", "01 0801 07", "01 0101010101010101 0101010101010101", "01 07 07",
        "08 0000000000000080", "04 08000080 07",
    ],
)  # fmt: skip
def test_corrupt_payload_error_names_the_payload(payload: str) -> None:
    with pytest.raises(CorruptPayload, match="not the runs of a frame of 8 bytes") as caught:
        Rle().decode_into([b"\x01\x08\x01", bytes.fromhex(payload)], np.empty((2, 8), np.uint8))
    assert caught.value.index == 1


def test_run_lengths_that_overflow_to_the_right_sum_raise() -> None:
    lengths = np.array([2**63, 2**63, 2**64 - 1, 65], "<u8")  # modulo 2**64: the 64 elements of the frame
    assert int(lengths.sum()) == 64
    with pytest.raises(CorruptPayload, match="not the runs"):
        Rle().decode_into([b"\x08" + lengths.tobytes() + b"abcd"], np.empty((1, 64), np.uint8))


@pytest.mark.parametrize("runs_type", ["i1", "f4", "?", "u1,u1"])
def test_invalid_runs_type_error_lists_the_valid_ones(runs_type: str) -> None:
    with pytest.raises(CodecError, match="uint8, uint16, uint32, uint64"):
        Rle(runs_type)
