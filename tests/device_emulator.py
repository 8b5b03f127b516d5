"""Runs the decoder for GPUs on the CPU, compiled by a C++ compiler; see ``device_emulator.cpp``."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sb3_compressed.kernels
from sb3_compressed import Codec
from sb3_compressed.arrays.device_decoder import CODEC, SEGMENT, Reason, codec_record, layout_record
from sb3_compressed.arrays.frame_layout import FrameLayout
from sb3_compressed.arrays.memory_log import MemoryLog
from sb3_compressed.codecs import TrainableCodec

__all__ = ["Batch", "Emulator", "Reason", "compile_program", "compiler", "run_program"]

SOURCE = Path(__file__).with_suffix(".cpp")
KERNELS = Path(sb3_compressed.kernels.__file__).parent

NO_PROBLEM = (1 << 64) - 1
TIMEOUT_S = 300


@dataclass
class Batch:
    """What one launch of the kernel decodes.

    :param segments: bytes by the number of the segment
    :param slots: addresses of the slots, ``(n,)``
    :param codecs: by the number that payloads name
    :param item_shape: shape of an item
    :param dtype: dtype of items
    :param layout: how items are divided into frames; ``None`` if they are not
    """

    segments: Mapping[int, NDArray[np.uint8]]
    slots: NDArray[np.int64]
    codecs: Mapping[int, Codec]
    item_shape: tuple[int, ...]
    dtype: Any = np.uint8
    layout: FrameLayout | None = None

    @staticmethod
    def of_log(
        log: MemoryLog,
        codec: Codec,
        slots: NDArray[np.int64],
        item_shape: tuple[int, ...],
        dtype: Any = np.uint8,
        layout: FrameLayout | None = None,
    ) -> Batch:
        """Return the batch of slots of a log, of a codec."""
        segments = {number: segment.bytes for number, segment in log.segments.items()}
        codecs = log.codecs if isinstance(codec, TrainableCodec) else {0: codec}
        return Batch(segments, slots, codecs, item_shape, dtype, layout)

    @property
    def first_segment(self) -> int:
        """The number of the first segment."""
        return min(self.segments, default=0)

    @property
    def all_segments(self) -> list[NDArray[np.uint8]]:
        """The segments from the first one on; those that are missing are empty."""
        numbers = range(self.first_segment, max(self.segments, default=-1) + 1)
        return [self.segments.get(number, np.empty(0, np.uint8)) for number in numbers]

    @property
    def all_codecs(self) -> list[Codec | None]:
        """The codecs from number 0 on; ``None`` for those that are missing."""
        return [self.codecs.get(number) for number in range(max(self.codecs, default=-1) + 1)]

    @property
    def layout_record(self) -> NDArray[np.int64]:
        """The kernel's record of the layout."""
        return layout_record(self.layout, self.item_shape, np.dtype(self.dtype).itemsize)

    def new_out(self) -> NDArray[Any]:
        """Return memory for the items."""
        out = np.empty((len(self.slots), *self.item_shape), self.dtype)
        out.view(np.uint8).fill(0xA5) if out.ndim and out.size else None
        return out


