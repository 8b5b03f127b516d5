"""The contract of :class:`Codec`, tested on every registered codec at the ends of its levels."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray
from programs import run
from roundtrips import decode_guarded, peak_of_refusal, roundtrip

from sb3_compressed.codecs import Codec, TrainableCodec, available_codecs, get_codec
from sb3_compressed.codecs.delta import CODERS, Delta, ReferenceFrames
from sb3_compressed.errors import CodecError, CorruptPayload

RELAXED = examples(60)

DTYPES = (
    *("?", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"),
    *(">u2", ">i8", ">f4", "<c16", "<M8[s]", "V3"),
)

LAYOUTS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "contiguous": lambda frames: frames,
    "transposed": lambda frames: frames.T,
    "frames transposed": lambda frames: frames.swapaxes(-1, -2) if frames.ndim > 2 else frames,
    "strided": lambda frames: frames[..., ::2],
    "every other": lambda frames: frames[::2],
    "backwards": lambda frames: frames[::-1, ..., ::-1] if frames.ndim > 1 else frames[::-1],
    "column-major": np.asfortranarray,
}


def shorthands() -> Iterator[str]:
    """Yield every codec at its default level, the ends of its levels, and the negative one nearest to zero."""
    for name in available_codecs():
        levels = get_codec(name).levels
        if levels is None:
            yield name
            continue
        ends = {level for bounds in levels.ranges for level in bounds}
        yield from (f"{name}/{level}" for level in sorted(ends | {levels.default, -1}) if level in levels)


TRAINABLE = [name for name in available_codecs() if isinstance(get_codec(name), TrainableCodec)]
#: What training may choose with ``"auto"``: whether there are references, and how other frames are encoded.
AUTO = [f"auto, {references}, {coder}" for references in ("deltas", "no deltas") for coder in CODERS]


def trained(name: str) -> Codec:
    """Return a codec trained on frames like the ``runs`` below, which ``delta`` then encodes as differences."""
    sample = np.repeat(np.arange(4 * 100, dtype=np.uint16) // 33, 32).astype(np.uint8).reshape(100, 128)
    sample[np.arange(100), np.arange(100)] = 255
    codec = get_codec(name)
    assert isinstance(codec, TrainableCodec)
    return codec.train(sample)


def trained_auto(references: str, coder: str) -> Codec:
    """Return a codec of ``"auto"`` in one of the states that training may leave it in."""
    codec = trained("delta")
    assert isinstance(codec, Delta)
    found = codec.references if references == "deltas" else ReferenceFrames()
    return Delta(references=found, coder=coder, finds_tiles=True)


KINDS = [*available_codecs(), *(f"{name}, trained" for name in TRAINABLE), *AUTO]
#: Payloads are decoded without a level: one test is of all.
ALL = [*shorthands(), *KINDS[len(available_codecs()) :]]


@pytest.fixture(params=KINDS, scope="module")
def codec(request: pytest.FixtureRequest) -> Codec:
    name, *state = request.param.split(", ")
    if name == "auto":
        return trained_auto(*state)
    return trained(name) if state else get_codec(name)


FRAMES: list[NDArray[np.uint8]] = [  # three different ones of each kind, to cover all forms of payloads
    np.repeat(np.arange(12, dtype=np.uint8), 32).reshape(3, 128),
    np.random.default_rng(5).integers(0, 256, (3, 64), dtype=np.uint8),
    np.empty((3, 0), np.uint8),
]


@st.composite
def any_frames(draw: st.DrawFn) -> NDArray[Any]:
    """Draw frames of few distinct elements with arbitrary bits: signalling NaN, -0.0, infinities, subnormals, ..."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(npst.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=9))
    bits = np.frombuffer(draw(st.binary(min_size=4 * dtype.itemsize, max_size=4 * dtype.itemsize)), dtype=np.uint8)
    palette = (bits & 1 if dtype.kind == "b" else bits).view(dtype)
    if dtype.kind == "f":
        palette = np.append(palette, np.array([np.nan, -0.0, 0.0, np.inf, -np.inf], dtype))
    chosen = draw(npst.arrays(np.intp, shape, elements=st.integers(0, len(palette) - 1)))
    drawn = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](palette[chosen])
    drawn.flags.writeable = draw(st.booleans())
    return drawn


@RELAXED
@given(frames=any_frames())
def test_roundtrip_is_bit_exact_for_every_dtype_shape_and_layout(codec: Codec, frames: NDArray[Any]) -> None:
    payloads = roundtrip(codec, frames)
    assert [type(payload) for payload in payloads] == [bytes] * len(frames)
    assert [*codec.encode_batch(frames)] == payloads


