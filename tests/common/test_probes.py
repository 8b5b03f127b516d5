"""Probes detect assumptions that do not hold, and buffers give the same results with fallbacks."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from programs import run

from sb3_compressed.arrays import batch_pool, payload_kernels
from sb3_compressed.common import probes


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="other interpreters may use the fallbacks")
@pytest.mark.parametrize("probe", [probes.references_are_counted, payload_kernels._layout_is_known])
def test_probes_succeed_in_cpython(probe: Any) -> None:
    assert probe(), "the package would use slow fallbacks"


def test_environment_variable_forces_fallbacks() -> None:
    found = batch_pool.REFERENCES_ARE_COUNTED, payload_kernels.LAYOUT_IS_KNOWN
    assert found == (not probes.FORCE_FALLBACKS,) * 2
    code = """
from sb3_compressed.arrays import batch_pool, payload_kernels
print(batch_pool.REFERENCES_ARE_COUNTED, payload_kernels.LAYOUT_IS_KNOWN)
"""
    assert run(code, SB3_COMPRESSED_FORCE_FALLBACKS="1") == "False False\n"


def test_probe_that_raises_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "FORCE_FALLBACKS", False)
    assert probes.holds(lambda: True)
    assert not probes.holds(lambda: bool(1 // 0))
    monkeypatch.delattr(sys, "getrefcount")  # PyPy has none
    assert not probes.holds(probes.references_are_counted)


def test_unknown_object_layout_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_kernels, "TYPE", payload_kernels.TYPE - 8)
    assert not payload_kernels._layout_is_known()
