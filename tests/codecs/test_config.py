"""Configs of codecs: they survive JSON with all trained state, and untrusted ones only create codecs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from roundtrips import Plain, moving_boxes, roundtrip

from sb3_compressed.codecs import Codec, TrainableCodec, available_codecs, codec_from_config, get_codec, registry
from sb3_compressed.codecs.config import arguments_from_json, dtype_from_text
from sb3_compressed.codecs.delta import Delta, ReferenceFrames
from sb3_compressed.codecs.rle import Rle
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.errors import CodecError

pytestmark = pytest.mark.usefixtures("restored_registry")

TRAINABLE = [name for name in available_codecs() if isinstance(get_codec(name), TrainableCodec)]


def through_json(codec: Codec) -> Codec:
    return codec_from_config(json.loads(json.dumps(codec.get_config())))


def trained(name: str) -> TrainableCodec:
    codec = get_codec(name)
    assert isinstance(codec, TrainableCodec)
    result = codec.train(moving_boxes(120))
    assert result != codec
    return result


def assert_interchangeable(ours: Codec, theirs: Codec) -> None:
    """Verify that both codecs encode to the same payloads, and decode them."""
    for frames in (
        moving_boxes(20),
        np.random.default_rng(1).integers(0, 256, (3, 48, 64), np.uint8),
        np.zeros((2, 5), "?"),
    ):
        assert roundtrip(ours, frames) == roundtrip(theirs, frames)


@pytest.mark.parametrize("name", available_codecs())
def test_every_codec_survives_json(name: str) -> None:
    codec = get_codec(name)
    restored = through_json(codec)
    assert restored is not codec
    assert (type(restored), restored, repr(restored), hash(restored)) == (type(codec), codec, repr(codec), hash(codec))
    assert_interchangeable(restored, codec)


@pytest.mark.parametrize(
    ("codec", "config"),
    [
        (Rle("u2"), '{"name": "rle", "fields": {"runs_type": {"dtype": "<u2"}}}'),
        (ZstdDict(-5, b"dict"), '{"name": "zstd-dict", "fields": {"compresslevel": -5, "dictionary": "ZGljdA=="}}'),
        (
            Delta(3, references=ReferenceFrames(bytes(3), 3), tries_coder=False),
            '{"name": "delta", "fields": {"compresslevel": 3, "dictionary": "", '
            '"references": {"content": "AAAA", "frame_nbytes": 3}, "coder": "zstd", "tries_delta": true, '
            '"tries_coder": false, "tries_lz4": true, "tries_packed": true, "channels": 1, "channel_last_nbytes": 0, '
            '"finds_tiles": false, "is_short_lived": false}}',
        ),
        (
            Delta(-7, b"dict", ReferenceFrames(bytes(3), 3), "lz4", False, True, False, True, 3, 12, True, True),
            '{"name": "delta", "fields": {"compresslevel": -7, "dictionary": "ZGljdA==", '
            '"references": {"content": "AAAA", "frame_nbytes": 3}, "coder": "lz4", "tries_delta": false, '
            '"tries_coder": true, "tries_lz4": false, "tries_packed": true, "channels": 3, "channel_last_nbytes": 12, '
            '"finds_tiles": true, "is_short_lived": true}}',
        ),
    ],
    ids=["rle", "zstd-dict", "delta", "auto"],
)
def test_config_in_files_is_frozen(codec: Codec, config: str) -> None:
    assert json.dumps(codec.get_config()) == config
    assert codec_from_config(json.loads(config)) == codec


@pytest.mark.parametrize("name", TRAINABLE)
def test_trained_state_survives_json(name: str) -> None:
    codec = trained(name)
    restored = through_json(codec)
    assert isinstance(restored, TrainableCodec)
    assert (restored, restored.nbytes) == (codec, codec.nbytes)
    assert restored.nbytes > 100
    assert_interchangeable(restored, codec)
    assert through_json(restored) == codec
    codec.release_encoder()
    assert through_json(codec) == restored


# -- codecs of users -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inner:
    """A nested argument of a codec."""

    content: bytes = b""
    number: float = 0.5


@dataclass(frozen=True)
class Own(Plain):
    """A codec with an argument of every type that can be stored, and with derived state."""

    name: ClassVar[str] = "own"

    spice: str = "salt"
    amount: float = 0.1
    is_hot: bool = False
    content: bytes = b"\0\xff"
    inner: Inner = Inner(b"inner")
    nothing: str | None = None
    made: list[int] = field(default_factory=list, init=False, repr=False, compare=False)


def test_user_codec_survives_json() -> None:
    registry.register_codec(Own)
    for codec in (Own(), Own("pepper", float("inf"), True, bytes(range(256)), Inner(b"", -0.0), "text")):
        codec.made.append(1)
        restored = through_json(codec)
        assert isinstance(restored, Own)
        assert restored == codec
        assert restored.made == []
        assert [type(getattr(restored, name)) for name in ("content", "inner")] == [bytes, Inner]
        assert_interchangeable(restored, codec)


def test_missing_fields_have_their_defaults() -> None:
    registry.register_codec(Own)
    assert codec_from_config({"name": "own", "fields": {}}) == Own()
    assert codec_from_config({"name": "own", "fields": {"spice": "pepper", "inner": {"number": 1}}}) == Own(
        "pepper", inner=Inner(number=1)
    )


def test_codec_that_is_not_a_dataclass_has_no_config() -> None:
    with pytest.raises(CodecError, match="only a codec that is a dataclass"):
        Plain().get_config()
    registry.register_codec(Plain)
    with pytest.raises(CodecError):
        codec_from_config({"name": "plain", "fields": {}})


@pytest.mark.parametrize(
    "value", [[1], (1,), {"key": 1}, object(), np.zeros(2), 1j, {1}, Plain()], ids=lambda value: type(value).__name__
)
def test_arguments_that_json_cannot_represent_raise(value: Any) -> None:
    for codec in (Own(nothing=value), Own(inner=Inner(number=value))):
        with pytest.raises(CodecError, match=r"cannot store .*, which is not a number"):
            codec.get_config()


# -- malformed and untrusted configs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        None,
        "zstd",
        {},
        {"name": None, "fields": {}},
        {"name": "auto", "fields": {}},
        {"name": "unknown", "fields": {}},
        {"name": "sb3_compressed.codecs.zstd:Zstd", "fields": {}},
        {"name": "zstd", "fields": None},
        {"name": "zstd", "fields": ["compresslevel"]},
        {"name": "zstd", "fields": {"compresslevel": 3, "unknown": 1}},
        {"name": "zstd", "fields": {"compresslevel": "3"}},
        {"name": "zstd", "fields": {"compresslevel": True}},
        {"name": "none", "fields": {"compresslevel": 3}},
        {"name": "rle", "fields": {"runs_type": "f4"}},
        {"name": "zstd-dict", "fields": {"dictionary": 5}},
        {"name": "zstd-dict", "fields": {"dictionary": "A"}},
        {"name": "delta", "fields": {"references": None}},
        {"name": "delta", "fields": {"references": {"content": "AAAA", "frame_nbytes": "1"}}},
        {"name": "delta", "fields": {"references": {"content": "AAAA", "frame_nbytes": 2}}},
        {"name": "delta", "fields": {"references": {"content": "AAAA", "frame_nbytes": 10**30}}},
        {"name": "delta", "fields": {"references": {"content": "A" * 1024, "frame_nbytes": 1}}},
        {"name": "delta", "fields": {"compresslevel": 23}},
        {"name": "delta", "fields": {"coder": "lz4hc"}},
        {"name": "delta", "fields": {"objective": "small"}},
    ],
    ids=lambda data: str(data)[:60],
)
def test_malformed_config_raises(data: Any) -> None:
    with pytest.raises(CodecError):
        codec_from_config(data)
    with pytest.raises(CodecError):
        Delta.from_config(data)


def test_config_of_another_codec_raises() -> None:
    with pytest.raises(CodecError, match="not a config of codec 'zstd-dict'"):
        ZstdDict.from_config(get_codec("zstd").get_config())


@pytest.mark.parametrize("text", ["<f12", "<f16"])
def test_a_dtype_that_only_other_machines_have_raises(text: str) -> None:
    if np.dtype(np.longdouble).str == text:
        assert dtype_from_text(text) == np.longdouble
    else:  # the size of long double depends on the platform
        with pytest.raises(ValueError, match=f"this machine has no dtype '{text}'"):
            dtype_from_text(text)


def test_frames_without_a_dictionary_leave_the_codec_untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ZstdDict, "DICTIONARY_NBYTES", 16)  # too few, for which the trainer raises
    codec = ZstdDict()
    assert codec.train(moving_boxes(120)) is codec


def test_errors_show_the_beginning_of_any_data() -> None:
    data: Any
    for data, shown in ((10**5000, "a int"), ("x" * 200, f"'{'x' * 99}..."), ([1], "[1]")):
        with pytest.raises(ValueError, match=re.escape(shown)):
            dtype_from_text(data)


@dataclass
class AnyField:
    """Has a field of a type that is none of JSON's."""

    size: Any = 0


def test_a_field_of_another_type_accepts_what_json_represents() -> None:
    assert arguments_from_json(AnyField, {"size": "text"}) == {"size": "text"}
    with pytest.raises(CodecError, match="size"):
        arguments_from_json(AnyField, {"size": [3]})
