"""Too little memory is a ``MemoryError`` of every codec: no library aborts, and no payload passes for damaged."""

from __future__ import annotations

import sys

import pytest
from programs import run

#: Encodes or decodes again and again until the memory that it may take is used up.
PROGRAM = """
import resource, sys
import numpy as np
from sb3_compressed import get_codec
from sb3_compressed.codecs import TrainableCodec

name, side, room = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
frames = np.random.default_rng(0).integers(0, 256, (8, side, side), np.uint8)
codec = get_codec(name)
if isinstance(codec, TrainableCodec):
    codec = codec.train(frames)
payloads = codec.encode(frames)
codec.decode_into(payloads, np.empty_like(frames))

def decoded():
    out = np.empty_like(frames)
    codec.decode_into(payloads, out)
    return out

def encoded_anew():  # with a new context
    return get_codec(name).encode(frames)

calls = {"encode": lambda: codec.encode(frames), "encode anew": encoded_anew, "decode": decoded}
if isinstance(codec, TrainableCodec):
    calls["train"] = lambda: codec.train(frames)
for call, function in calls.items():
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + room, hard))
    kept = []
    try:
        while True:
            kept.append((function(), np.empty(room // 50, np.uint8)))
    except MemoryError:
        pass
    kept.clear()
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    print(call, flush=True)  # the last one before an abort
"""

CODECS = ["zstd3", "zstd19", "zstd-dict", "gzip6", "igzip3", "lz4-frame/0", "lz4-frame/9", "lz4-block/0", "lz4-block/9"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space of a process")
@pytest.mark.parametrize(("side", "room"), [(84, 1_000_000), (84, 4_000_000), (400, 5_000_000)])
@pytest.mark.parametrize("codec", [*CODECS, "rle", "packed", "delta", "none"])
def test_too_little_memory_is_a_memory_error(codec: str, side: int, room: int) -> None:
    calls = run(PROGRAM, codec, side, room).split("\n")[:-1]
    assert calls[:3] == ["encode", "encode anew", "decode"]
    assert calls[3:] == ["train"] * (codec in ("zstd-dict", "delta"))
