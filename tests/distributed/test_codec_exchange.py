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


def test_the_digest_is_that_of_what_was_learned() -> None:
    first = get_codec("delta")
    assert isinstance(first, TrainableCodec)
    digest = codec_digest(first)
    other = first.train(frames(0, 64))
    assert codec_digest(other) != digest
    assert codec_digest(other) == codec_digest(pickle.loads(pickle.dumps(other)))
    assert codec_digest(first) == digest == codec_digest(get_codec("delta"))
    assert first == get_codec("delta"), "which the digest does not change"
    assert first.get_config() == get_codec("delta").get_config()
    assert repr(first) == repr(get_codec("delta"))


def test_codecs_are_received_once() -> None:
    theirs, ours = CodecExchange(4), CodecExchange(4)
    digest = theirs.add(trained("delta"))
    codecs = pickle.loads(pickle.dumps(theirs.present([digest])))
    ours.receive(codecs)
    codec = ours[digest]
    ours.receive(codecs)
    assert ours[digest] is codec
    assert ours.add(trained("delta")) == digest
    assert ours[digest] is codec
    assert [*ours] == [digest]
    assert len(ours) == 1


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
