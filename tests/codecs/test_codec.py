"""The base classes of codecs: levels, errors, and the contract of a minimal codec."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from gathering import damage
from numpy.typing import NDArray
from roundtrips import roundtrip

from sb3_compressed.arrays import CompressedArray
from sb3_compressed.codecs import BytesCodec, Codec, Levels
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.codecs.zstd import Zstd
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.errors import CorruptPayload, LevelOutOfRange

LEVELS = Levels(((-7, -1), (2, 5)), default=3)


@dataclass(frozen=True)
class Caesar(BytesCodec):
    """A codec that adds its level to every byte, after one header byte."""

    name: ClassVar[str] = "caesar"
    levels: ClassVar[Levels] = LEVELS
    library_errors: ClassVar[tuple[type[Exception], ...]] = (ArithmeticError,)

    compresslevel: int = LEVELS.default

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        return b"C" + (frame + np.uint8(self.compresslevel % 256)).tobytes()

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        if not payload:
            raise ArithmeticError("no bytes")
        if payload[:1] != b"C":
            raise CorruptPayload("its header byte is not C", index=99)
        return (np.frombuffer(payload[1:], np.uint8) - np.uint8(self.compresslevel % 256)).tobytes()


def test_level_out_of_range_error_states_the_range() -> None:
    with pytest.raises(LevelOutOfRange, match=r"'caesar' supports the levels -7\.\.-1 and 2\.\.5, got 6"):
        Caesar(6)


def test_codec_with_two_methods_fulfills_the_contract() -> None:
    frames = np.arange(12, dtype=">i4").reshape(2, 3, 2).T
    codec = Caesar(-5)
    out = np.empty(frames.shape, frames.dtype)
    codec.decode_into(codec.encode(frames), out)
    np.testing.assert_array_equal(out, frames)
    assert pickle.loads(pickle.dumps(codec)) == codec != Caesar()
    assert codec.shorthand == "caesar/-5"
    codec.prepare()


@dataclass(frozen=True)
class Inverted(Codec):
    """A codec with the three members that every one needs."""

    name: ClassVar[str] = "inverted"

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        return [bytes(255 - np.frombuffer(frame.tobytes(), np.uint8)) for frame in frames]

    def decode_into(self, payloads: Sequence[bytes], out: NDArray[Any]) -> None:
        for index, payload in enumerate(payloads):
            if len(payload) != out[index].nbytes:
                raise CorruptPayload("it has another length", index)
            out[index] = (255 - np.frombuffer(payload, np.uint8)).view(out.dtype).reshape(out.shape[1:])


@pytest.mark.parametrize("dtype", ["u1", "<f4"])
def test_a_codec_that_decodes_whole_batches_decodes_stacks(dtype: str) -> None:
    film = np.random.default_rng(0).integers(0, 256, (23, 8, 8)).astype(dtype)
    stacks = np.stack([film[step : step + 4] for step in range(20)])
    array = CompressedArray((20, 1, 4, 8, 8), dtype, Inverted(), frame_stack=4)
    array[:, 0] = stacks
    np.testing.assert_array_equal(array[:, 0], stacks)
    damage(array, 7, 0)  # of its last frame alone
    np.testing.assert_array_equal(array[8:, 0], stacks[8:])
    for rows in (slice(7, 8), slice(None), [3, 5, 6, 7, 8]):
        with pytest.raises(CorruptPayload, match="another length") as caught:
            array[rows]
        assert caught.value.slot == (7, 0)


class Marking:
    """A mixin with a byte of its own before each payload."""

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        return b"M" + super().compress_frame(frame)  # type: ignore[misc,no-any-return]

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        return super().decompress_frame(payload[1:], nbytes)  # type: ignore[misc,no-any-return]


@dataclass(frozen=True)
class MixedZstd(Marking, Zstd):
    """Zstandard with the mixin."""

    name: ClassVar[str] = "mixed-zstd"


@dataclass(frozen=True)
class MixedZstdDict(Marking, ZstdDict):
    """Zstandard with a dictionary, and the mixin."""

    name: ClassVar[str] = "mixed-zstd-dict"


@pytest.mark.parametrize(("codec", "parent"), [(MixedZstd(), Zstd()), (MixedZstdDict(), ZstdDict())])
def test_a_codec_with_another_format_does_not_inherit_the_batch_methods_of_its_parent(
    codec: BytesCodec, parent: BytesCodec
) -> None:
    frames = np.arange(3000, dtype=np.int32).reshape(3, 1000)
    payloads = roundtrip(codec, frames)
    assert [payload[:1] for payload in payloads] == [b"M"] * 3
    assert [payload[1:] for payload in payloads] == parent.encode(frames)


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (b"", r"caesar cannot decode it \(no bytes\)"),
        (b"D12", "its header byte is not C"),
        (b"C1", "it decodes to 1 bytes, but a frame has 2"),
        (b"C123", "it decodes to 3 bytes, but a frame has 2"),
    ],
)
def test_decoding_error_names_the_payload(damaged: bytes, reason: str) -> None:
    with pytest.raises(CorruptPayload, match=f"corrupt payload 2 of the batch: {reason}") as caught:
        Caesar().decode_into([b"C12", b"C34", damaged], np.empty((3, 2), np.uint8))
    assert caught.value.index == 2


def test_errors_other_than_library_errors_propagate() -> None:
    class Broken(Caesar):
        def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
            raise NotImplementedError

    with pytest.raises(NotImplementedError):
        Broken().decode_into([b"C1"], np.empty((1, 1), np.uint8))


@pytest.mark.parametrize("duplicate", [lambda error: error, lambda error: pickle.loads(pickle.dumps(error))])
def test_corrupt_payload_error_names_its_slot_even_after_pickling(
    duplicate: Callable[[CorruptPayload], CorruptPayload],
) -> None:
    error = duplicate(CorruptPayload("it is odd", 3, (8, 1)))
    assert (error.reason, error.index, error.slot) == ("it is odd", 3, (8, 1))
    assert str(error) == "corrupt payload in slot (8, 1): it is odd"


def test_training_that_returns_another_class_raises() -> None:
    class Other(ZstdDict):
        pass

    class Changing(ZstdDict):
        """Returns a codec whose payloads could not be decoded with its own."""

        def train(self, frames: NDArray[Any]) -> ZstdDict:
            return Other(self.compresslevel)

    array = CompressedArray((1, 200, 3, 5), codec=Changing(), num_threads=1)
    frames = np.arange(200 * 15, dtype=np.uint8).reshape(1, 200, 3, 5)
    with pytest.raises(TypeError, match=r"Changing.train must return a codec of the same class, got .*Other"):
        array[0] = frames[0]


def test_subclasses_of_delta_may_override_encode_alone() -> None:
    class Counting(Delta):
        n_calls: ClassVar[int] = 0

        def encode(self, frames: NDArray[Any]) -> list[bytes]:
            Counting.n_calls += 1
            return super().encode(frames)

    array = CompressedArray((4, 1, 30, 30), np.uint8, Counting(), frame_stack=None)
    array[:, 0] = frames = np.random.default_rng(0).integers(0, 256, (4, 30, 30), np.uint8)
    np.testing.assert_array_equal(array[:, 0], frames)
    assert Counting.n_calls
