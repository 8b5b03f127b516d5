"""Codecs are the same in every process, and those that were not used for longest are forgotten."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from distributed.emitted import SIZE, frames
from sb3_compressed import available_codecs
from sb3_compressed.arrays.payload_batch import codec_digest
from sb3_compressed.codecs import Codec, TrainableCodec, get_codec
from sb3_compressed.codecs.zstd import Zstd
from sb3_compressed.distributed.codec_cache import CodecCache
from sb3_compressed.errors import CodecError


def trained(codec: str) -> Codec:
    made = get_codec(codec)
    return made.train(frames(0, 64)) if isinstance(made, TrainableCodec) else made


@pytest.mark.parametrize("codec", [*available_codecs(), "auto", "zstd-dict/7"])
def test_codecs_are_sent_with_what_they_learned(codec: str) -> None:
    original = trained(codec)
    copy = pickle.loads(pickle.dumps(original))
    assert copy == original
    assert codec_digest(copy) == codec_digest(original)
    out = np.empty((20, SIZE, SIZE), np.uint8)
    copy.decode_into(original.encode(frames(70, 20)), out)
    np.testing.assert_array_equal(out, frames(70, 20))


def test_codecs_that_were_not_used_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodecCache, "size", 3)
    cache = CodecCache()
    codecs = {codec_digest(codec): codec for codec in (get_codec(f"zstd-{level}") for level in range(1, 6))}
    digests = [*codecs]
    for digest in digests[:3]:
        cache.receive({digest: codecs[digest]})
    assert cache[digests[0]] is codecs[digests[0]]
    cache.receive({digests[1]: get_codec("zstd-2"), digests[3]: codecs[digests[3]]})
    assert [digest in cache for digest in digests] == [True, True, False, True, False]
    assert cache[digests[1]] is codecs[digests[1]]
    with pytest.raises(KeyError):
        cache[digests[2]]


def test_codecs_that_cannot_be_stored_are_refused() -> None:
    class Own(Zstd):
        def get_config(self) -> dict[str, object]:
            raise CodecError("it has no configuration")

    with pytest.raises(CodecError):
        codec_digest(Own())
