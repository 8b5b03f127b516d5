"""From the text name of a codec, its shorthand, to the codec; and the register of those names."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from sb3_compressed.codecs.base import Codec
from sb3_compressed.errors import CodecError, InvalidShorthand, UnknownCodec

__all__ = ["AUTO", "available_codecs", "get_codec", "register_codec"]

#: The shorthand that leaves the choice to this package, and what it chooses: of the codecs here, the one with the
#: smallest payloads by far on game frames, and one of the fastest.
AUTO = "auto"
AUTO_CHOICE = "delta/3"

#: Name, then level. A name that has more than letters in it needs a slash before the level.
SHORTHAND = re.compile(r"((?:[A-Za-z]+)|(?:[\w\-]+/))(\-?[0-9]+)")

# Names of this package's codecs with where they are: importing one codec's library is left until it is asked for.
_registry: dict[str, str | type[Codec]] = {
    "none": "sb3_compressed.codecs.raw:Raw",
    "rle": "sb3_compressed.codecs.rle:Rle",
    "rle-jit": "sb3_compressed.codecs.rle:RleJit",
    "gzip": "sb3_compressed.codecs.deflate:Gzip",
    "igzip": "sb3_compressed.codecs.deflate:Igzip",
    "delta": "sb3_compressed.codecs.delta:Delta",
    "zstd-dict": "sb3_compressed.codecs.zstd_dict:ZstdDict",
    "zstd": "sb3_compressed.codecs.zstd:Zstd",
    "lz4-frame": "sb3_compressed.codecs.lz4:Lz4Frame",
    "lz4-block": "sb3_compressed.codecs.lz4:Lz4Block",
}


def available_codecs() -> tuple[str, ...]:
    """Return the names of all registered codecs, sorted."""
    return tuple(sorted(_registry))


def register_codec(codec: type[Codec], *, replace: bool = False) -> type[Codec]:
    """Make a codec of your own known by its ``name``; usable as a class decorator.

    >>> from dataclasses import dataclass
    >>> from sb3_compressed.codecs import BytesCodec
    >>> @register_codec
    ... @dataclass(frozen=True)
    ... class Backwards(BytesCodec):
    ...     name = "backwards"
    ...     def compress_frame(self, frame):
    ...         return frame[::-1].tobytes()
    ...     def decompress_frame(self, payload, nbytes):
    ...         return payload[::-1]
    >>> get_codec("backwards")
    Backwards()

    :param codec: a subclass of :class:`~sb3_compressed.codecs.Codec`
    :param replace: whether it may take the name of a codec that is already there
    :raises ValueError: if it is no codec, has no usable name, or the name is taken
    """
    if not (isinstance(codec, type) and issubclass(codec, Codec)):
        raise CodecError(f"a codec must be a subclass of Codec, got {codec!r}")
    name = getattr(codec, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][\w\-]*", name) or name == AUTO:
        raise CodecError(f"a codec's name must be letters, digits, - and _, start with a letter, got {name!r}")
    if (match := SHORTHAND.fullmatch(name)) and match[1] in _registry:
        raise CodecError(f"a codec cannot be named {name!r}: that is {match[1]!r} with a level")
    if name in _registry and not replace:
        raise CodecError(f"there is a codec named {name!r} already; pass replace=True to take its place")
    _registry[name] = codec
    return codec


def get_codec(shorthand: str | Codec, **kwargs: Any) -> Codec:
    """Return the codec that a shorthand names.

    >>> get_codec("zstd-5")  # a minus belongs to the level
    Zstd(compresslevel=-5)
    >>> get_codec("zstd/5") == get_codec("zstd5") == get_codec("zstd", compresslevel=5)
    True

    :param shorthand: a name, alone or with a level, as in ``"igzip3"``, ``"igzip/3"``, ``"zstd-5"``,
        ``"lz4-frame/5"``; or ``"auto"``; a codec is returned as it is
    :param kwargs: the codec's keyword arguments, e.g. ``compresslevel``
    :raises ValueError: if the shorthand is malformed, the codec unknown, the level out of range, an argument
        unknown, or the level given twice; the message lists what is allowed
    """
    if kwargs and (isinstance(shorthand, Codec) or shorthand == AUTO):
        raise CodecError(f"{shorthand!r} takes no arguments, got {kwargs}; name a codec to choose them")
    if isinstance(shorthand, Codec):
        return shorthand
    name, level = parse_shorthand(shorthand)
    codec = codec_class(name, shorthand)
    if level is not None:
        if codec.levels is None:
            raise CodecError(f"codec {name!r} has no levels, got {shorthand!r}")
        if "compresslevel" in kwargs:
            raise CodecError(f"the level is given twice: {shorthand!r} and compresslevel={kwargs['compresslevel']}")
        kwargs = {**kwargs, "compresslevel": level}
    allowed = inspect.signature(codec).parameters
    if not set(kwargs) <= set(allowed):
        raise CodecError(f"codec {name!r} takes the arguments: {', '.join(allowed) or 'none'}; got {sorted(kwargs)}")
    return codec(**kwargs)


def parse_shorthand(shorthand: str) -> tuple[str, int | None]:
    """Split a shorthand into its codec's name and its level, ``None`` where it has none.

    :raises InvalidShorthand: if it does not follow the grammar
    """
    if not isinstance(shorthand, str):
        raise InvalidShorthand(f"a codec is named by a string or is a Codec, got {shorthand!r}; {_known()}")
    if shorthand == AUTO:
        shorthand = AUTO_CHOICE
    if shorthand in _registry:
        return shorthand, None
    if match := SHORTHAND.fullmatch(shorthand):
        return match[1].removesuffix("/"), int(match[2])
    if re.fullmatch(r"[\w\-]*[A-Za-z_\-]", shorthand):  # a name without a level
        return shorthand, None
    meant = _with_slash(shorthand)
    advice = f"did you mean {meant!r}?" if meant else "write a name, or a name and a level as in 'zstd-5', 'igzip/3'"
    raise InvalidShorthand(f"cannot read the codec shorthand {shorthand!r}: {advice}; {_known()}")


def codec_class(name: str, shorthand: str | None = None) -> type[Codec]:
    """Return the class registered under a name.

    :param shorthand: what the user wrote, for the message
    :raises UnknownCodec: if there is none
    """
    shorthand = shorthand or name
    try:
        entry = _registry[name]
    except KeyError:
        alike = [known for known in available_codecs() if known.startswith(shorthand)]
        hint = f"; did you mean {' or '.join(map(repr, alike))}?" if alike else ""
        raise UnknownCodec(f"there is no codec {name!r} as in {shorthand!r}{hint}; {_known()}") from None
    if isinstance(entry, str):
        module, _, attribute = entry.partition(":")
        entry = _registry[name] = getattr(importlib.import_module(module), attribute)
    return entry


def _with_slash(shorthand: str) -> str | None:
    """Return ``"lz4-frame/5"`` for ``"lz4-frame5"``: what the user of a name that needs a slash may have meant."""
    match = re.fullmatch(r"(.*?)(-?\d+)", shorthand)
    return f"{match[1]}/{match[2]}" if match and match[1] in _registry else None


def _known() -> str:
    return f"available codecs: {', '.join(available_codecs())}, and {AUTO!r}"
