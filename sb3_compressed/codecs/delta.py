"""``delta`` and ``auto``: frames as differences from references, or by other coders, or uncompressed.

Most of a game's frame is background. Training selects a few reference frames; a payload has only the runs of bytes
that differ from the nearest of them. In a scrolling game nothing stays in its place, so equal bytes may also be copied
from anywhere in the references, or from the frame itself: from the line above, from another color plane, or from an
equal tile, as in LZ77 (Ziv and Lempel 1977). Decoding is copying, which is faster than any general-purpose codec.

The bytes of a payload are documented in :mod:`.delta_format`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import zstandard
from numpy.typing import NDArray

from sb3_compressed.codecs.codec import (
    UINT8,
    BytesCodec,
    Levels,
    TrainableCodec,
    frame_bytes,
    output_rows,
)
from sb3_compressed.codecs.delta_format import CODEC_STATE, FIRST_REFERENCE, LZ4_BLOCK, PACKED, RAW
from sb3_compressed.codecs.payloads import Payloads
from sb3_compressed.codecs.picture_layout import PictureLayout
from sb3_compressed.codecs.reference_frames import (
    MAX_FRAME_NBYTES,
    MAX_REFERENCES,
    ReferenceFrames,
    delta_kernels,
    select_references,
)
from sb3_compressed.codecs.whole_frames import lz4_payloads, packed_payloads, raw_payloads
from sb3_compressed.codecs.zstd_dict import ZstdDict
from sb3_compressed.errors import CodecError, CorruptPayload

__all__ = ["Delta", "ReferenceFrames", "coder_of"]

#: Coders of frames without a small delta.
CODERS = "raw", "lz4", "zstd"
#: Frames of a training sample that searches are tried on.
N_HELD_OUT = 24
#: What is decided on them.
SEARCHES = "tries_delta", "tries_coder", "tries_lz4", "tries_packed", "finds_tiles"
#: Frames of more channels are not images.
MAX_CHANNELS = 4

INT64 = np.dtype(np.int64)
#: Returns the state of a codec, without a frame of Python.
STATE_OF = attrgetter("_state")


@dataclass(frozen=True)
class Delta(BytesCodec, TrainableCodec):
    """Stores each frame as differences from trained reference frames, by another coder, or uncompressed.

    With the coder LZ4, as ``auto`` uses it, a frame without a small delta is stored as the smallest of its delta, a
    block of LZ4, packed differences and the uncompressed frame. Training selects references only, and decides which
    searches pay. With another coder, it also trains the dictionary.

    :param compresslevel: level of Zstandard for frames that it encodes: 1 (fast) to 22 (smallest), or -1 (faster) to
        -100 (fastest)
    :param dictionary: the trained dictionary for those frames
    :param references: the trained reference frames
    :param coder: how frames without a small delta are encoded: ``"raw"``, ``"lz4"`` or ``"zstd"``
    :param tries_delta: whether frames are compared with the references
    :param tries_coder: whether frames with a large delta are also encoded by ``coder``, without references, to store
        the better of both
    :param tries_lz4: with the coder LZ4, whether frames are compressed by LZ4
    :param tries_packed: with the coder LZ4, whether frames are stored as packed differences
    :param channels: the number of channels of frames that are stored in channel-last order
    :param channel_last_nbytes: the size of these frames in bytes; 0 if all frames are stored in C order
    :param finds_tiles: whether the encoder searches for equal tiles in the frame itself, which takes more time
    :param is_short_lived: whether frames are stored for one update: then tiles are not searched for, and deltas only
        where most frames have a small one, since large ones take longer to encode than they save
    """

    name: ClassVar[str] = "delta"
    levels: ClassVar[Levels] = ZstdDict.levels
    typical_ratio: ClassVar[float] = 0.04
    is_parallel: ClassVar[bool] = True
    library_errors: ClassVar[tuple[type[Exception], ...]] = (zstandard.ZstdError,)

    #: The number of references that training selects. More make payloads smaller and encoding slower.
    N_REFERENCES: ClassVar[int] = 16
    #: A delta of at most this fraction of its frame is stored without trying the other coder.
    SMALL_DELTA: ClassVar[float] = 0.125
    #: A zstd payload is stored if it is smaller than this fraction of the delta: it takes ten times as long to decode.
    MAX_ZSTD_RATIO: ClassVar[float] = 0.4
    #: The same for levels above the default, which are named where memory comes first.
    MAX_HIGH_LEVEL_RATIO: ClassVar[float] = 0.8
    #: A coder of less than this fraction of the training frames is not tried until the next training: a try takes as
    #: long as the delta.
    MIN_SHARE: ClassVar[float] = 1 / 32
    #: Tiles are searched for if that makes training frames smaller than this fraction of what they take without.
    MAX_TILES_RATIO: ClassVar[float] = 0.9

    compresslevel: int = levels.default
    dictionary: bytes = field(default=b"", repr=False)
    references: ReferenceFrames = field(default=ReferenceFrames(), repr=False)
    coder: str = "zstd"
    tries_delta: bool = field(default=True, repr=False)
    tries_coder: bool = field(default=True, repr=False)
    tries_lz4: bool = field(default=True, repr=False)
    tries_packed: bool = field(default=True, repr=False)
    channels: int = field(default=1, repr=False)
    channel_last_nbytes: int = field(default=0, repr=False)
    finds_tiles: bool = field(default=False, repr=False)
    is_short_lived: bool = field(default=False, repr=False)

    _zstd: ZstdDict = field(init=False, repr=False, compare=False)
    _encoders: dict[tuple[int, ...], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _state: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        references = self.references
        if (
            len(references) > MAX_REFERENCES
            or references.frame_nbytes > MAX_FRAME_NBYTES
            or (len(references) * references.frame_nbytes != len(references.content))
        ):
            raise CodecError(
                f"references must be at most {MAX_REFERENCES} whole frames of at most {MAX_FRAME_NBYTES} bytes, "
                f"got {len(references.content)} bytes for frames of {references.frame_nbytes}"
            )
        if self.coder not in CODERS:
            raise CodecError(f"coder must be one of {', '.join(CODERS)}, got {self.coder!r}")
        if self.channels < 1 or self.channel_last_nbytes < 0 or self.channel_last_nbytes % self.channels:
            raise CodecError(f"frames of {self.channel_last_nbytes} bytes cannot have {self.channels} channels")
        object.__setattr__(self, "_zstd", ZstdDict(self.compresslevel, self.dictionary))
        # Kernels read the references by address; the codec, which every slot refers to, keeps them alive.
        state = np.zeros(1, CODEC_STATE)
        state["references"], state["references_nbytes"] = references.rows.ctypes.data, len(references.content)
        state["reference_nbytes"] = references.frame_nbytes
        state["channels"], state["channel_last_nbytes"] = self.channels, self.channel_last_nbytes
        object.__setattr__(self, "_state", state.tobytes())

    def prepare(self) -> None:
        """Import and compile now; see :meth:`Codec.prepare`."""
        delta_kernels()  # a codec without references would not import them
        super().prepare()

    def train(self, frames: NDArray[Any]) -> Delta:
        """Return a codec with references from these frames; see :meth:`TrainableCodec.train`."""
        trained = self._trained_with_zstd(frames) if self.uses_zstd else self._trained_with_searches(frames)
        return self if trained == self else trained

    def _trained_with_zstd(self, frames: NDArray[Any]) -> Delta:
        """Return this codec with a dictionary and references."""
        rows = self._rows(frames)
        trained = replace(self._with_references(rows), dictionary=self._zstd.train(rows).dictionary)
        if trained.references is not self.references:
            n_zstd = sum(coder_of(payload) == "zstd" for payload in trained.encode(frames))
            trained = replace(trained, tries_coder=n_zstd >= self.MIN_SHARE * len(frames))
        return trained

    def _trained_with_searches(self, frames: NDArray[Any]) -> Delta:
        """Return this codec with references, for the order of these frames, and with the searches that pay."""
        ordered = self._with_order_of(frames)
        rows = ordered._rows(frames)
        # References encode frames like those that they are from in a few bytes. So what pays is decided on the last
        # frames of the sample after training on the others, as they will be used.
        n_held_out = min(N_HELD_OUT, len(rows) // 3)
        searches = {}
        if n_held_out:
            tried = ordered._with_references(rows[:-n_held_out])._with_useful_searches(frames[-n_held_out:])
            searches = {name: getattr(tried, name) for name in SEARCHES}
        return replace(ordered._with_references(rows), **searches)

    def _with_references(self, rows: NDArray[np.uint8]) -> Delta:
        """Return this codec with references from frames ``(n, frame_nbytes)`` and all searches for deltas."""
        references = select_references(rows, self.N_REFERENCES) or self.references
        searches = dict.fromkeys(("tries_delta", "tries_coder", "tries_lz4", "tries_packed"), True)
        return replace(self, references=references, **searches)  # type: ignore[arg-type]

    def _with_useful_searches(self, frames: NDArray[Any]) -> Delta:
        """Return this codec with the searches that make frames smaller, and without the others.

        It depends on sizes alone, so it is the same in each run.

        :param frames: those of a training sample that the references are not from
        """
        codec = self
        if self._is_channel_last(frames) and not self.is_short_lived:  # grayscale frames rarely contain equal tiles
            without, searching = (
                sum(map(len, replace(self, coder="raw", tries_coder=False, finds_tiles=finds_tiles).encode(frames)))
                for finds_tiles in (False, True)
            )
            codec = replace(self, finds_tiles=searching < self.MAX_TILES_RATIO * without)
        payloads = codec.encode(frames)
        if self.is_short_lived:
            small = self.SMALL_DELTA * frames[0].nbytes
            n_small = sum(coder_of(payload) == "delta" and len(payload) <= small for payload in payloads)
            if 2 * n_small < len(payloads):
                codec = replace(codec, tries_delta=False)
                payloads = codec.encode(frames)
        return codec._without_unused_coders(payloads)

    def _without_unused_coders(self, payloads: Sequence[bytes]) -> Delta:
        """Return this codec without the coders that fewer than :data:`MIN_SHARE` of some payloads use."""
        least = self.MIN_SHARE * len(payloads)
        n_by = Counter(map(coder_of, payloads))
        tries_others = len(payloads) - n_by["delta"] >= least
        # Those that hardly any frame needs are not worth a decision.
        tries_lz4, tries_packed = (n_by[coder] >= least or not tries_others for coder in ("lz4", "packed"))
        return replace(
            self, tries_delta=n_by["delta"] >= least, tries_coder=tries_others, tries_lz4=tries_lz4,
            tries_packed=tries_packed,
        )  # fmt: skip

    def _with_order_of(self, frames: NDArray[Any]) -> Delta:
        """Return this codec for frames whose bytes are stored in the order that they have in memory."""
        is_channel_last = (
            frames.ndim == 4
            and frames.itemsize == 1
            and 1 < frames.shape[1] <= MAX_CHANNELS
            and frames.size > 0
            and frames.transpose(0, 2, 3, 1).flags.c_contiguous
        )
        channels, channel_last_nbytes = (frames.shape[1], frames[0].nbytes) if is_channel_last else (1, 0)
        return replace(self, channels=channels, channel_last_nbytes=channel_last_nbytes)

    def _rows(self, frames: NDArray[Any]) -> NDArray[np.uint8]:
        """Return frames as bytes ``(n, frame_nbytes)`` in the order in which they are stored."""
        if not self.channel_last_nbytes or not self._is_channel_last(frames):
            return frame_bytes(frames)
        if frames.ndim == 4 and frames.shape[1] == self.channels:
            return frame_bytes(frames.transpose(0, 2, 3, 1))
        return frame_bytes(frame_bytes(frames).reshape(len(frames), self.channels, -1).transpose(0, 2, 1))

    def _is_channel_last(self, frames: NDArray[Any]) -> bool:
        """Return whether the bytes of frames are stored in channel-last order."""
        return self.channel_last_nbytes > 0 and frames.nbytes == self.channel_last_nbytes * len(frames)

    @property
    def state(self) -> bytes:
        """What decoders need, as :data:`.CODEC_STATE`."""
        return self._state

    @property
    def uses_zstd(self) -> bool:
        """Whether payloads may be of zstd."""
        return self.coder == "zstd"

    @property
    def nbytes(self) -> int:
        """The size of the dictionary and the references in bytes."""
        return len(self.dictionary) + len(self.references.content)

    def release_encoder(self) -> None:
        """Free the encoder's tables; see :meth:`TrainableCodec.release_encoder`."""
        self._zstd.release_encoder()
        self._encoders.clear()

    def encode(self, frames: NDArray[Any]) -> list[bytes]:
        """Compress a batch; see :meth:`Codec.encode`."""
        return [*Delta.encode_batch(self, frames)]  # a subclass may have another method that calls this one

    def encode_batch(self, frames: NDArray[Any]) -> Payloads:
        """Compress a batch; see :meth:`Codec.encode_batch`."""
        rows = self._rows(frames) if self.channel_last_nbytes else frame_bytes(frames)
        references = self.references
        n_frames, frame_nbytes = rows.shape
        if not (n_frames and references.content and self.tries_delta) or frame_nbytes != references.frame_nbytes:
            return Payloads.of(self._encode_whole(rows, self._picture_layout(frames)))
        encoder = self._encoders.get(frames.shape[1:]) or self._new_encoder(frames)
        deltas, places = np.empty(n_frames * (frame_nbytes // 4), UINT8), np.empty((n_frames, 3), INT64)
        nbytes = delta_kernels().encode_deltas(rows, encoder.state, deltas, places)
        if nbytes:
            payloads = Payloads(places, deltas)
            payloads.nbytes = nbytes
            return payloads
        sizes = places[:, 1].tolist()
        large = [index for index, size in enumerate(sizes) if not 0 < size <= encoder.small_nbytes]
        max_ratio = 1.0
        if self.uses_zstd:
            is_high = self.compresslevel > self.levels.default
            max_ratio = self.MAX_HIGH_LEVEL_RATIO if is_high else self.MAX_ZSTD_RATIO
        others = self._encode_whole(rows if len(large) == n_frames else rows[large], self._picture_layout(frames))
        better = {
            index: other
            for index, other in zip(large, others, strict=True)
            if not sizes[index] or len(other) < max_ratio * sizes[index]
        }
        whole = Payloads.of([*better.values()])
        if len(better) == n_frames:
            return whole
        places[[*better]] = whole.places
        return Payloads(places, (deltas, whole.owner))

    def _layout_of(self, frames: NDArray[Any]) -> tuple[int, int, int]:
        """Return the bytes of a line of pixels and of a color plane, in the order in which frames are stored.

        The second number is 0 for frames of one channel, and for channel-last ones. The third number is the bytes of a
        pixel if equal tiles are searched for in the frame itself, else 0.
        """
        if self._is_channel_last(frames):
            line, plane, pixel = self.channels * frames.shape[-1], 0, self.channels
        else:
            line, plane, pixel = frames.shape[-1] * frames.itemsize, 0, frames.itemsize
            if frames.ndim > 3 and frames.shape[-1] < frames.shape[1]:  # channel-last
                line *= frames.shape[-2]
            elif frames.ndim > 3 and frames.shape[-3] > 1:
                plane = line * frames.shape[-2]
        return line, plane, pixel if self.finds_tiles else 0

    def _picture_layout(self, frames: NDArray[Any]) -> PictureLayout | None:
        """Return the layout of frames, ``None`` if the order in which they are stored is none of a picture."""
        layout = PictureLayout.of(frames.shape[1:], frames.itemsize)
        # Frames of a codec for channel-last order have it only where their first axis is that of channels.
        has_channels_first = frames.ndim == 4 and frames.shape[1] == self.channels and not layout.is_channel_last
        return layout if has_channels_first or not self._is_channel_last(frames) else None

    def _has_pixels_together(self, layout: PictureLayout) -> bool:
        """Return whether stored frames of a layout are in channel-last order."""
        nbytes = layout.n_planes * layout.height * layout.width
        return layout.is_channel_last or (self.channel_last_nbytes > 0 and nbytes == self.channel_last_nbytes)

    def _encode_whole(self, rows: NDArray[np.uint8], layout: PictureLayout | None = None) -> list[bytes]:
        """Return the payloads of frames ``(n, frame_nbytes)`` without references.

        :param layout: their layout, without which they are not stored as packed differences
        """
        if self.uses_zstd:
            return self._zstd.encode(rows)
        if self.coder == "raw":
            return raw_payloads(rows)
        payloads = [b""] * len(rows)
        if rows.size and self.tries_packed and layout is not None:
            payloads = packed_payloads(rows, layout, is_channel_last=self._has_pixels_together(layout))
        if rows.size and self.tries_lz4:
            blocks = lz4_payloads(rows)
            payloads = [
                block if block and not 0 < len(payload) <= len(block) else payload
                for block, payload in zip(blocks, payloads, strict=True)
            ]
        larger = [index for index, payload in enumerate(payloads) if not payload]
        if larger:
            raw = raw_payloads(rows if len(larger) == len(rows) else rows[larger])
            for index, payload in zip(larger, raw, strict=True):
                payloads[index] = payload
        return payloads

    def _new_encoder(self, frames: NDArray[Any]) -> Any:
        """Return a :class:`.DeltaEncoder` for frames of this shape, which replaces that for another one."""
        references = self.references
        # A delta of at most this size is stored as it is; larger ones compete with the other coders.
        small_nbytes = int(self.SMALL_DELTA * references.frame_nbytes) if self.tries_coder else references.frame_nbytes
        encoder = delta_kernels().DeltaEncoder(references.rows.reshape(-1), *self._layout_of(frames), small_nbytes)
        self._encoders.clear()
        self._encoders[frames.shape[1:]] = encoder
        return encoder

    @classmethod
    def decode_batch(
        cls, codecs: Sequence[Delta], payloads: Payloads, out: NDArray[Any], done: NDArray[np.uint8] | None = None
    ) -> None:
        """Decode payloads of different codecs of this class; see :meth:`Codec.decode_batch`."""
        rows, done = output_rows(out, len(payloads.places), done)
        if rows.size:
            # As bytes, since NumPy takes several microseconds to concatenate each record.
            states = np.frombuffer(bytearray().join(map(STATE_OF, codecs)), CODEC_STATE)
            layout = PictureLayout.of(out.shape[1:], out.itemsize)
            scratch = np.empty(max(layout.scratch_nbytes, rows.shape[1]), dtype=np.uint8)
            delta_kernels().decode_frames(payloads.places, states, layout.numbers, scratch, rows, done)
        if not done.all():
            cls._decompress_rest(codecs, payloads, rows, done)

    def decompress_frame(self, payload: bytes, nbytes: int) -> bytes:
        """Decompress one payload that no kernel has decoded; see :class:`BytesCodec`."""
        if coder_of(payload) == "lz4":
            raise CorruptPayload(f"it is not a block of LZ4 of a frame of {nbytes} bytes")
        if coder_of(payload) == "packed":
            raise CorruptPayload("its bytes are not packed differences of such a frame")
        if coder_of(payload) != "zstd":
            raise CorruptPayload("it is not a valid delta for the references of its codec")
        raw = self._zstd.decompress_frame(payload, nbytes)
        if not len(raw) == nbytes == self.channel_last_nbytes:
            return raw
        return np.frombuffer(raw, dtype=np.uint8).reshape(-1, self.channels).T.tobytes()

    def compress_frame(self, frame: NDArray[np.uint8]) -> bytes:
        """Compress one frame in the order in which it is stored, without references; see :class:`BytesCodec`."""
        return self._encode_whole(frame[np.newaxis])[0]


def coder_of(payload: bytes) -> str:
    """Return which coder wrote a payload of ``delta``."""
    header = payload[0] if payload else 0
    if header < FIRST_REFERENCE:
        return "zstd"
    return {PACKED: "packed", LZ4_BLOCK: "lz4", RAW: "raw"}.get(header, "delta")
