"""``DeviceSlotStore``: slots in the memory of a GPU, and batches that are decoded there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_compressed.arrays.device_decoder import DeviceDecoder, Launch, is_decodable
from sb3_compressed.arrays.device_log import DeviceLog, device_errors
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.memory_slot_store import MemorySlotStore
from sb3_compressed.arrays.slot_store import SlotStore
from sb3_compressed.arrays.slots import Slot, accepted_codec, slot_n_frames
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.codecs.delta import Delta

__all__ = ["DeviceSlotStore", "device_store", "require_decodable"]


class DeviceSlotStore(MemorySlotStore):
    """Slots in a :class:`~.device_log.DeviceLog`. Batches that become tensors are decoded by the device.

    Frames are encoded by the CPU, and what NumPy reads is copied back and decoded there. Copies and pickles are in
    memory.

    :param codec: the codec of an array
    :param item_nbytes: bytes of an item as it is stored
    :param device: the device
    :param launch: launches the kernel on it
    :raises ValueError: if the device cannot decode the payloads of the codec
    """

    is_on_device = True
    log: DeviceLog

    def __init__(self, codec: Codec, item_nbytes: int, device: th.device, launch: Launch) -> None:
        require_decodable(codec)
        self._item_nbytes = item_nbytes
        SlotStore.__init__(self, DeviceLog(device), accepted_codec(codec))
        self._decoder = DeviceDecoder(self.log, None if isinstance(codec, TrainableCodec) else codec, launch)

    @property
    def device_nbytes(self) -> int:
        """The memory that it takes on the device, in bytes."""
        return sum(segment.block.numel() for segment in self.log.segments.values())

    def read_tensor(
        self,
        references: NDArray[np.int64],
        encoder: FrameEncoder,
        dtype: np.dtype[Any],
        slot_of: Callable[[int], tuple[int, ...]],
    ) -> th.Tensor:
        """Decode slots on the device; see :meth:`.SlotStore.read_tensor`."""
        references, device = np.ascontiguousarray(references), self.log.device
        shape = (len(references), *encoder.item_shape)
        with device_errors(math.prod(shape) * encoder.dtype.itemsize, device):
            out = th.empty(shape, dtype=torch_dtype(encoder.dtype), device=device)
            self._decoder.decode(references, encoder.layout, out, slot_of)
            return out if encoder.dtype == dtype else out.to(torch_dtype(dtype))

    def write(self, slots: Sequence[Slot]) -> NDArray[np.int64]:
        """Store slots; payloads of zstd, which 0.3.0 may have written, become uncompressed frames."""
        converted: dict[int, tuple[Any, bytes]] = {}  # by the id of the payload, with the payload

        def decodable(slot: Slot) -> Slot:
            if type(slot) is not tuple:
                return slot
            parts: list[Any] = []
            for part in slot:
                if type(part) is not bytes:
                    codec = part
                elif isinstance(codec, Delta) and not codec.is_on_devices(part):
                    if id(part) not in converted:
                        nbytes = self._item_nbytes // slot_n_frames(slot)
                        converted[id(part)] = part, codec.uncompressed(part, nbytes)
                    part = converted[id(part)][1]
                parts.append(part)
            return tuple(parts)

        return super().write([decodable(slot) for slot in slots])

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_memory, (self.log.download(), self.codec)


def _in_memory(*state: Any) -> MemorySlotStore:
    """Return a store in memory of what a copy or a pickle contains."""
    store = MemorySlotStore.__new__(MemorySlotStore)
    store.__setstate__(state)
    return store


def require_decodable(codec: Codec) -> None:
    """Raise ``ValueError`` if a device cannot decode the payloads of a codec."""
    if not is_decodable(codec):
        raise ValueError(
            "storage='device' is for compression_method 'auto' and 'none', whose payloads a GPU can decode, got "
            f"{codec.shorthand!r}"
        )


def torch_dtype(dtype: np.dtype[Any]) -> th.dtype:
    """Return PyTorch's name of a dtype; raise ``TypeError`` if there is none."""
    return th.from_numpy(np.empty(0, dtype)).dtype


def device_store(device: th.device, item_nbytes: int) -> Callable[[Codec], MemorySlotStore]:
    """Return what creates the stores of ``storage="device"``: on the CPU, those in memory.

    :param item_nbytes: bytes of an item as it is stored
    :raises ValueError: if the device is neither a GPU of NVIDIA nor the CPU
    :raises ImportError: if a package that it needs is missing
    """
    if device.type == "cpu":
        return MemorySlotStore
    if device.type != "cuda":
        raise ValueError(f"storage='device' is for CUDA devices and the CPU, got device={str(device)!r}")
    from sb3_compressed.kernels.cuda_launch import CudaLaunch

    return partial(DeviceSlotStore, item_nbytes=item_nbytes, device=device, launch=CudaLaunch(device))
