"""Codecs are the same in every process, and forgotten only when nothing needs them."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest

from distributed.emitted import frames
from sb3_compressed import available_codecs
from sb3_compressed.arrays.payload_batch import codec_digest
from sb3_compressed.codecs import Codec, TrainableCodec, get_codec
from sb3_compressed.codecs.zstd import Zstd
from sb3_compressed.distributed.codec_exchange import CodecExchange
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
    out = np.empty((20, 20, 20), np.uint8)
    copy.decode_into(original.encode(frames(70, 20)), out)
    np.testing.assert_array_equal(out, frames(70, 20))


def test_codecs_that_nothing_uses_are_forgotten_after_others() -> None:
    exchange = CodecExchange(3)
    levels = [get_codec(f"zstd-{level}") for level in range(1, 8)]
    digests = [exchange.add(codec) for codec in levels]
    used = levels[0]
    del levels
    gc.collect()
    assert [digest in exchange for digest in digests] == [True, False, False, False, True, True, True]
    assert exchange.present(digests).keys() == {digests[0], *digests[4:]}
    assert exchange[digests[0]] is used
    with pytest.raises(KeyError):
        exchange[digests[1]]
    # Reading it keeps it in the place of the one that was not used for longest.
    del used
    gc.collect()
    assert [digest in exchange for digest in digests[4:]] == [False, True, True]
    assert digests[0] in exchange


def test_codecs_that_cannot_be_stored_are_refused() -> None:
    class Own(Zstd):
        def get_config(self) -> dict[str, object]:
            raise CodecError("it has no configuration")

    with pytest.raises(CodecError):
        CodecExchange(3).add(Own())
