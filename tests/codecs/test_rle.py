"""``rle`` and ``rle-jit``: one wire format for two implementations."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from sb3_compressed.codecs import get_codec
from sb3_compressed.codecs.rle import Rle, RleJit, smallest_runs_type
from sb3_compressed.errors import CodecError, CorruptPayload

RELAXED = examples(200)

RUNS_TYPES = (None, "u1", "u2", "u4", "u8")

either = pytest.mark.parametrize("rle", [Rle, RleJit])


def decoded(codec: Rle, payload: bytes, like: NDArray[Any]) -> NDArray[Any]:
    out = np.empty_like(like)
    codec.decode_into([payload], out[np.newaxis])
    return out


@RELAXED
@given(
    runs=st.lists(st.tuples(st.integers(1, 700), st.integers(0, 3)), max_size=8),
    dtype=st.sampled_from(["?", "u1", "<i2", "<f2", "<f4", ">f8", "<c16"]),
    runs_type=st.sampled_from(RUNS_TYPES),
)
def test_numpy_and_numba_write_and_read_the_same_bytes(
    runs: list[tuple[int, int]], dtype: str, runs_type: str | None
) -> None:
    frame = np.repeat([value for _, value in runs], [length for length, _ in runs]).astype(dtype)
    numpy, numba = Rle(runs_type), RleJit(runs_type)
    [payload] = numpy.encode(frame[np.newaxis])
    assert numba.encode(frame[np.newaxis]) == [payload]
    for codec in (numpy, numba):
        np.testing.assert_array_equal(decoded(codec, payload, frame), frame, strict=True)


@RELAXED
@given(frames=npst.arrays(np.uint8, (2, 24), elements=st.integers(0, 2)))
def test_numpy_and_numba_write_the_same_bytes_for_short_runs(frames: NDArray[np.uint8]) -> None:
    for frame_type in ("u1", "<u2", "<u4", "V3"):
        assert Rle().encode(frames.view(frame_type)) == RleJit().encode(frames.view(frame_type))


@RELAXED
@given(payload=st.binary(max_size=30), dtype=st.sampled_from(["u1", "<u2", "<u4"]), runs=st.sampled_from([0, 1, 2, 8]))
def test_numpy_and_numba_reject_the_same_payloads(payload: bytes, dtype: str, runs: int) -> None:
    results = []
    for codec in (Rle(), RleJit()):
        out = np.zeros((1, 24), dtype)
        try:
            codec.decode_into([bytes([runs]) + payload], out)
        except CorruptPayload as error:
            results.append(str(error).encode())
        else:
            results.append(out.tobytes())
    assert results[0] == results[1]


@either
@pytest.mark.parametrize(
    ("n_elems", "runs_type", "runs"),
    [
        (254, "u1", "fe"),
        (255, "u1", "ff"),
        (256, "u1", "ff 01"),
        (510, "u1", "ff ff"),
        (1000, "u1", "ff ff ff eb"),
        (255, None, "ff"),
        (256, None, "0001"),
        (1000, "u2", "e803"),
        (65535, "u2", "ffff"),
        (65536, "u2", "ffff 0100"),
        (65535, None, "ffff"),
        (65536, None, "00000100"),
        (1000, "u4", "e8030000"),
        (1000, "u8", "e803000000000000"),
        (1000, ">u2", "e803"),
    ],
)
def test_long_runs_are_split_into_full_ones_and_a_remainder(
    rle: type[Rle], n_elems: int, runs_type: str | None, runs: str
) -> None:
    frame = np.full((1, n_elems), 0x0107, "<u2")
    lengths = bytes.fromhex(runs)
    codec = rle(runs_type)
    run_size = smallest_runs_type(n_elems).itemsize if runs_type is None else np.dtype(runs_type).itemsize
    [payload] = codec.encode(frame)
    assert payload == bytes([run_size]) + lengths + bytes.fromhex("0701") * (len(lengths) // run_size)
    np.testing.assert_array_equal(decoded(codec, payload, frame), frame)


@either
@pytest.mark.parametrize("runs_type", RUNS_TYPES)
def test_payload_of_any_run_type_is_decoded(rle: type[Rle], runs_type: str | None) -> None:
    frame = np.repeat(np.arange(5, dtype=np.uint16), 500)
    [payload] = Rle(runs_type).encode(frame[np.newaxis])
    for reader in RUNS_TYPES:
        np.testing.assert_array_equal(decoded(rle(reader), payload, frame), frame)


@either
@pytest.mark.parametrize("runs_type", RUNS_TYPES)
@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_incompressible_frames_grow_by_one_byte(rle: type[Rle], runs_type: str | None, dtype: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 64)).astype(dtype)
    alternating = np.arange(64).reshape(1, 64).astype(dtype) % 2
    for frames in (noise, alternating):
        assert rle(runs_type).encode(frames) == [b"\0" + frame.tobytes() for frame in frames]


@either
@pytest.mark.parametrize("n_values", [0, 1, 2, 30])
def test_runs_are_written_only_if_they_are_smaller(rle: type[Rle], n_values: int) -> None:
    for length in range(1, 5):
        frame = np.repeat(np.arange(n_values, dtype=np.uint8), length)
        [payload] = rle().encode(frame[np.newaxis])
        raw, runs = b"\0" + frame.tobytes(), b"\1" + bytes([length] * n_values) + bytes(range(n_values))
        assert payload == (runs if len(runs) < len(raw) else raw)


@either
@pytest.mark.parametrize("bits", [(0x7FC00000, 0x7FC00001), (0x7FA00000, 0xFFC00000), (0x00000000, 0x80000000)])
def test_equal_values_with_different_bits_are_different_runs(rle: type[Rle], bits: tuple[int, int]) -> None:
    frame = np.repeat(np.array(bits, "<u4"), 20)
    [payload] = rle().encode(frame.view("<f4")[np.newaxis])
    assert payload == bytes([1, 20, 20]) + np.array(bits, "<u4").tobytes()
    assert decoded(rle(), payload, frame.view("<f4")).tobytes() == frame.tobytes()


@either
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("", "it is empty"),
        ("00 0102", "it has 2 raw bytes, but a frame has 8"),
        ("03 08080808 07", "header byte is 3"),
        ("01 08", "its 2 bytes are not whole runs"),
        ("01 0801 07", "not whole runs"),
        ("01 0101010101010101 0101010101010101", "not whole runs that are smaller than a frame of 8 bytes"),
        ("01 07 07", "do not add up to the 8 elements"),
        ("01 09 07", "do not add up"),
        ("01 0008 0707", "do not add up"),
        ("01 0800 0707", "do not add up"),
        ("01", "do not add up"),
        ("02 0800 0000 07", "not whole runs"),
        ("02 08000000 0707", "do not add up"),
        ("02 0100 ffff 0707", "do not add up"),
        ("04 08000080 07", "do not add up"),
    ],
)
def test_corrupt_payload_error_states_the_reason(rle: type[Rle], payload: str, reason: str) -> None:
    with pytest.raises(CorruptPayload, match=reason):
        rle().decode_into([bytes.fromhex(payload)], np.empty((1, 8), np.uint8))


@either
def test_run_lengths_that_overflow_to_the_right_sum_raise(rle: type[Rle]) -> None:
    lengths = np.array([2**63, 2**63, 2**64 - 1, 65], "<u8")  # modulo 2**64: the 64 elements of the frame
    assert int(lengths.sum()) == 64
    with pytest.raises(CorruptPayload, match="do not add up to the 64"):
        rle().decode_into([b"\x08" + lengths.tobytes() + b"abcd"], np.empty((1, 64), np.uint8))


@either
@pytest.mark.parametrize("runs_type", ["i1", "f4", "?", "u1,u1"])
def test_invalid_runs_type_error_lists_the_valid_ones(rle: type[Rle], runs_type: str) -> None:
    with pytest.raises(CodecError, match="must be one of uint8, uint16, uint32, uint64, got"):
        rle(runs_type)


@either
def test_runs_type_is_compared_hashed_and_copied(rle: type[Rle]) -> None:
    codec = rle("u2")
    assert codec == rle(np.uint16) == rle(np.dtype(">u2")) == get_codec(rle.name, runs_type="u2")
    assert hash(codec) == hash(rle(np.uint16))
    assert rle() != codec != rle("u4")
    assert pickle.loads(pickle.dumps(codec)) == copy.deepcopy(codec) == codec
    assert eval(repr(codec), {rle.__name__: rle, "dtype": np.dtype}) == codec


@pytest.mark.parametrize(("n_elems", "name"), [(0, "u1"), (255, "u1"), (256, "u2"), (65536, "u4"), (2**32, "u8")])
def test_smallest_runs_type_fits_a_run_of_the_whole_frame(n_elems: int, name: str) -> None:
    assert smallest_runs_type(n_elems) == np.dtype(name)
