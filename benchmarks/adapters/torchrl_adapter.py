"""TorchRL's replay buffer with a ``CompressedListStorage``, as in its documentation.

It stores each ``TensorDict`` as a list entry: one separately compressed byte tensor per field, with a dict of shapes
and dtypes. A sampled batch is a lazy stack, whose fields are decoded when read, so the adapter reads all of them, as a
training step would.

``zlib`` is the storage's own compression before Python 3.14 (documented as zstd, which it uses from Python
3.14 on); ``zstd`` passes functions for Zstandard, as the documentation suggests. ``memmap`` is its
``LazyMemmapStorage``, uncompressed in files, whose pages in memory count as such.
"""

from __future__ import annotations

import re
from typing import Any

import torch as th
import zstandard
from frame_recording import Recording
from tensordict import TensorDict
from torchrl.data import CompressedListStorage, LazyMemmapStorage, ReplayBuffer

from adapters.sb3_adapters import Batch, ReplayAdapter
from sb3_compressed.step import Step

DEFAULT_LEVEL = 3


class TorchRLAdapter(ReplayAdapter):
    """A buffer with all fields of SB3's buffer."""

    def __init__(self, storage: Any) -> None:
        self._buffer = ReplayBuffer(storage=storage)

    def add(self, step: Step) -> None:
        """Add one item per environment with one call of ``extend``."""
        self._buffer.extend(
            TensorDict(
                {
                    "observation": th.as_tensor(step.obs),
                    "action": th.as_tensor(step.action),
                    "next_observation": th.as_tensor(step.next_obs),  # under "next" it would not be compressed
                    "reward": th.as_tensor(step.reward),
                    "done": th.as_tensor(step.done),
                },
                batch_size=[len(step.reward)],
            )
        )

    def sample(self, batch_size: int) -> Any:  # noqa: D102
        batch = self._buffer.sample(batch_size)
        return batch.contiguous()

    def read(self, batch: Any) -> Batch:  # noqa: D102
        names = ("observation", "next_observation", "reward")
        return Batch(*(batch[name].numpy() for name in names))


def make_replay(method: str, recording: Recording, rows: int) -> TorchRLAdapter:
    """Return a buffer for a method: ``zlib-3``, its own compression, ``zstd-3``, or ``memmap``."""
    size = rows * recording.n_envs
    if method == "memmap":
        return TorchRLAdapter(LazyMemmapStorage(size))
    match = re.fullmatch(r"(zlib|zstd)(?:-?(\d+))?", method or "zlib")
    if match is None:
        raise ValueError(f"the methods of torchrl are memmap, zlib-3 and zstd-3 with any level, got {method!r}")
    level = int(match[2] or DEFAULT_LEVEL)
    if match[1] == "zlib":
        return TorchRLAdapter(CompressedListStorage(size, compression_level=level))
    compressor, decompressor = zstandard.ZstdCompressor(level), zstandard.ZstdDecompressor()

    def compress(tensor: th.Tensor) -> th.Tensor:
        return th.frombuffer(bytearray(compressor.compress(tensor.contiguous().numpy().data)), dtype=th.uint8)

    def decompress(compressed: th.Tensor, metadata: dict[str, Any]) -> th.Tensor:
        data = bytearray(decompressor.decompress(compressed.numpy().data))  # writable, as torch requires
        return th.frombuffer(data, dtype=metadata["dtype"]).reshape(metadata["shape"])

    return TorchRLAdapter(CompressedListStorage(size, compression_fn=compress, decompression_fn=decompress))
