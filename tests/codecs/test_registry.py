"""The registry: shorthands, errors for invalid ones, and codecs of users."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from roundtrips import Plain

import sb3_compressed.codecs
from sb3_compressed.codecs import Codec, available_codecs, get_codec, register_codec
from sb3_compressed.codecs.raw import Raw
from sb3_compressed.errors import CodecError, InvalidShorthand, LevelOutOfRange, UnknownCodec

SHIPPED = {
    "none", "rle", "rle-jit", "gzip", "igzip", "zstd", "zstd-dict", "delta", "packed", "lz4-frame", "lz4-block",
}  # fmt: skip


@dataclass(frozen=True)
class Mine(Plain):
    """A codec of a user, without compression."""

    name: ClassVar[str] = "mine"

    spice: str = "salt"


def concrete_codecs() -> Iterator[type[Codec]]:
    """Yield every codec class that this package defines, registered or not."""
    package = sb3_compressed.codecs
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for _, member in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if member.__module__ != module.name:  # imported; in Python 3.10 also NDArray[...], which is not a class
                continue
            if issubclass(member, Codec) and not inspect.isabstract(member):
                yield member


def test_every_codec_of_the_package_is_registered() -> None:
    found = {codec.name: codec for codec in concrete_codecs()}
    assert set(found) == SHIPPED <= set(available_codecs())
    assert {name: type(get_codec(name)) for name in found} == found


@pytest.mark.parametrize(
    ("shorthand", "name", "level"),
    [
        ("igzip/3", "igzip", 3),
        ("gzip0", "gzip", 0),
        ("zstd5", "zstd", 5),
        ("zstd-5", "zstd", -5),
        ("zstd/-5", "zstd", -5),
        ("lz4-frame/-5", "lz4-frame", -5),
        ("zstd", "zstd", 3),
        ("gzip", "gzip", 6),
    ],
)
def test_shorthand_is_a_name_and_a_level(shorthand: str, name: str, level: int) -> None:
    codec = get_codec(shorthand)
    assert (codec.name, codec.shorthand) == (name, f"{name}/{level}")
    assert codec == get_codec(name, compresslevel=level) == get_codec(codec.shorthand)


def test_codec_is_returned_unchanged_and_takes_no_arguments() -> None:
    codec = get_codec("zstd7")
    assert get_codec(codec) is codec
    with pytest.raises(CodecError, match=r"Zstd\(compresslevel=7\) takes no arguments, got {'compresslevel': 3}"):
        get_codec(codec, compresslevel=3)


@pytest.mark.parametrize(
    ("shorthand", "error", "meant"),
    [
        ("zstd_dict", UnknownCodec, "'zstd-dict'"),
        ("ZSTD", UnknownCodec, "'zstd'"),
        ("lz4", UnknownCodec, "'lz4-block' or 'lz4-frame'"),
        ("rle-old", UnknownCodec, "'rle'"),  # of sb3-extra-buffers
    ],
)
def test_error_for_a_typo_suggests_a_codec(shorthand: str, error: type, meant: str) -> None:
    with pytest.raises(error, match=rf"{shorthand}.; did you mean {meant}"):
        get_codec(shorthand)


@pytest.mark.parametrize(
    ("shorthand", "error"),
    [
        ("sstd3", UnknownCodec),
        ("lz4-frame5", InvalidShorthand),
        ("lz4/3", UnknownCodec),
        ("", InvalidShorthand),
        ("3", InvalidShorthand),
        ("zstd--3", InvalidShorthand),
        ("zstd/", InvalidShorthand),
        ("zstd/+5", InvalidShorthand),
        (5, InvalidShorthand),
    ],
)
def test_error_for_an_invalid_shorthand_lists_the_available_codecs(shorthand: Any, error: type) -> None:
    with pytest.raises(error) as caught:
        get_codec(shorthand)
    assert isinstance(caught.value, ValueError)
    for name in available_codecs():
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("shorthand", "kwargs", "error", "message"),
    [
        ("zstd0", {}, LevelOutOfRange, r"-100\.\.-1 and 1\.\.22, got 0"),
        ("zstd23", {}, LevelOutOfRange, r"-100\.\.-1 and 1\.\.22, got 23"),
        ("gzip/-1", {}, LevelOutOfRange, r"0\.\.9, got -1"),
        ("gzip", {"compresslevel": True}, LevelOutOfRange, r"0\.\.9, got True"),
        ("gzip", {"compresslevel": "3"}, LevelOutOfRange, r"0\.\.9, got '3'"),
        ("lz4-block/13", {}, LevelOutOfRange, r"\.\.12, got 13"),
        ("rle3", {}, CodecError, "'rle' has no levels, got 'rle3'; use 'rle'"),
        ("zstd5", {"compresslevel": 6}, CodecError, "level is given twice: 'zstd5' and compresslevel=6"),
        ("zstd", {"level": 5}, CodecError, r"takes the arguments: compresslevel; got \['level'\]"),
        ("none", {"compresslevel": 5}, CodecError, r"takes the arguments: none; got \['compresslevel'\]"),
    ],
)
def test_error_for_invalid_arguments_lists_the_valid_ones(
    shorthand: str, kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    before = dict(kwargs)
    with pytest.raises(error, match=message):
        get_codec(shorthand, **kwargs)
    assert kwargs == before


@pytest.mark.usefixtures("restored_registry")
def test_registered_codec_is_available_by_its_name() -> None:
    assert register_codec(Mine) is Mine
    assert get_codec("mine", spice="pepper") == Mine("pepper")
    assert "mine" in available_codecs()
    with pytest.raises(CodecError, match=r"takes the arguments: spice; got \['sugar'\]"):
        get_codec("mine", sugar=1)


@pytest.mark.usefixtures("restored_registry")
@pytest.mark.parametrize("name", ["zstd", "mine"])
def test_registering_a_taken_name_needs_replace(name: str) -> None:
    register_codec(Mine)

    class Other(Mine):
        pass

    Other.name = name
    taken = type(get_codec(name))
    with pytest.raises(CodecError, match=f"'{name}' is already registered"):
        register_codec(Other)
    assert type(get_codec(name)) is taken
    register_codec(Other, replace=True)
    assert type(get_codec(name)) is Other


@pytest.mark.usefixtures("restored_registry")
@pytest.mark.parametrize("name", ["", "auto", "a b", "zstd3", None])
def test_registering_an_invalid_name_raises(name: Any) -> None:
    class Other(Mine):
        pass

    Other.name = name
    before = available_codecs()
    with pytest.raises(CodecError, match="name"):
        register_codec(Other)
    assert available_codecs() == before


@pytest.mark.usefixtures("restored_registry")
@pytest.mark.parametrize("thing", [Mine(), dict, "zstd"], ids=("instance", "another class", "text"))
def test_registering_anything_but_a_codec_class_raises(thing: Any) -> None:
    with pytest.raises(CodecError, match="must be a subclass of Codec"):
        register_codec(thing)


class Undecorated(Raw):
    """A subclass of a dataclass codec that is not decorated itself."""

    name: ClassVar[str] = "undecorated"


def test_codecs_that_are_not_dataclasses_can_be_pickled() -> None:
    frames = np.arange(12, dtype=np.uint8).reshape(2, 6)
    out = np.empty_like(frames)
    pickle.loads(pickle.dumps(Undecorated())).decode_into(Undecorated().encode(frames), out)
    np.testing.assert_array_equal(out, frames)
