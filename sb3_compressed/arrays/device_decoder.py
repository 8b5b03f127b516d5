"""``DeviceDecoder``: launches the decoder on a GPU, ``kernels/device_decoder.cu``, with what it reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.codecs import Codec
from sb3_compressed.codecs.delta import Delta
from sb3_compressed.codecs.delta_format import CODEC_STATE
from sb3_compressed.codecs.picture_layout import PictureLayout
from sb3_compressed.codecs.raw import Raw
from sb3_compressed.errors import CorruptPayload

__all__ = ["DeviceDecoder", "Launch", "Reason", "codec_record", "is_decodable", "layout_record"]

#: The records of the kernel, see its source.
SEGMENT = np.dtype([("bytes", np.int64), ("nbytes", np.int64)])
CODEC = np.dtype([*CODEC_STATE.descr, ("kind", np.int64)])
UNUSED, DELTA, UNCOMPRESSED = range(3)
#: A word of the kernel that reports no problem: all bits are set.
NO_PROBLEM = -1
#: Batches whose problems can be reported: as many as may be decoded before the first of them is complete.
MAX_PENDING = 64


class Reason(IntEnum):
    """Why a frame cannot be decoded."""

    DAMAGED_SLOT = 1
    DAMAGED_PAYLOAD = 2
    UNKNOWN_CODEC = 3
    INVALID_PAYLOAD = 4
    NEEDS_ZSTD = 5


DESCRIPTIONS = {
    Reason.DAMAGED_SLOT: "its slot is damaged",
    Reason.DAMAGED_PAYLOAD: "its payload is damaged",
    Reason.UNKNOWN_CODEC: "it does not name a codec of the buffer",
    Reason.INVALID_PAYLOAD: "its payload is not one that its codec writes",
    Reason.NEEDS_ZSTD: "its payload is one of zstd, which a device cannot decode",
}


Launch = Callable[..., None]
"""Launches the kernel on the current stream.

