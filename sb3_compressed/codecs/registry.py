"""The registry of codecs, and shorthands: text such as ``"zstd-5"`` that names a codec and its level."""

from __future__ import annotations

import difflib
import inspect
import pkgutil
import re
from typing import Any

from sb3_compressed.codecs.codec import Codec
from sb3_compressed.codecs.config import abbreviate
from sb3_compressed.errors import CodecError, InvalidShorthand, UnknownCodec

__all__ = ["AUTO", "available_codecs", "codec_from_config", "get_codec", "register_codec"]

#: The shorthand that leaves the choice to this package.
AUTO = "auto"

#: Name, then level. A name with other characters than letters needs a slash before the level.
SHORTHAND = re.compile(r"((?:[A-Za-z]+)|(?:[\w\-]+/))(\-?[0-9]+)")

# Codecs by name, as "module:class" until first use: a codec's library is only imported when it is needed.
_registry: dict[str, str | type[Codec]] = {
    "none": "sb3_compressed.codecs.raw:Raw",
    "rle": "sb3_compressed.codecs.rle:Rle",
    "rle-jit": "sb3_compressed.codecs.rle:RleJit",
    "gzip": "sb3_compressed.codecs.deflate:Gzip",
    "igzip": "sb3_compressed.codecs.deflate:Igzip",
    "delta": "sb3_compressed.codecs.delta:Delta",
    "zstd-dict": "sb3_compressed.codecs.zstd_dict:ZstdDict",
    "zstd": "sb3_compressed.codecs.zstd:Zstd",
    "packed": "sb3_compressed.codecs.packed:Packed",
    "lz4-frame": "sb3_compressed.codecs.lz4:Lz4Frame",
    "lz4-block": "sb3_compressed.codecs.lz4:Lz4Block",
}


def available_codecs() -> tuple[str, ...]:
    """Return the names of all registered codecs, sorted."""
    return tuple(sorted(_registry))


def register_codec(codec: type[Codec], *, replace: bool = False) -> type[Codec]:
    """Register a codec under its ``name``; usable as a class decorator.

    >>> from dataclasses import dataclass
    >>> from sb3_compressed.codecs import BytesCodec
    >>> @register_codec
    ... @dataclass(frozen=True)
    ... class Backwards(BytesCodec):
    ...     name = "backwards"
    ...
    ...     def compress_frame(self, frame):
    ...         return frame[::-1].tobytes()
    ...
    ...     def decompress_frame(self, payload, nbytes):
    ...         return payload[::-1]
    >>> get_codec("backwards")
    Backwards()

    :param codec: a subclass of :class:`~sb3_compressed.codecs.Codec`
    :param replace: whether it may replace a registered codec of the same name
    :raises ValueError: if it is not a subclass of ``Codec``, or its name is invalid or taken
    """
    if not (isinstance(codec, type) and issubclass(codec, Codec)):
        raise CodecError(f"a codec must be a subclass of Codec, got {codec!r}")
    name = getattr(codec, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][\w\-]*", name) or name == AUTO:
        raise CodecError(
            f"the name of a codec must start with a letter and consist of letters, digits, - and _, got {name!r}"
        )
    if (match := SHORTHAND.fullmatch(name)) and match[1] in _registry:
        raise CodecError(f"a codec cannot be named {name!r}: that is {match[1]!r} with a level")
    if name in _registry and not replace:
        raise CodecError(f"a codec named {name!r} is already registered; pass replace=True to replace it")
    _registry[name] = codec
    return codec


