"""Codecs as plain data: equal when JSON gives them back, with all they learned, and never anything but codecs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sb3_compressed.codecs import BytesCodec, Codec, TrainableCodec, available_codecs, get_codec, registry
from sb3_compressed.codecs.base import Levels
from sb3_compressed.codecs.config import codec_config, codec_from_config
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.codecs.rle import Rle, RleJit
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.errors import CodecError, LevelOutOfRange, UnknownCodec

RELAXED = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])

LEARNING = [name for name in available_codecs() if isinstance(get_codec(name), TrainableCodec)]


def there_and_back(codec: Codec) -> Codec:
    return codec_from_config(json.loads(json.dumps(codec_config(codec))))


def scenes(n_frames: int = 120) -> NDArray[np.uint8]:
    """Return frames of a background on which something moves, from which there is much to learn."""
    rng = np.random.default_rng(0)
    background = np.repeat(rng.integers(0, 256, (1, 24, 6), np.uint8), 4, axis=2)
    frames = np.repeat(background, n_frames, axis=0)
    for step, frame in enumerate(frames):
        frame[step % 20 : step % 20 + 4, step * 7 % 20 : step * 7 % 20 + 4] = 255
    return frames


def learned(name: str) -> TrainableCodec:
    codec = get_codec(name)
    assert isinstance(codec, TrainableCodec)
    after = codec.train(scenes())
    assert after != codec
    return after


def levels() -> Iterator[tuple[str, int]]:
    """Yield each codec with the ends of its levels."""
    for name in available_codecs():
        of_codec: Levels | None = get_codec(name).levels
        for low, high in of_codec.ranges if of_codec else ():
            yield from ((name, low), (name, high))


def assert_reads_what_it_wrote(ours: Codec, theirs: Codec) -> None:
    """Hold that each decodes what the other encodes, and that they encode to the same."""
    for frames in (scenes(20), np.random.default_rng(1).integers(0, 256, (3, 24, 24), np.uint8), np.zeros((2, 5), "?")):
        payloads = theirs.encode(frames)
        assert ours.encode(frames) == payloads
        for codec in (ours, theirs):
            out = np.empty_like(frames)
            codec.decode_into(payloads, out)
            np.testing.assert_array_equal(out, frames)


@pytest.mark.parametrize("name", available_codecs())
def test_every_codec_comes_back(name: str) -> None:
    codec = get_codec(name)
    found = there_and_back(codec)
    assert found is not codec
    assert (type(found), found, repr(found), hash(found)) == (type(codec), codec, repr(codec), hash(codec))
    assert_reads_what_it_wrote(found, codec)


@pytest.mark.parametrize(("name", "level"), [*levels()])
def test_every_level_comes_back(name: str, level: int) -> None:
    codec = get_codec(name, compresslevel=level)
    assert there_and_back(codec) == codec
    assert there_and_back(codec).shorthand == codec.shorthand


@pytest.mark.parametrize("name", LEARNING)
def test_what_was_learned_comes_back(name: str) -> None:
    codec = learned(name)
    found = there_and_back(codec)
    assert isinstance(found, TrainableCodec)
    assert (found, found.nbytes) == (codec, codec.nbytes)
    assert found.nbytes > 100
    assert_reads_what_it_wrote(found, codec)
    assert there_and_back(found) == codec
    codec.release_encoder()
    assert there_and_back(codec) == found


@pytest.mark.parametrize("name", LEARNING)
def test_a_codec_that_came_back_goes_on_learning(name: str) -> None:
    codec, others = learned(name), 255 - scenes()[:, ::-1]
    found = there_and_back(codec)
    assert isinstance(found, TrainableCodec)
    assert found.train(others) == codec.train(others) != codec


@pytest.mark.parametrize("tries_zstd", [False, True])
def test_every_argument_of_delta_comes_back(tries_zstd: bool) -> None:
    codec = learned("delta")
    assert isinstance(codec, Delta)
    codec = Delta(-7, codec.dictionary, codec.references, tries_zstd)
    found = there_and_back(codec)
    assert isinstance(found, Delta)
    assert (found.compresslevel, found.dictionary, found.references, found.tries_zstd) == (
        *(-7, codec.dictionary, codec.references, tries_zstd),
    )
    assert type(found.references) is type(codec.references)
    assert (type(found.dictionary), type(found.references.content)) == (bytes, bytes)


@pytest.mark.parametrize("kind", [Rle, RleJit])
@pytest.mark.parametrize("runs_type", ["u1", "<u2", ">u4", np.uint64])
def test_run_lengths_of_a_dtype_come_back(kind: type[Rle], runs_type: Any) -> None:
    codec = kind(runs_type)
    assert there_and_back(codec) == codec
    assert_reads_what_it_wrote(there_and_back(codec), codec)


# -- codecs of users -----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def own_codecs() -> Iterator[None]:
    """Let tests register codecs, and forget them afterwards."""
    before = dict(registry._registry)
    yield
    registry._registry.clear()
    registry._registry.update(before)


class Plain(BytesCodec):
    """A codec that stores frames as they are, and is no dataclass."""

    name: ClassVar[str] = "plain"
    library_errors: ClassVar[tuple[type[Exception], ...]] = ()

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        return frame.tobytes()

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        return payload


@dataclass(frozen=True)
class Inner:
    """A part of what a codec is made with."""

    content: bytes = b""
    number: float = 0.5


@dataclass(frozen=True)
class Own(Plain):
    """A codec with arguments of every kind that can be stored, and with state that need not be."""

    name: ClassVar[str] = "own"

    spice: str = "salt"
    amount: float = 0.1
    is_hot: bool = False
    content: bytes = b"\0\xff"
    inner: Inner = Inner(b"inner")
    nothing: str | None = None
    made: list[int] = field(default_factory=list, init=False, repr=False, compare=False)


def test_a_codec_of_a_user_comes_back() -> None:
    registry.register_codec(Own)
    for codec in (Own(), Own("pepper", float("inf"), True, bytes(range(256)), Inner(b"", -0.0), "text")):
        codec.made.append(1)
        found = there_and_back(codec)
        assert isinstance(found, Own)
        assert found == codec
        assert found.made == []
        assert [type(getattr(found, name)) for name in ("content", "inner")] == [bytes, Inner]
        assert_reads_what_it_wrote(found, codec)


def test_fields_that_are_not_told_are_what_they_are_by_default() -> None:
    registry.register_codec(Own)
    assert codec_from_config({"name": "own", "fields": {}}) == Own()
    assert codec_from_config({"name": "own", "fields": {"spice": "pepper", "inner": {"number": 1}}}) == Own(
        "pepper", inner=Inner(number=1)
    )


def test_a_codec_that_is_no_dataclass_is_refused() -> None:
    with pytest.raises(CodecError, match="has to be a dataclass"):
        codec_config(Plain())
    registry.register_codec(Plain)
    with pytest.raises(CodecError):
        codec_from_config({"name": "plain", "fields": {}})


@pytest.mark.parametrize(
    "value", [[1], (1,), {"key": 1}, object(), np.zeros(2), 1j, {1}, Plain()], ids=lambda value: type(value).__name__
)
def test_arguments_that_json_cannot_hold_are_refused(value: Any) -> None:
    for codec in (Own(nothing=value), Own(inner=Inner(number=value))):
        with pytest.raises(CodecError, match=r"cannot store the argument .* of a codec"):
            codec_config(codec)


def test_a_codec_that_is_not_registered_is_unknown() -> None:
    told = codec_config(Own())
    with pytest.raises(UnknownCodec, match="there is no codec 'own'"):
        codec_from_config(told)


# -- what makes no sense -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        None,
        5,
        "zstd",
        [],
        {},
        {"name": "zstd"},
        {"fields": {}},
        {"name": None, "fields": {}},
        {"name": [], "fields": {}},
        {"name": 5, "fields": {}},
        {"name": "", "fields": {}},
        {"name": "zstd/5", "fields": {}},
        {"name": "auto", "fields": {}},
        {"name": "unknown", "fields": {}},
        {"name": "os:system", "fields": {}},
        {"name": "sb3_compressed.codecs.zstd:Zstd", "fields": {}},
        {"name": "zstd", "fields": None},
        {"name": "zstd", "fields": []},
        {"name": "zstd", "fields": ["compresslevel"]},
        {"name": "zstd", "fields": "compresslevel"},
        {"name": "zstd", "fields": {"unknown": 1}},
        {"name": "zstd", "fields": {"compresslevel": 3, "unknown": 1}},
        {"name": "zstd", "fields": {"_contexts": None}},
        {"name": "zstd", "fields": {"name": "x"}},
        {"name": "zstd", "fields": {"compresslevel": "3"}},
        {"name": "zstd", "fields": {"compresslevel": None}},
        {"name": "zstd", "fields": {"compresslevel": True}},
        {"name": "zstd", "fields": {"compresslevel": 3.0}},
        {"name": "zstd", "fields": {"compresslevel": [3]}},
        {"name": "none", "fields": {"compresslevel": 3}},
        {"name": "rle", "fields": {"runs_type": "f4"}},
        {"name": "rle", "fields": {"runs_type": "no dtype"}},
        {"name": "rle", "fields": {"runs_type": {"a": 1}}},
        {"name": "zstd-dict", "fields": {"dictionary": 5}},
        {"name": "zstd-dict", "fields": {"dictionary": None}},
        {"name": "zstd-dict", "fields": {"dictionary": "A"}},
        {"name": "zstd-dict", "fields": {"dictionary": "????"}},
        {"name": "zstd-dict", "fields": {"dictionary": "ä"}},
        {"name": "delta", "fields": {"references": None}},
        {"name": "delta", "fields": {"references": "text"}},
        {"name": "delta", "fields": {"references": {"unknown": 1}}},
        {"name": "delta", "fields": {"references": {"content": 5, "frame_nbytes": 1}}},
        {"name": "delta", "fields": {"references": {"content": "AAAA", "frame_nbytes": "1"}}},
        {"name": "delta", "fields": {"references": {"content": "AAAA", "frame_nbytes": 0}}},
        {"name": "delta", "fields": {"references": {"content": "AAAA", "frame_nbytes": 2}}},
        {"name": "delta", "fields": {"references": {"content": "AAAA", "frame_nbytes": -3}}},
        {"name": "delta", "fields": {"references": {"content": "AAAA", "frame_nbytes": 1.5}}},
        {"name": "delta", "fields": {"references": {"content": "AAAA", "frame_nbytes": None}}},
        {"name": "delta", "fields": {"references": {"content": "AAAA", "frame_nbytes": 10**30}}},
        {"name": "delta", "fields": {"references": {"content": "A" * 1024, "frame_nbytes": 1}}},
        {"name": "delta", "fields": {"compresslevel": 23}},
    ],
    ids=lambda data: str(data)[:60],
)
def test_data_that_makes_no_sense_is_refused(data: Any) -> None:
    with pytest.raises(CodecError):
        codec_from_config(data)


def test_a_level_out_of_range_says_the_range() -> None:
    with pytest.raises(LevelOutOfRange, match=r"-100\.\.-1 and 1\.\.22"):
        codec_from_config({"name": "zstd", "fields": {"compresslevel": 0}})


def test_a_long_message_is_cut() -> None:
    with pytest.raises(CodecError) as caught:
        codec_from_config({"fields": "x" * 100_000})
    assert len(str(caught.value)) < 500


json_data = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@RELAXED
@given(data=st.data(), name=st.sampled_from(available_codecs()), replacement=json_data)
def test_any_field_may_be_anything(data: st.DataObject, name: str, replacement: Any) -> None:
    """It is refused, or there is a codec that can be used."""
    told: Any = json.loads(json.dumps(codec_config(get_codec(name))))
    part = told
    while True:
        key = data.draw(st.sampled_from(sorted(part)))
        if not isinstance(part[key], dict) or not part[key] or data.draw(st.booleans()):
            break
        part = part[key]
    part[key] = replacement
    try:
        codec = codec_from_config(told)
    except CodecError:
        return
    frames = scenes(10)
    out = np.empty_like(frames)
    codec.decode_into(codec.encode(frames), out)
    np.testing.assert_array_equal(out, frames)


def test_a_dictionary_may_be_any_bytes() -> None:
    """What is not of zstd's making is taken for content, and decodes what it encoded."""
    rng = np.random.default_rng(0)
    for nbytes in (1, 7, 8, 100, 8192):
        codec = ZstdDict(dictionary=rng.bytes(nbytes))
        assert_reads_what_it_wrote(there_and_back(codec), codec)