@pytest.mark.parametrize("codec", ALL, indirect=True)
@pytest.mark.parametrize("shape", [(3, 84, 84), (1, 300_000)])
def test_roundtrip_of_small_and_large_frames(codec: Codec, shape: tuple[int, ...]) -> None:
    frames = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    frames[..., : shape[-1] // 2] //= 128  # half noise, half runs
    roundtrip(codec, frames)


def test_object_arrays_raise(codec: Codec) -> None:
    with pytest.raises(CodecError, match="objects"):
        codec.encode(np.array([[None]]))
    with pytest.raises(CodecError, match="objects"):
        codec.decode_into([b"payload"], np.empty((1, 3), object))


@pytest.mark.parametrize("shorthand", list(shorthands()))
def test_equality_hash_and_repr_follow_from_arguments(shorthand: str) -> None:
    codec = get_codec(shorthand)
    same = get_codec(codec.shorthand)
    assert same is not codec
    assert (same, hash(same), repr(same)) == (codec, hash(codec), repr(codec))
    assert eval(repr(codec), {type(codec).__name__: type(codec)}) == codec
    assert [other for other in map(get_codec, shorthands()) if other == codec] == [codec]


def test_copies_decode_payloads_of_the_original(codec: Codec) -> None:
    frames = np.arange(200, dtype=np.uint8).reshape(2, 100) // 9
    payloads = codec.encode(frames)
    for other in (copy.copy(codec), copy.deepcopy(codec), pickle.loads(pickle.dumps(codec))):
        out = np.empty_like(frames)
        other.decode_into(payloads, out)
        assert other == codec
        np.testing.assert_array_equal(out, frames)


def test_codec_is_thread_safe(codec: Codec) -> None:
    n_threads = 4
    at_once = Barrier(n_threads)

    def use(seed: int) -> bool:
        frames = np.random.default_rng(seed).integers(0, 1 + seed % 3, (8, 40, 40), dtype=np.uint8)
        out = np.empty_like(frames)
        at_once.wait()
        for _ in range(5):
            out.fill(255)
            codec.decode_into(codec.encode(frames), out)
            if not np.array_equal(out, frames):
                return False
        return True

    with ThreadPoolExecutor(n_threads) as pool:
        assert list(pool.map(use, range(n_threads))) == [True] * n_threads


def test_decoding_into_unsuitable_memory_raises(codec: Codec) -> None:
    payloads = codec.encode(np.zeros((4, 3), np.uint8))
    for out in (np.empty((4, 6), np.uint8)[:, ::2], np.empty((3, 4), np.uint8).T):
        with pytest.raises(ValueError, match="C-contiguous"):
            codec.decode_into(payloads, out)
    for room in (0, 3, 5):
        with pytest.raises(ValueError, match=f"room for {room} frames"):
            codec.decode_into(payloads, np.empty((room, 3), np.uint8))


# -- damaged payloads ------------------------------------------------------------------------------------------------


def test_payload_of_another_length_raises_with_its_index(codec: Codec) -> None:
    for frames in FRAMES:
        first, payload, last = codec.encode(frames)
        truncated = [payload[:length] for length in range(len(payload))]
        continued = [payload + garbage for garbage in (b"\0", b"\xff" * 9, payload) if garbage]
        of_other_sizes = [codec.encode(np.full((1, n), 3, np.uint8))[0] for n in (1, 63, 65, 127, 129, 5000)]
        for damaged in truncated + continued + of_other_sizes:
            with pytest.raises(CorruptPayload, match="payload 1 of the batch") as caught:
                codec.decode_into([first, damaged, last], np.empty_like(frames))
            assert (caught.value.index, caught.value.slot) == (1, None)


def test_flipped_bits_never_cause_writes_outside_the_output(codec: Codec) -> None:
    for frames in FRAMES:
        payload = codec.encode(frames)[1]
        for bit in range(8 * len(payload)):
            flipped = bytearray(payload)
            flipped[bit // 8] ^= 1 << bit % 8
            decode_guarded(codec, bytes(flipped), frames.shape[1])


@RELAXED
@given(head=st.integers(0, 40), middle=st.binary(max_size=40), tail=st.integers(0, 40), size=st.integers(0, 200))
def test_arbitrary_bytes_never_cause_writes_outside_the_output(
    codec: Codec, head: int, middle: bytes, tail: int, size: int
) -> None:
    [payload] = codec.encode((np.arange(size, dtype=np.uint8) // 5)[np.newaxis])
    decode_guarded(codec, middle, size)
    decode_guarded(codec, payload[:head] + middle + payload[len(payload) - tail :], size)


@pytest.mark.parametrize("name", available_codecs())
def test_payload_of_a_huge_frame_raises_without_allocating_it(name: str) -> None:
    codec = get_codec(name)
    [payload] = codec.encode(np.zeros((1, 20_000_000), np.uint8))
    assert peak_of_refusal(codec, payload) < 1_000_000 + len(payload)


# -- memory ----------------------------------------------------------------------------------------------------------

KEEP_PAYLOADS = """
import sys, numpy as np, psutil, zstandard
from sb3_compressed.codecs import get_codec

def batches(n):
    rng = np.random.default_rng(0)
    for _ in range(n):
        frames = np.zeros((100, 84 * 84), np.uint8)
        frames[:, :2000] = rng.integers(0, 256, (100, 2000), dtype=np.uint8)
        yield frames

compressor = zstandard.ZstdCompressor()
library = lambda frames: [compressor.compress(frame.data) for frame in frames]
encode = library if sys.argv[1] == "library" else get_codec(sys.argv[1]).encode
for frames in batches(2):
    encode(frames)
before = psutil.Process().memory_info().rss
payloads = [payload for frames in batches(100) for payload in encode(frames)]
print((psutil.Process().memory_info().rss - before) / sum(map(len, payloads)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory depends on the allocator")
@pytest.mark.parametrize("name", ["zstd", "delta", "library"])
def test_stored_payloads_take_the_memory_of_their_content(name: str) -> None:
    """The ``library`` case is a control with the objects that zstandard shrinks in place; see :class:`Codec`."""
    rss_per_byte = float(run(KEEP_PAYLOADS, name))
    if name == "library":
        assert rss_per_byte > 2
    else:
        assert rss_per_byte < 1.5
