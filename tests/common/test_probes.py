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
    assert run(code, SB3_COMPRESSED_FORCE_FALLBACKS="0") == "True True\n"


def test_probe_that_raises_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "FORCE_FALLBACKS", False)
    assert probes.holds(lambda: True)
    assert not probes.holds(lambda: bool(1 // 0))
    monkeypatch.delattr(sys, "getrefcount")  # PyPy has none
    assert not probes.holds(probes.references_are_counted)


@pytest.mark.parametrize("count", [1, 2, 1 << 32])
def test_constant_reference_counts_are_detected(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Immortal objects have constant counts."""
    monkeypatch.setattr(sys, "getrefcount", lambda _: count)
    assert not probes.references_are_counted()


def test_unknown_object_layout_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_kernels, "TYPE", payload_kernels.TYPE - 8)
    assert not payload_kernels._layout_is_known()


SAMPLES = """
import hashlib, sys
import numpy as np
from gymnasium import spaces
import torch as th
from sb3_compressed import CompressedDictReplayBuffer, CompressedReplayBuffer, CompressedRolloutBuffer
image = spaces.Box(0, 255, (4, 36, 36), np.uint8)
both = spaces.Dict({"image": image, "vector": spaces.Box(-1, 1, (3,), np.float32)})
digest = hashlib.sha256()
def take(tensors):
    for tensor in tensors.values() if isinstance(tensors, dict) else [tensors]:
        digest.update(tensor.numpy().tobytes())
def observe(rng, before):
    image = np.concatenate([before["image"][:, 1:], rng.integers(0, 3, (2, 1, 36, 36)).astype(np.uint8)], axis=1)
    return {"image": image, "vector": rng.normal(size=(2, 3)).astype(np.float32)}
for cls, space, options in (
    (CompressedReplayBuffer, image, {}),
    (CompressedDictReplayBuffer, both, {}),
    (CompressedReplayBuffer, image, {"storage": sys.argv[1]}),
):
    buffer = cls(400, space, spaces.Discrete(2), n_envs=2, device="cpu", **options)
    rng, np_seed = np.random.default_rng(0), np.random.seed(0)
    before = {"image": np.zeros((2, 4, 36, 36), np.uint8), "vector": np.zeros((2, 3), np.float32)}
    for step in range(300):
        after = observe(rng, before)
        one, two = (before, after) if space is both else (before["image"], after["image"])
        buffer.add(one, two, np.zeros((2, 1)), np.zeros(2), np.full(2, step % 50 == 49), [{}, {}])
        before = after
        if step > 10:
            batch = buffer.sample(64)
            take(batch.observations)
            take(batch.next_observations)
rollout = CompressedRolloutBuffer(64, image, spaces.Discrete(2), n_envs=2, device="cpu")
for _ in range(3):
    rollout.reset()
    for _ in range(64):
        before = observe(rng, before)
        rollout.add(before["image"], np.zeros((2, 1)), np.zeros(2), np.zeros(2), th.zeros(2), th.zeros(2))
    for batch in rollout.get(32):
        take(batch.observations)
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_batches_are_the_same_with_and_without_fallbacks(tmp_path: Any) -> None:
    """Other tests compare those without them with SB3's."""
    expected = run(SAMPLES, tmp_path / "a", SB3_COMPRESSED_FORCE_FALLBACKS="0")
    assert run(SAMPLES, tmp_path / "b", SB3_COMPRESSED_FORCE_FALLBACKS="1") == expected
