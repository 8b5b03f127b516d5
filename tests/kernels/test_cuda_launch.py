"""The decoder for GPUs is compiled by NVRTC, once for each device, and is a clear error without it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch as th

from sb3_compressed.arrays.device_log import new_device_log
from sb3_compressed.kernels.cuda_launch import compiled, import_cuda_core

HAS_CUDA_CORE = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.core") is not None


@pytest.mark.skipif(HAS_CUDA_CORE, reason="cuda-core is installed")
def test_a_missing_package_is_named() -> None:
    with pytest.raises(ImportError, match=r"cuda-core.*\[cuda\]"):
        new_device_log(th.device("cuda"))


@pytest.mark.skipif(not HAS_CUDA_CORE, reason="there is no cuda-core: pip install '.[cuda]'")
def test_the_kernel_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = import_cuda_core()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match="sm_1") as caught:
        compiled(core, "sm_1")
    if "libnvrtc" in str(caught.value):
        pytest.skip("there is no NVRTC: install PyTorch for CUDA, or nvidia-cuda-nvrtc")
    cubin = compiled(core, "sm_90")
    [path] = (tmp_path / "sb3_compressed").iterdir()
    assert path.read_bytes() == cubin
    monkeypatch.setattr(core, "Program", None)
    assert compiled(core, "sm_90") == cubin
