"""``DeviceSlotStore``: slots in the memory of a GPU, and batches that are decoded there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_compressed.arrays.batch_pool import Empty
from sb3_compressed.arrays.device_decoder import DeviceDecoder, Launch, is_decodable
from sb3_compressed.arrays.device_log import DeviceLog, device_errors
from sb3_compressed.arrays.encoding import FrameEncoder
from sb3_compressed.arrays.memory_estimate import MemoryEstimate
from sb3_compressed.arrays.memory_slot_store import MemorySlotStore
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.slot_reader import accepted_codec
from sb3_compressed.arrays.slot_store import SlotOf, SlotStore
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.errors import CorruptPayload

__all__ = ["DeviceSlotStore", "device_store", "require_decodable"]


#: Bytes of items that are copied from the device at once.
MAX_COPIED_NBYTES = 1 << 26
#: Slots from which the memory of a buffer is estimated.
MAX_ESTIMATED_SLOTS = 512


class DeviceSlotStore(MemorySlotStore):
    """Slots in a :class:`~.device_log.DeviceLog`. Batches that become tensors are decoded by the device.

    Frames are encoded by the CPU. The device also decodes what NumPy reads, which is then copied back. Copies and
    pickles are in memory.

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

    def read(
        self,
        references: NDArray[np.int64],
        encoder: FrameEncoder,
        dtype: np.dtype[Any],
        slot_of: SlotOf,
        empty: Empty,
        num_threads: int,
    ) -> th.Tensor:
        """Decode slots to a tensor on the device; see :meth:`.SlotStore.read`."""
        references, device = np.ascontiguousarray(references), self.log.device
        out = th.empty((len(references), *encoder.item_shape), dtype=torch_dtype(encoder.dtype), device=device)
        with device_errors(out.nbytes, device):
            self._decoder.decode(references, encoder.layout, out, slot_of)
        if encoder.dtype == dtype:
            return out
        if encoder.dtype.kind in "biu" and dtype.kind in "biu":
            return out.to(torch_dtype(dtype))
        return th.from_numpy(out.cpu().numpy().astype(dtype)).to(device)  # as NumPy casts NaN and large numbers

    def read_into(
        self,
        out: NDArray[Any],
        references: NDArray[np.int64],
        encoder: FrameEncoder,
        slot_of: SlotOf | None = None,
        num_threads: int = 1,
    ) -> None:
        """Decode slots on the device, and copy them to the memory of the process; see :meth:`SlotStore.read_into`."""
        references, device = np.ascontiguousarray(references), self.log.device
        n = max(1, MAX_COPIED_NBYTES // max(out.nbytes // max(len(out), 1), 1))
        for first in range(0, len(references), n):
            part = references[first : first + n]
            items = th.empty((len(part), *out.shape[1:]), dtype=torch_dtype(encoder.dtype), device=device)
            try:
                with device_errors(items.nbytes, device):
                    out[first : first + n] = self._decoder.decode_and_wait(part, encoder.layout, items)
            except CorruptPayload as error:
                index = first + error.index
                raise CorruptPayload(error.reason, index, None if slot_of is None else slot_of(index)) from error

    def gather(self, references: NDArray[np.int64], n_frames: int) -> PayloadBatch:
        """Return the payloads of slots; see :meth:`SlotStore.gather`."""
        batch = super().gather(references, n_frames)
        self.reader.drop_cached(self.log.segments)  # the segments that were copied for it
        return batch

    def estimate(self, tables: Sequence[NDArray[Any]], begin: int, n_rows: int, max_slots: int) -> MemoryEstimate:
        """Return the memory of tables from few slots, since each segment that is read is copied from the device."""
        return super().estimate(tables, begin, n_rows, min(max_slots, MAX_ESTIMATED_SLOTS))

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
    if device.type != "cuda" or th.version.hip is not None:
        raise ValueError(f"storage='device' is for GPUs of NVIDIA and the CPU, got device={str(device)!r}")
    from sb3_compressed.kernels.cuda_launch import CudaLaunch

    launch = CudaLaunch(device)  # of the current device, if it has no number
    return partial(  # pragma: no cover  # needs CUDA
        DeviceSlotStore, item_nbytes=item_nbytes, device=launch.device, launch=launch
    )