class _Launch(ctypes.Structure):
    _fields_ = [
        ("slots", ctypes.c_void_p),
        ("n_items", ctypes.c_int64),
        ("segments", ctypes.c_void_p),
        ("first_segment", ctypes.c_int64),
        ("n_segments", ctypes.c_int64),
        ("codecs", ctypes.c_void_p),
        ("n_codecs", ctypes.c_int64),
        ("layout", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("problem", ctypes.c_void_p),
    ]


class Emulator:
    """The kernel as a library.

    :param folder: where it is compiled
    :param lanes: lanes of a warp
    :param window_nbytes: bytes of a payload that are in shared memory at once
    """

    def __init__(self, folder: Path, lanes: int, window_nbytes: int = 1024) -> None:
        path = folder / f"device_decoder_{lanes}_{window_nbytes}.so"
        macros = f"-DLANES={lanes}", f"-DWINDOW_NBYTES={window_nbytes}"
        _compile(path, "-O2", "-shared", "-fPIC", *macros)
        self._decode = ctypes.CDLL(str(path)).decode

    def decode(self, batch: Batch) -> tuple[NDArray[Any], tuple[int, Reason] | None]:
        """Decode a batch.

        :return: the items, and the number of the first frame that cannot be decoded and why; ``None`` if there is none
        """
        out, layout, slots = batch.new_out(), batch.layout_record, np.ascontiguousarray(batch.slots)
        segments, codecs = np.zeros(len(batch.all_segments), SEGMENT), np.zeros(len(batch.all_codecs), CODEC)
        for record, content in zip(segments, batch.all_segments, strict=True):
            record["bytes"], record["nbytes"] = content.ctypes.data if content.size else 0, content.size
        owners = []
        for number, codec in enumerate(batch.all_codecs):
            _, references = codec_record(codec)
            owners.append(np.frombuffer(references, np.uint8))
            codecs[number], _ = codec_record(codec, owners[-1].ctypes.data)
        problem = ctypes.c_uint64(NO_PROBLEM)
        self.launch(
            slots.ctypes.data, len(slots), segments.ctypes.data, batch.first_segment, len(segments), codecs.ctypes.data,
            len(codecs), layout.ctypes.data, out.ctypes.data, ctypes.addressof(problem),
        )  # fmt: skip
        return out, _problem(problem.value)

    def launch(self, *arguments: int) -> None:
        """Launch the kernel; see :data:`~sb3_compressed.arrays.device_decoder.Launch`."""
        self._decode(ctypes.byref(_Launch(*arguments[:10])))


def _problem(word: int) -> tuple[int, Reason] | None:
    return None if word == NO_PROBLEM else (word >> 8, Reason(word & 255))


def compiler() -> str | None:
    """Return the path of the C++ compiler, ``None`` if there is none."""
    return shutil.which(os.environ.get("CXX", "c++"))


def _compile(target: Path, *options: str) -> None:
    command = compiler()
    assert command is not None
    common = "-std=c++17", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"
    arguments = [command, *common, *options, "-I", str(KERNELS), str(SOURCE), "-o", str(target)]
    subprocess.run(arguments, check=True, timeout=TIMEOUT_S)


def compile_program(folder: Path, lanes: int, sanitizers: str) -> Path | None:
    """Return a program that decodes batches with sanitizers; ``None`` if the compiler does not have them."""
    path = folder / f"device_decoder_{lanes}_{sanitizers.replace(',', '_')}"
    options = f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-g", "-O1"
    macros = "-DIS_PROGRAM", f"-DLANES={lanes}", "-DWINDOW_NBYTES=64"  # which most payloads leave
    try:
        _compile(path, *options, *macros)
    except subprocess.CalledProcessError:
        return None
    return path


def run_program(
    program: Path, batches: Iterable[Batch], folder: Path
) -> list[tuple[NDArray[Any], tuple[int, Reason] | None]]:
    """Decode batches with a program; see :meth:`Emulator.decode`.

    :raises subprocess.CalledProcessError: if a sanitizer finds something, which it prints
    """
    batches = [*batches]
    with open(folder / "batches", "wb") as file:
        for batch in batches:
            file.writelines(_parts(batch))
    # Fibers have stacks that AddressSanitizer does not know.
    options = {"ASAN_OPTIONS": "detect_stack_use_after_return=0"}
    arguments = [str(program), str(folder / "batches"), str(folder / "results")]
    subprocess.run(arguments, check=True, timeout=TIMEOUT_S, env={**os.environ, **options})
    results = []
    with open(folder / "results", "rb") as file:
        for batch in batches:
            word = int.from_bytes(file.read(8), "little")
            out = batch.new_out()
            out = np.frombuffer(file.read(out.nbytes), out.dtype).reshape(out.shape)
            results.append((out, _problem(word)))
    return results


def _parts(batch: Batch) -> Iterable[bytes]:
    """Yield the bytes of a batch for a program."""

    def number(value: int) -> bytes:
        return int(value).to_bytes(8, "little", signed=True)

    def array(content: bytes) -> bytes:
        return number(len(content)) + content

    yield number(batch.first_segment)
    yield array(batch.slots.tobytes())
    yield number(len(batch.all_segments))
    yield from (array(segment.tobytes()) for segment in batch.all_segments)
    yield number(len(batch.all_codecs))
    for codec in batch.all_codecs:
        record, references = codec_record(codec)
        names = "kind", "reference_nbytes", "channels", "channel_last_nbytes"
        yield from (number(int(record[name])) for name in names)
        yield array(references)
    yield array(batch.layout_record.tobytes())
