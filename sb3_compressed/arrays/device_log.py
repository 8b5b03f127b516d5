"""``DeviceLog``: the log of payloads that are in the memory of a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_compressed.arrays.batch_pool import Empty, checked_empty
from sb3_compressed.arrays.device_decoder import DeviceDecoder, Launch, is_decodable
from sb3_compressed.arrays.encoding import AcceptedCodec, FrameEncoder
from sb3_compressed.arrays.memory_log import MemoryLog, MemorySegment
from sb3_compressed.arrays.payload_batch import PayloadBatch
from sb3_compressed.arrays.segment_log import Claim
from sb3_compressed.arrays.segment_memory import new_block
from sb3_compressed.arrays.slot_log import SlotOf
from sb3_compressed.codecs import Codec, TrainableCodec
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.errors import CorruptPayload, StorageError

__all__ = ["DeviceLog", "DeviceSegment", "new_device_log", "require_decodable"]

#: Bytes of items that are copied from the device at once.
MAX_COPIED_NBYTES = 1 << 26


class DeviceSegment(MemorySegment):
    """A segment in the memory of a device, and while it is appended to, also in that of the process.

    :param number: its number in the log
    :param nbytes: the size of the block; it grows if more is appended
    :param device: the device
    :raises MemoryError: if there is not enough memory
    """

    def __init__(self, number: int, nbytes: int, device: th.device) -> None:
        #: The block on the device, ``(nbytes,)`` of uint8, and the memory from which it is copied.
        self.block, self._host = _new_blocks(nbytes, device)
        self.n_uploaded = 0
        super().__init__(number, self._host.numpy())

    def grow(self, nbytes: int) -> None:
        """Make the segment larger; see :meth:`.MemorySegment.grow`."""
        block, host = _new_blocks(nbytes, self.block.device)
        grown: NDArray[np.uint8] = host.numpy()
        grown[: self.next_offset] = self.bytes[: self.next_offset]
        vars(self).update(block=block, _host=host, bytes=grown, n_uploaded=0)  # at once, whatever interrupts this

    @property
    def is_on_host(self) -> bool:
        """Whether the process has its bytes in its own memory, too."""
        return self.bytes.size > 0

    def upload(self) -> None:
        """Copy to the device what was appended since the last call, on its current stream."""
        begin, end = self.n_uploaded, self.next_offset
        if begin < end:
            self.block[begin:end].copy_(self._host[begin:end], non_blocking=True)
            self.n_uploaded = end

    def release_host(self) -> None:
        """Keep the bytes on the device only; PyTorch reuses pinned memory after the copies from it."""
        vars(self).update(bytes=np.empty(0, np.uint8), _host=None)

    def release(self) -> None:
        """Do nothing: PyTorch reuses its memory."""

    def download(self) -> MemorySegment:
        """Return a copy of the segment in the memory of the process."""
        end = self.next_offset
        segment = MemorySegment(self.number, new_block(max(end, 1)))
        th.from_numpy(segment.bytes[:end]).copy_((self._host if self.is_on_host else self.block)[:end])
        segment.next_offset, segment.codecs = end, dict(self.codecs)
        return segment


class DeviceLog(MemoryLog):
    """Segments in the memory of a device; the last two are in that of the process as well.

    A segment is written to pinned memory and copied from there before the next batch is read. The next segment begins
    with the payloads of the last row, which are then in the one before. Batches that become tensors are decoded by the
    device, as is what NumPy reads, which is then copied back. Frames are encoded by the CPU. Copies and pickles are in
    memory.

    :param device: the device
    :param codec: the codec of its slots
    :param launch: launches the kernel on the device
    :raises ValueError: if the device cannot decode the payloads of the codec
    """

    is_on_device = True
    segments: dict[int, DeviceSegment]  # type: ignore[assignment]

    def __init__(self, device: th.device, codec: Codec, launch: Launch) -> None:
        require_decodable(codec)
        super().__init__()
        self.device = device
        # It does not keep the log alive, whose memory would be freed late.
        self._decoder = DeviceDecoder(weakref.proxy(self), None if isinstance(codec, TrainableCodec) else codec, launch)
        #: How often blocks or codecs were added or freed.
        self.n_changes = 0
        #: The stream of the last copy or launch, ``None`` before, and where there are no streams.
        self.stream: Any = None

    def new_segment(self, number: int, nbytes: int) -> DeviceSegment:
        """Return a segment to append to; raise ``MemoryError`` if there is not enough memory."""
        segment = DeviceSegment(number, nbytes, self.device)
        self.upload()
        for older in self.mapped_segments.values():
            if older is not self.last:
                older.release_host()
        self.n_changes += 1
        return segment

    def grow_last(self, nbytes: int) -> None:
        """Make the last segment larger; raise ``MemoryError`` if there is not enough memory."""
        self.use_current_stream()
        super().grow_last(nbytes)
        self.n_changes += 1

    def append_claimed(self, claim: Claim, nbytes: int, copy_nbytes: int = 0) -> None:
        """Append what was written to claimed memory; see :meth:`.SegmentLog.append_claimed`."""
        super().append_claimed(claim, nbytes, copy_nbytes)
        segment = self.segments[claim.segment.number]
        if segment.n_uploaded > claim.offset:  # by a handler of a signal, before it was written
            segment.n_uploaded = claim.offset

    def append_codec(self, codec: Codec) -> int:
        """Refer to a codec from the last segment; see :meth:`.MemoryLog.append_codec`.

        :raises StorageError: if the device cannot decode its payloads
        """
        if isinstance(codec, Delta) and codec.uses_zstd:
            raise StorageError("a GPU cannot decode payloads that may be compressed with zstd: use storage='memory'")
        number = super().append_codec(codec)
        self.n_changes += 1
        return number

    def _keep_segments(self, numbers: Collection[int]) -> None:
        super()._keep_segments(numbers)
        self.n_changes += 1

    @property
    def mapped_segments(self) -> dict[int, DeviceSegment]:
        """The segments whose bytes are in the memory of the process: at most the last ones."""
        last = self._n_begun
        found = ((number, self.segments.get(number)) for number in range(last - 2, last + 1))
        return {number: segment for number, segment in found if segment is not None and segment.is_on_host}

    def segment(self, number: int) -> MemorySegment:
        """Return a segment, or a copy if it is on the device alone; raise ``CorruptStorage`` if it is missing."""
        segment = super().segment(number)
        if segment.bytes.size:
            return segment
        self.use_current_stream()
        with device_errors(0, self.device):
            return self.segments[number].download()

    def upload(self) -> None:
        """Copy everything that was appended to the device."""
        self.use_current_stream()
        with device_errors(0, self.device):
            for segment in self.mapped_segments.values():
                segment.upload()

    def use_current_stream(self) -> None:
        """Order what follows on the current stream after earlier copies and launches.

        :raises RuntimeError: if it is captured for a CUDA graph, which would repeat one batch
        """
        if self.device.type != "cuda":
            return
        if th.cuda.is_current_stream_capturing():  # pragma: no cover  # needs CUDA
            raise RuntimeError("batches of a replay buffer cannot be captured in a CUDA graph: call sample() before it")
        stream = th.cuda.current_stream(self.device)  # pragma: no cover
        if self.stream is not None and stream != self.stream:  # pragma: no cover
            stream.wait_stream(self.stream)
            for segment in self.segments.values():
                segment.block.record_stream(stream)
        self.stream = stream  # pragma: no cover

    @property
    def device_nbytes(self) -> int:
        """The memory that it takes on the device, in bytes."""
        return sum(segment.block.numel() for segment in self.segments.values())

    def read(
        self,
        references: NDArray[np.int64],
        encoder: FrameEncoder,
        dtype: np.dtype[Any],
        slot_of: SlotOf | None = None,
        *,
        empty: Empty = checked_empty,
        num_threads: int = 1,
        to_host: bool = True,
    ) -> Any:
        """Decode slots to a tensor on the device, or an array; see :meth:`.SlotLog.read`."""
        if to_host:
            return self._read_to_host(references, encoder, dtype, slot_of)
        references, device = np.ascontiguousarray(references), self.device
        out = th.empty((len(references), *encoder.item_shape), dtype=torch_dtype(encoder.dtype), device=device)
        with device_errors(out.nbytes, device):
            self._decoder.decode(references, encoder.layout, out, slot_of or (lambda position: (position,)))
        if encoder.dtype == dtype:
            return out
        if encoder.dtype.kind in "biu" and dtype.kind in "biu":
            return out.to(torch_dtype(dtype))
        return th.from_numpy(out.cpu().numpy().astype(dtype)).to(device)  # as NumPy casts NaN and large numbers

    def _read_to_host(
        self, references: NDArray[np.int64], encoder: FrameEncoder, dtype: np.dtype[Any], slot_of: SlotOf | None
    ) -> NDArray[Any]:
        """Decode slots on the device, and return a copy in the memory of the process."""
        references, item_shape = np.ascontiguousarray(references), encoder.item_shape
        out = checked_empty((len(references), *item_shape), dtype)
        n = max(1, MAX_COPIED_NBYTES // max(out.nbytes // max(len(out), 1), 1))
        for first in range(0, len(references), n):
            part = references[first : first + n]
            items = th.empty((len(part), *item_shape), dtype=torch_dtype(encoder.dtype), device=self.device)
            try:
                with device_errors(items.nbytes, self.device):
                    out[first : first + n] = self._decoder.decode_and_wait(part, encoder.layout, items)
            except CorruptPayload as error:
                index = first + error.index
                raise CorruptPayload(error.reason, index, None if slot_of is None else slot_of(index)) from error
        return out

    def gather(
        self, references: NDArray[np.int64], n_frames: int, accepted: AcceptedCodec | None = None
    ) -> PayloadBatch:
        """Return the payloads of slots; see :meth:`.SlotLog.gather`."""
        batch = super().gather(references, n_frames, accepted)
        self.drop_cached(self.segments)  # the segments that were copied for it
        return batch

    def __getstate__(self) -> Any:
        self.use_current_stream()
        _, *counts = super().__getstate__()
        with device_errors(0, self.device):
            return {number: segment.download() for number, segment in self.segments.items()}, *counts

    def __deepcopy__(self, memo: dict[int, Any]) -> MemoryLog:
        log = memo[id(self)] = _in_memory(self.__getstate__())
        return log

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_memory, (self.__getstate__(),)


def _in_memory(state: Any) -> MemoryLog:
    """Return a log in memory, which copies and pickles are."""
    log = MemoryLog()
    log.__setstate__(state)
    return log


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


def new_device_log(device: th.device) -> Callable[[Codec], MemoryLog]:
    """Return what creates the logs of ``storage="device"``, given a codec: on the CPU, those in memory.

    :raises ValueError: if the device is neither a GPU of NVIDIA nor the CPU
    :raises ImportError: if a package that it needs is missing
    """
    if device.type == "cpu":
        return lambda codec: MemoryLog()
    if device.type != "cuda" or th.version.hip is not None:
        raise ValueError(f"storage='device' is for GPUs of NVIDIA and the CPU, got device={str(device)!r}")
    from sb3_compressed.kernels.cuda_launch import CudaLaunch

    launch = CudaLaunch(device)  # of the current device, if it has no number
    return lambda codec: DeviceLog(launch.device, codec, launch)  # pragma: no cover  # needs CUDA


def _new_blocks(nbytes: int, device: th.device) -> tuple[th.Tensor, th.Tensor]:
    """Return a block of device memory, and memory of the process from which it can be copied in the background."""
    # No tensors of inference mode, which later calls could not write to.
    with th.inference_mode(False), device_errors(nbytes, device):
        block = th.empty(nbytes, dtype=th.uint8, device=device)
        return block, th.empty(nbytes, dtype=th.uint8, device="cpu", pin_memory=device.type == "cuda")


@contextmanager
def device_errors(nbytes: int, device: th.device) -> Iterator[None]:
    """Convert errors of the device to those of a buffer.

    :param nbytes: what is requested
    :raises MemoryError: if there is not enough memory; nothing has changed
    :raises StorageError: if the device failed, and with it the content
    """
    try:
        yield
    except RuntimeError as error:
        if "out of memory" in str(error):
            free, total = th.cuda.mem_get_info(device) if device.type == "cuda" else (0, 0)
            raise MemoryError(
                f"there are no {nbytes / 1e6:,.1f} MB left for payloads: {free / 1e6:,.0f} of {total / 1e6:,.0f} MB "
                f"are free on {device}, or too little memory can be pinned; decrease buffer_size, or use "
                "storage='memory'"
            ) from error
        if "CUDA error" not in str(error):
            raise
        raise StorageError(
            f"{device} failed, so the observations of this buffer are lost; checkpoints are not: {error}"
        ) from error
