"""``CudaLaunch``: compiles the decoder for GPUs of NVIDIA, and launches it on the stream that PyTorch uses."""

from __future__ import annotations

import hashlib
import importlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch as th

from sb3_compressed.errors import install_command

__all__ = ["CudaLaunch"]

SOURCE = Path(__file__).with_name("device_decoder.cu")
NAME = "decode_batch"
WARPS_PER_BLOCK, LANES = 4, 32


class CudaLaunch:
    """Launches the kernel on a device; see :data:`.device_decoder.Launch`.

    :param device: a CUDA device
    :raises ImportError: if ``cuda-core`` is missing
    :ivar device: the device, with its number
    :raises RuntimeError: if the kernel cannot be compiled
    """

    def __init__(self, device: th.device) -> None:  # pragma: no cover  # needs CUDA
        core = import_cuda_core()
        index = th.cuda.current_device() if device.index is None else device.index
        self.device, self._device = th.device("cuda", index), core.Device(index)
        self._launch, self._config = core.launch, core.LaunchConfig
        with th.cuda.device(index):
            self._device.set_current()
            architecture = "sm_{}{}".format(*th.cuda.get_device_capability(index))
            try:
                self._kernel = core.ObjectCode.from_cubin(compiled(core, architecture)).get_kernel(NAME)
            except Exception:  # the cached file is damaged
                cubin = compiled(core, architecture, is_new=True)
                self._kernel = core.ObjectCode.from_cubin(cubin).get_kernel(NAME)
        self._streams: dict[int, Any] = {}

    def __call__(
        self, slots: int, n_items: int, segments: int, first_segment: int, n_segments: int, codecs: int, n_codecs: int,
        layout: int, out: int, problem: int, n_frames: int,
    ) -> None:  # fmt: skip  # pragma: no cover  # needs CUDA
        """Launch it; see :data:`.device_decoder.Launch`."""
        n_blocks = -(-n_items * n_frames // WARPS_PER_BLOCK)
        if not n_blocks:
            return
        with th.cuda.device(self.device):
            stream = th.cuda.current_stream()
            handle = stream.cuda_stream
            if handle not in self._streams:
                self._streams[handle] = self._device.create_stream(_StreamOfTorch(stream))
            config = self._config(grid=n_blocks, block=WARPS_PER_BLOCK * LANES)
            arguments = slots, n_items, segments, first_segment, n_segments, codecs, n_codecs, layout, out, problem
            try:
                self._launch(self._streams[handle], config, self._kernel, *arguments)
            except Exception as error:  # those of cuda-core are not PyTorch's
                raise RuntimeError(f"CUDA error: {error}") from error


class _StreamOfTorch:  # pragma: no cover  # needs CUDA
    """A stream of PyTorch in the protocol of ``cuda-core``."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.cuda_stream


def import_cuda_core() -> Any:
    """Import ``cuda-core``; raise ``ImportError`` with the command that installs it."""
    try:
        core = importlib.import_module("cuda.core")
    except ImportError as error:
        message = f"storage='device' needs cuda-core, which is not installed: {install_command('cuda')}"
        raise ImportError(message, name="cuda.core") from error
    return core


def compiled(core: Any, architecture: str, *, is_new: bool = False) -> bytes:
    """Return the kernel for an architecture such as ``sm_90``, from the user's cache folder or from NVRTC.

    :param is_new: whether to replace the cached one
    :raises RuntimeError: if it cannot be compiled
    """
    source = SOURCE.read_text()
    digest = hashlib.sha256(f"{core.__version__} {architecture} {source}".encode()).hexdigest()[:32]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "sb3_compressed"
    path = folder / f"{SOURCE.stem}-{digest}.cubin"
    if not is_new:
        with suppress(OSError):
            return path.read_bytes()
    try:
        options = core.ProgramOptions(std="c++17", arch=architecture)
        cubin = bytes(core.Program(source, code_type="c++", options=options).compile("cubin").code)
    except Exception as error:  # of NVRTC, which is missing, or too old for the device
        raise RuntimeError(
            f"NVRTC could not compile the decoder for {architecture}: {error}. It comes with PyTorch's builds for "
            "CUDA; otherwise, install nvidia-cuda-nvrtc of the same version"
        ) from error
    with suppress(OSError):  # without a cache, each process compiles it
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            unfinished.write_bytes(cubin)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    return cubin
