"""Codecs are the same in every process, and forgotten only when nothing needs them."""

from __future__ import annotations

import gc
import json

import numpy as np
import pytest
import zstandard
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from distributed.emitted import frames
from sb3_compressed import available_codecs
from sb3_compressed.arrays.payload_batch import codec_digest
from sb3_compressed.codecs import Codec, TrainableCodec, get_codec
from sb3_compressed.codecs.zstd import Zstd
from sb3_compressed.distributed import codec_exchange
from sb3_compressed.distributed.codec_exchange import CodecExchange, pack_codec, unpack_codec
from sb3_compressed.errors import CodecError, CorruptPayload


def trained(codec: str) -> Codec:
    made = get_codec(codec)
    return made.train(frames(0, 64)) if isinstance(made, TrainableCodec) else made


@pytest.mark.parametrize("codec", [*available_codecs(), "auto", "zstd-dict/7"])
def test_codecs_are_sent_with_what_they_learned(codec: str) -> None:
    original = trained(codec)
    copy = unpack_codec(pack_codec(original))
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
    assert codec_digest(other) == codec_digest(unpack_codec(pack_codec(other)))
    assert codec_digest(first) == digest == codec_digest(get_codec("delta"))
    assert first == get_codec("delta"), "which the digest does not change"
    assert first.get_config() == get_codec("delta").get_config()
    assert repr(first) == repr(get_codec("delta"))


def test_codecs_are_received_once() -> None:
    theirs, ours = CodecExchange(4), CodecExchange(4)
    digest = theirs.add(trained("delta"))
    configs = theirs.configs_of([digest])
    ours.receive(configs)
    codec = ours[digest]
    ours.receive(configs)
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
    assert exchange.configs_of(digests).keys() == {digests[0], *digests[4:]}
    assert exchange[digests[0]] is used
    with pytest.raises(KeyError):
        exchange[digests[1]]
    # Reading it keeps it in the place of the one that was not used for longest.
    del used
    gc.collect()
    assert [digest in exchange for digest in digests[4:]] == [False, True, True]
    assert digests[0] in exchange


def test_codecs_of_another_digest_are_refused() -> None:
    config = pack_codec(get_codec("zstd3"))
    exchange = CodecExchange(3)
    with pytest.raises(CorruptPayload, match="does not have the digest 0000"):
        exchange.receive({bytes(16): config})
    assert len(exchange) == 0


def test_codecs_that_cannot_be_stored_are_refused() -> None:
    class Own(Zstd):
        def get_config(self) -> dict[str, object]:
            raise CodecError("it has no configuration")

    with pytest.raises(CodecError):
        CodecExchange(3).add(Own())


def packed(config: object) -> bytes:
    return zstandard.compress(json.dumps(config).encode())


INVALID = {
    "nothing": b"",
    "other bytes": b"codec",
    "truncated": pack_codec(get_codec("zstd"))[:-3],
    "no JSON": zstandard.compress(b"{"),
    "other text": zstandard.compress(b"\xff"),
    "deep": zstandard.compress(b"[" * 100_000),
    "an unknown name": packed({"name": "none such", "fields": {}}),
}


@pytest.mark.parametrize("kind", INVALID)
def test_invalid_configurations_are_refused(kind: str) -> None:
    with pytest.raises(CorruptPayload):
        unpack_codec(INVALID[kind])


def test_configurations_are_not_decompressed_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_exchange, "MAX_CONFIG_NBYTES", 1 << 20)
    assert unpack_codec(packed({"name": "zstd", "fields": {}})) == get_codec("zstd")
    with pytest.raises(CorruptPayload, match="more than 1048576 bytes"):
        unpack_codec(zstandard.compress(b" " * (1 << 24)))


@examples(200)
@given(st.binary(max_size=100))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptPayload):
        unpack_codec(data)
