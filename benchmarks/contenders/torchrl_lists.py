"""TorchRL's replay buffer with a ``CompressedListStorage``, as its documentation has it.

It keeps a ``TensorDict`` item as a list entry: a dict of one byte tensor for each field, each compressed on its own,
and a dict of their shapes and dtypes beside it. A sampled batch is a lazy stack; reading a field makes the tensor, so
the adapter reads all of them, as a training step would.

``zlib`` is the storage's own compression on Python before 3.14 (its documentation says zstd, which it takes from Python
3.14 on); ``zstd`` hands in functions for Zstandard, which the documentation provides for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch as th
import zstandard
from tensordict import TensorDict
from torchrl.data import CompressedListStorage, ReplayBuffer

from sb3_compressed.benchmarking.adapters import Batch, Replay, Setup

if TYPE_CHECKING:
    from sb3_compressed.benchmarking.frame_recording import Step

DEFAULT_LEVEL = 3


class ListReplay(Replay):
    """A buffer of compressed items, with every field that SB3's has."""

    def __init__(self, setup: Setup, **storage: Any) -> None:
        self._buffer = ReplayBuffer(storage=CompressedListStorage(setup.size, **storage))

    def add(self, step: Step) -> None:
        """Add one item for each environment by one call of ``extend``, its way to add several."""
        self._buffer.extend(
            TensorDict(
                {
                    "observation": th.as_tensor(step.obs),
                    "action": th.as_tensor(step.action),
                    "next_observation": th.as_tensor(step.next_obs),  # under "next" it would be kept uncompressed
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


def make_replay(method: str, setup: Setup) -> ListReplay:
    """Return a buffer with its own compression, ``zlib-3``, or with ``zstd-3``."""
    match = re.fullmatch(r"(zlib|zstd)(?:-?(\d+))?", method or "zlib")
    if match is None:
        raise ValueError(f"torchrl has zlib and zstd with a level, as zstd-3, got {method!r}")
    level = int(match[2] or DEFAULT_LEVEL)
    if match[1] == "zlib":
        return ListReplay(setup, compression_level=level)
    compressor, decompressor = zstandard.ZstdCompressor(level), zstandard.ZstdDecompressor()

    def compress(tensor: th.Tensor) -> th.Tensor:
        return th.frombuffer(bytearray(compressor.compress(tensor.contiguous().numpy().data)), dtype=th.uint8)

    def decompress(compressed: th.Tensor, metadata: dict[str, Any]) -> th.Tensor:
        data = bytearray(decompressor.decompress(compressed.numpy().data))  # writable, as torch wants it
        return th.frombuffer(data, dtype=metadata["dtype"]).reshape(metadata["shape"])

    return ListReplay(setup, compression_fn=compress, decompression_fn=decompress)