def get_codec(shorthand: str | Codec, **kwargs: Any) -> Codec:
    """Return the codec of a shorthand.

    >>> get_codec("zstd-5")  # the minus belongs to the level
    Zstd(compresslevel=-5)
    >>> get_codec("zstd/5") == get_codec("zstd5") == get_codec("zstd", compresslevel=5)
    True

    :param shorthand: a name with or without a level, as in ``"igzip3"``, ``"igzip/3"``, ``"zstd-5"``,
        ``"lz4-frame/5"``; or ``"auto"``. A codec is returned unchanged
    :param kwargs: the codec's keyword arguments, e.g. ``compresslevel``
    :raises ValueError: if the shorthand is malformed, the codec or an argument unknown, the level out of range, or
        given twice; the message lists what is allowed
    """
    if kwargs and (isinstance(shorthand, Codec) or shorthand == AUTO):
        raise CodecError(f"{shorthand!r} takes no arguments, got {kwargs}; pass the name of a codec to set them")
    if isinstance(shorthand, Codec):
        return shorthand
    if shorthand == AUTO:
        from sb3_compressed.codecs.auto import auto_codec  # on first use, as other codecs

        return auto_codec()
    name, level = parse_shorthand(shorthand)
    codec = codec_class(name, shorthand)
    if level is not None:
        if codec.levels is None:
            raise CodecError(f"codec {name!r} has no levels, got {shorthand!r}; use {name!r}")
        if "compresslevel" in kwargs:
            raise CodecError(f"the level is given twice: {shorthand!r} and compresslevel={kwargs['compresslevel']}")
        kwargs = {**kwargs, "compresslevel": level}
    allowed = inspect.signature(codec).parameters
    if not set(kwargs) <= set(allowed):
        raise CodecError(f"codec {name!r} takes the arguments: {', '.join(allowed) or 'none'}; got {sorted(kwargs)}")
    return codec(**kwargs)


def parse_shorthand(shorthand: str) -> tuple[str, int | None]:
    """Split a shorthand into the name of the codec and the level, ``None`` if it has none.

    :raises InvalidShorthand: if it is malformed
    """
    if not isinstance(shorthand, str):
        raise InvalidShorthand(f"a codec must be a shorthand or a Codec, got {shorthand!r}; {_list_available()}")
    if shorthand in _registry:
        return shorthand, None
    if match := SHORTHAND.fullmatch(shorthand):
        return match[1].removesuffix("/"), int(match[2])
    if re.fullmatch(r"[\w\-]*[A-Za-z_\-]", shorthand):  # a name without a level
        return shorthand, None
    raise InvalidShorthand(
        f"invalid codec shorthand {shorthand!r}: use a name, or a name and a level: 'zstd-5', 'lz4-frame/5'; "
        f"{_list_available()}"
    )


def codec_class(name: str, shorthand: str | None = None) -> type[Codec]:
    """Return the class registered under a name.

    :param shorthand: what the user wrote, for the error; ``None`` for the name
    :raises UnknownCodec: if there is none
    """
    try:
        entry = _registry[name]
    except KeyError:
        similar = _similar_names(name)
        hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        raise UnknownCodec(f"unknown codec {shorthand or name!r}{hint}; {_list_available()}") from None
    if isinstance(entry, str):
        entry = _registry[name] = pkgutil.resolve_name(entry)
    return entry


def codec_from_config(config: Any) -> Codec:
    """Return the registered codec that a config from :meth:`Codec.get_config` describes.

    :param config: it may come from an untrusted file
    :raises CodecError: if the codec is not registered, or :meth:`Codec.from_config` raises it
    """
    name = config.get("name") if isinstance(config, dict) else None
    if not isinstance(name, str):
        raise CodecError(f"a codec config must be a dict with the name of the codec, got {abbreviate(config)}")
    return codec_class(name).from_config(config)


def _similar_names(name: str) -> list[str]:
    """Return the codecs that may be meant by a name that is not registered: those that it begins, or a similar one."""
    written = name.lower().replace("_", "-")
    names = [*available_codecs(), AUTO]
    beginnings = [available for available in names if available.startswith(written)]
    return beginnings or difflib.get_close_matches(written, names, n=1)


def _list_available() -> str:
    return f"available codecs: {', '.join(available_codecs())}, and {AUTO!r}"