Its arguments are those of the kernel, as integers in the same order, and then the number of frames of an item.
"""


class DecodedLog(Protocol):
    """What is used of a :class:`.DeviceLog`."""

    device: th.device
    n_changes: int
    stream: Any

    @property
    def segments(self) -> Mapping[int, Any]: ...

    @property
    def codecs(self) -> Mapping[int, Codec]: ...

    def upload(self) -> None: ...


class _Pending(NamedTuple):
    """A batch that may not be decoded yet.

    :param n_items: the number of items
    :param n_frames: frames of an item
    :param slot_of: returns the index of the slot of an item
    """

    n_items: int
    n_frames: int
    slot_of: Callable[[int], tuple[int, ...]]


class _Tables(NamedTuple):
    """Records on the device.

    :param n_changes: of the log that they describe
    :param first_segment: the number of the first segment
    """

    n_changes: int
    first_segment: int
    segments: th.Tensor
    codecs: th.Tensor


class DeviceDecoder:
    """Decodes batches on a device with one launch each.

    A payload that cannot be decoded is reported without waiting for the device: the kernel writes to pinned memory,
    which the next calls read. Then the error of an earlier batch is raised.

    :param log: where payloads are
    :param codec: the codec of payloads that name none
    :param launch: launches the kernel
    """

    def __init__(self, log: DecodedLog, codec: Codec | None, launch: Launch) -> None:
        self._log, self._codec, self._launch = log, codec, launch
        self._tables = _Tables(-1, 0, *[th.empty(0, device="cpu")] * 2)
        self._layouts: dict[Any, th.Tensor] = {}
        #: By the id of a codec: the codec, and what its record refers to.
        self._on_device: dict[int, tuple[Codec, th.Tensor]] = {}
        with th.inference_mode(False):
            problems = th.full((MAX_PENDING + 1,), NO_PROBLEM, dtype=th.int64, device="cpu")
            #: A word for each pending batch, and one for those that are waited for.
            self._problems = problems.pin_memory() if log.device.type == "cuda" else problems
        self._pending: deque[_Pending] = deque(maxlen=MAX_PENDING)
        self._n_batches = 0
        self._stream: Any = None

    def decode(
        self,
        references: NDArray[np.int64],
        layout: FrameLayout | None,
        out: th.Tensor,
        slot_of: Callable[[int], tuple[int, ...]],
    ) -> None:
        """Decode slots.

        :param references: ``(n,)``
        :param layout: how items are divided into frames; ``None`` if they are not
        :param out: contiguous tensor ``(n, *item_shape)`` on the device
        :param slot_of: returns the index of the slot at a position among the references
        :raises CorruptPayload: if an earlier batch could not be decoded; the error names its slot
        """
        self.check()
        number = self._n_batches % MAX_PENDING
        self._pending.append(_Pending(len(references), 1 if layout is None else layout.n_frames, slot_of))
        self._n_batches += 1
        self._enqueue(references, layout, out, number)

    def decode_and_wait(
        self, references: NDArray[np.int64], layout: FrameLayout | None, out: th.Tensor
    ) -> NDArray[Any]:
        """Decode slots as :meth:`decode` does, and return them as an array.

        :raises CorruptPayload: if one cannot be decoded; ``index`` is its position
        """
        words = self._problems.numpy()
        words[MAX_PENDING] = NO_PROBLEM
        self._enqueue(references, layout, out, MAX_PENDING)
        items: NDArray[Any] = out.cpu().numpy()
        if (word := int(words[MAX_PENDING])) != NO_PROBLEM:
            n_frames = 1 if layout is None else layout.n_frames
            raise CorruptPayload(DESCRIPTIONS[Reason(word & 255)], (word >> 8) // n_frames)
        return items

    def _enqueue(self, references: NDArray[np.int64], layout: FrameLayout | None, out: th.Tensor, number: int) -> None:
        """Launch the kernel.

        :param number: of the word that it writes to if a payload cannot be decoded
        """
        self._log.upload()
        item_shape, itemsize = tuple(out.shape[1:]), out.element_size()
        with th.inference_mode(False):
            slots = self._to_device(references)
            _, first_segment, segments, codecs = self._current_tables()
            key = layout, item_shape, itemsize
            if key not in self._layouts:
                self._layouts[key] = self._to_device(layout_record(layout, item_shape, itemsize))
            self._follow_stream()
            self._launch(
                slots.data_ptr(), len(references), segments.data_ptr(), first_segment, len(segments), codecs.data_ptr(),
                len(codecs), self._layouts[key].data_ptr(), out.data_ptr(), self._problems[number:].data_ptr(),
                1 if layout is None else layout.n_frames,
            )  # fmt: skip

    def check(self) -> None:
        """Raise ``CorruptPayload`` if a batch could not be decoded, as far as the device has come."""
        words = self._problems.numpy()[:MAX_PENDING]
        if (words == NO_PROBLEM).all():
            return
        number = int(np.flatnonzero(words != NO_PROBLEM)[0])
        word = int(words[number])
        words[number] = NO_PROBLEM
        age = (self._n_batches - 1 - number) % MAX_PENDING
        pending, reason = self._pending[-1 - age], f"{DESCRIPTIONS[Reason(word & 255)]} (found in an earlier batch)"
        item = (word >> 8) // pending.n_frames
        if item >= pending.n_items:  # of a batch so long ago that another one has its number
            raise CorruptPayload(reason)
        raise CorruptPayload(reason, item, pending.slot_of(item))

    def _current_tables(self) -> _Tables:
        """Return the records of segments and codecs on the device."""
        n_changes = self._log.n_changes
        if n_changes == self._tables.n_changes:
            return self._tables
        blocks = {number: segment.block for number, segment in self._log.segments.items()}
        codecs = self._log.codecs if self._codec is None else {0: self._codec}
        first = min(blocks, default=0)
        segments = np.zeros(max(blocks, default=-1) + 1 - first, SEGMENT)
        for number, block in blocks.items():
            segments[number - first] = block.data_ptr(), block.numel()
        records = np.zeros(max(codecs, default=-1) + 1, CODEC)
        on_device: dict[int, tuple[Codec, th.Tensor]] = {}
        for number, codec in codecs.items():
            if (known := self._on_device.get(id(codec))) is None:
                _, references = codec_record(codec)
                known = codec, self._to_device(np.frombuffer(references or b"\0", np.uint8))
            on_device[id(codec)] = known
            records[number], _ = codec_record(codec, known[1].data_ptr())
        self._on_device = on_device
        as_rows = (each.view(np.int64).reshape(len(each), each.itemsize // 8) for each in (segments, records))
        self._tables = _Tables(n_changes, first, *map(self._to_device, as_rows))
        return self._tables

    def _follow_stream(self) -> None:
        """Keep the memory of tensors, once they are freed, until the current stream does not read them any more."""
        if self._log.stream != self._stream:  # pragma: no cover  # needs CUDA
            self._stream = self._log.stream
            used = [references for _, references in self._on_device.values()]
            for tensor in (self._tables.segments, self._tables.codecs, *self._layouts.values(), *used):
                tensor.record_stream(self._stream)

    def _to_device(self, array: NDArray[Any]) -> th.Tensor:
        """Return a copy of an array on the device, on its current stream."""
        tensor = th.from_numpy(np.array(array))
        if self._log.device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self._log.device, non_blocking=True)  # pragma: no cover  # needs CUDA


def is_decodable(codec: Codec) -> bool:
    """Return whether the kernel can decode the payloads that a codec writes."""
    return type(codec) is Raw or (type(codec) is Delta and not codec.uses_zstd)


def codec_record(codec: Codec | None, references: int = 0) -> tuple[NDArray[Any], bytes]:
    """Return the kernel's record of a codec, and the bytes of its references.

    :param references: the address of these bytes
    """
    record = np.zeros((), CODEC)
    record["channels"] = 1
    if not isinstance(codec, Delta):
        record["kind"] = UNUSED if codec is None else UNCOMPRESSED
        return record, b""
    state = np.frombuffer(codec.state, CODEC_STATE)[0]
    for name in CODEC_STATE.names or ():
        record[name] = state[name]
    record["kind"], record["references"] = DELTA, references
    return record, codec.references.content


def layout_record(layout: FrameLayout | None, item_shape: tuple[int, ...], itemsize: int) -> NDArray[np.int64]:
    """Return the numbers of frames, of bytes of a frame and of a piece, then those of a frame and of an item."""
    frame_shape = item_shape if layout is None else layout.frame_shape
    frame_nbytes = int(np.prod(frame_shape)) * itemsize
    numbers = [1, frame_nbytes, frame_nbytes]
    if layout is not None:
        numbers = [layout.n_frames, frame_nbytes, layout.piece * itemsize]
    pictures = (PictureLayout.of(shape, itemsize).numbers for shape in (frame_shape, item_shape))
    return np.concatenate([numbers, *pictures])
