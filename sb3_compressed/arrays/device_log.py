"""``DeviceLog``: the log of payloads that are in the memory of a GPU."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_compressed.arrays.memory_log import MemoryLog, MemorySegment
from sb3_compressed.codecs import Codec
from sb3_compressed.errors import StorageError

__all__ = ["DeviceLog", "DeviceSegment", "device_errors"]


class DeviceSegment(MemorySegment):
    """A segment in the memory of a device, and while it is appended to, also in that of the process.

    :param number: its number in the log
    :param nbytes: the size of the block; it grows if more is appended
    :param device: the device
    :raises MemoryError: if the device has not enough memory
    """

    def __init__(self, number: int, nbytes: int, device: th.device) -> None:
        self._device = device
        #: The block on the device, ``(nbytes,)`` of uint8.
        self.block = self._new_block(nbytes)
        self.n_uploaded = 0
        super().__init__(number, nbytes)

    def _new_block(self, nbytes: int) -> th.Tensor:
        # Not a tensor of inference mode, which later calls could not write to.
        with th.inference_mode(False), device_errors(nbytes, self._device):
            return th.empty(nbytes, dtype=th.uint8, device=self._device)

    def empty(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory from which the device can copy in the background."""
        with th.inference_mode(False):
            self._host = th.empty(nbytes, dtype=th.uint8, pin_memory=self._device.type == "cuda")
        memory: NDArray[np.uint8] = self._host.numpy()
        return memory

    def grow(self, nbytes: int) -> None:
        """Make the segment larger; see :meth:`.MemorySegment.grow`."""
        self.block, self.n_uploaded = self._new_block(nbytes), 0
        super().grow(nbytes)

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
        """Keep the bytes on the device only."""
        self.bytes = np.empty(0, np.uint8)
        del self._host  # PyTorch reuses pinned memory after the copies from it

    def download(self) -> MemorySegment:
        """Return a copy of the segment in the memory of the process."""
        segment = MemorySegment.__new__(MemorySegment)
        attributes = {name: vars(self)[name] for name in ("number", "next_offset", "n_slots", "codecs")}
        content = self.bytes if self.is_on_host else self.block.cpu().numpy()
        vars(segment).update(attributes, bytes=content[: self.next_offset])
        return segment


class DeviceLog(MemoryLog):
    """Segments in the memory of a device; the last two are in that of the process as well.

    A segment is written to pinned memory and copied from there before the next batch is read. The next segment begins
    with the payloads of the last row, which are then in the one before.

    :param device: the device
    """

    segments: dict[int, DeviceSegment]  # type: ignore[assignment]

    def __init__(self, device: th.device) -> None:
        super().__init__()
        self.device = device
        #: Those whose bytes are in the memory of the process, too.
        self._on_host: list[DeviceSegment] = []
        self._n_changes = 0
        #: The stream of the last copy or launch, ``None`` before, and where there are no streams.
        self.stream: Any = None

    def new_segment(self, number: int, nbytes: int) -> DeviceSegment:
        """Return a segment to append to; raise ``MemoryError`` if the device has not enough memory."""
        segment = DeviceSegment(number, nbytes, self.device)
        self.upload()
        for older in self._on_host[:-1]:
            older.release_host()
        self._on_host = [*self._on_host[-1:], segment]
        self._n_changes += 1
        return segment

    def append_codec(self, codec: Codec) -> int:
        """Refer to a codec from the last segment; see :meth:`.MemoryLog.append_codec`."""
        self._n_changes += 1
        return super().append_codec(codec)

    def _keep_segments(self, numbers: Collection[int]) -> None:
        self._n_changes += 1
        super()._keep_segments(numbers)
        self._on_host = [segment for segment in self._on_host if segment.number in self.segments]

    @property
    def version(self) -> tuple[int, int]:
        """What changes with the blocks and codecs that there are."""
        return self._n_changes, self._on_host[-1].block.data_ptr() if self._on_host else 0  # the last block may grow

    @property
    def mapped_segments(self) -> dict[int, DeviceSegment]:
        """The segments whose bytes are in the memory of the process."""
        return {segment.number: segment for segment in self._on_host}

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
            for segment in self._on_host:
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

    def download(self) -> MemoryLog:
        """Return a copy of the log in the memory of the process, for copies and pickles."""
        log = MemoryLog()
        self.free_unused()
        self.use_current_stream()
        with device_errors(0, self.device):
            segments = {number: segment.download() for number, segment in self.segments.items()}
        state = {name: copy.copy(value) for name, value in vars(self).items() if name in vars(log)}
        vars(log).update(state, segments=segments, _open=None)
        if segments:
            log.last = segments[max(segments)]
        return log


@contextmanager
def device_errors(nbytes: int, device: th.device) -> Iterator[None]:
    """Raise errors that say what happened to the buffer.

    :param nbytes: what is requested
    :raises MemoryError: if the device has not enough memory; nothing has changed
    :raises StorageError: if the device failed, and with it the content
    """
    try:
        yield
    except th.cuda.OutOfMemoryError as error:
        free, total = th.cuda.mem_get_info(device) if device.type == "cuda" else (0, 0)
        raise MemoryError(
            f"{device} has no {nbytes / 1e6:,.1f} MB left for payloads, {free / 1e6:,.0f} of {total / 1e6:,.0f} MB are "
            "free: decrease buffer_size, or use storage='memory'"
        ) from error
    except RuntimeError as error:
        if "CUDA error" not in str(error):
            raise
        raise StorageError(
            f"{device} failed, so the observations of this buffer are lost; checkpoints are not: {error}"
        ) from error
