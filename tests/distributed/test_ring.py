"""Rings contain what was appended, sample it correctly, and keep priorities when they are resized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import batch_at

from distributed.emitted import NUMBERS, SPACES, sb3_buffer, transition
from distributed.segments import Client, assert_emitted, samples_of, spec_of
from sb3_compressed import CompressedDictReplayBuffer, CompressedNStepReplayBuffer, CompressedReplayBuffer
from sb3_compressed.distributed.block import Block
from sb3_compressed.distributed.codec_cache import CodecCache
from sb3_compressed.distributed.ring import Ring
from sb3_compressed.persistence.buffer_state import named_arrays
from sb3_compressed.samplers import PrioritizedSampler

WHERE = ["memory", "folder"]


def new_ring(kind: str, where: str, tmp_path: Path, n_rows: int = 50, n_envs: int = 2, **options: Any) -> Ring:
    storage = {} if where == "memory" else {"storage": tmp_path / "ring", "storage_mode": "create"}
    return Ring(spec_of(kind, **options), n_rows, n_envs, storage, np.random.default_rng(0))


class Source:
    """Appends numbered transitions to a ring, and adds them to another buffer."""

    def __init__(self, ring: Ring, kind: str, n_envs: int = 2, **options: Any) -> None:
        self.ring, self.kind = ring, kind
        self.client = Client(None, spec_of(kind, **options), kind, n_envs=n_envs)
        self.codecs = CodecCache()
        self.added: list[Any] = []

    def append(self, *lengths: int) -> None:
        for n_rows in lengths:
            first = self.client.next
            for number in range(first, first + n_rows):
                self.added.append(transition(self.kind, number, self.client.n_envs, action=number * self.client.n_envs))
            segment = self.client.segment(n_rows)
            self.codecs.receive(segment.codecs)
            self.ring.append(Block.unpack(segment.block, self.codecs))


def assert_content(ring: Ring, expected: Any) -> None:
    """Assert that a ring has the transitions of a buffer in the same order of time."""
    n_rows = min(ring.n_rows, expected.size())
    assert ring.buffer.size() == n_rows
    ours = (np.arange(ring.buffer.pos - n_rows, ring.buffer.pos)) % ring.n_rows
    theirs = (np.arange(expected.pos - n_rows, expected.pos)) % expected.buffer_size
    found = named_arrays(ring.buffer)
    for name, array in named_arrays(expected).items():
        assert np.asarray(found[name][ours]).tobytes() == np.asarray(array[theirs]).tobytes(), name


# -- samples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
@pytest.mark.parametrize(("kind", "n_steps"), [("images", 3), ("vector", 4), ("dict", 1)])
def test_samples_equal_those_of_a_buffer(kind: str, n_steps: int, sampler: str, where: str, tmp_path: Path) -> None:
    ring = new_ring(kind, where, tmp_path, n_steps=n_steps, sampler=sampler)
    source = Source(ring, kind)
    cls: Any = CompressedDictReplayBuffer if kind == "dict" else CompressedReplayBuffer
    options: dict[str, Any] = {}
    if n_steps > 1:
        cls, options = CompressedNStepReplayBuffer, {"n_steps": n_steps, "gamma": 0.9}
    expected = cls(100, SPACES[kind], NUMBERS, device="cpu", n_envs=2, **options)
    for n_rows in (20, 40):
        source.append(n_rows)
        for each in source.added:
            each.add_to(expected)
        source.added = []
        encoded = ring.sample(100)
        indices = encoded.arrays["numbers"] % 100
        theirs = batch_at(expected, indices // 2, indices % 2)
        ours = samples_of(encoded, kind)
        for name in ("actions", "rewards", "dones", "discounts"):
            value = getattr(theirs, name)
            if value is None:
                assert name not in ours.arrays
                continue
            assert ours.arrays[name].dtype == value.numpy().dtype
            assert ours.arrays[name].tobytes() == value.numpy().tobytes(), name
        for found, value in (
            (ours.observations, theirs.observations), (ours.next_observations, theirs.next_observations),
        ):  # fmt: skip
            for key, each in (value if isinstance(value, dict) else {"": value}).items():
                assert found[key].tobytes() == each.numpy().tobytes()


@pytest.mark.parametrize("where", WHERE)
def test_a_truncation_changes_no_one_step_samples(where: str, tmp_path: Path) -> None:
    ring = new_ring("images", where, tmp_path)
    source = Source(ring, "images")
    ring.truncate()  # nothing to truncate
    source.append(37)  # one episode has just ended
    buffer: Any = ring.buffer
    before = buffer.dones[36].tolist()
    assert before == [1, 0]
    ring.truncate()
    ring.truncate()
    expected = sb3_buffer("images", 50, 2)
    for each in source.added:
        each.add_to(expected)
    for env in range(2):
        rows, envs = np.array([36]), np.array([env])
        ours = batch_at(ring.buffer, rows, envs)
        done = expected.dones[36, env] * (1 - expected.timeouts[36, env])
        assert ours.dones.item() == done
    if where == "folder":
        ring.buffer.close()
        again = Ring(
            spec_of("images"), 50, 2, {"storage": tmp_path / "ring", "storage_mode": "resume"}, np.random.default_rng(0)
        )
        reopened: Any = again.buffer
        assert reopened.dones[36].tolist() == [1, 1]
        assert reopened.timeouts[36].tolist() == [0, 1]


# -- resizing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
@pytest.mark.parametrize(("n_added", "n_rows"), [(0, 80), (20, 2), (20, 21), (75, 21), (75, 80)])
def test_the_newest_rows_stay(n_rows: int, n_added: int, sampler: str, where: str, tmp_path: Path) -> None:
    ring = new_ring("images", where, tmp_path, sampler=sampler)
    source = Source(ring, "images")
    if n_added:
        source.append(n_added)
    ring.session = "s"
    ring.resize(n_rows)
    assert (ring.n_rows, ring.session, ring.n_inserted) == (n_rows, "s", n_added)
    expected = sb3_buffer("images", 50, 2)
    for each in source.added:
        each.add_to(expected)
    assert_content(ring, expected)
    assert ring.mass == ring.n_transitions == 2 * min(n_rows, n_added, 50)
    source.append(4)
    samples = samples_of(ring.sample(150), "images")
    numbers = np.unique(assert_emitted(samples, "images", 2))
    n_now = min(n_rows, min(n_added, 50) + 4)
    assert numbers.min() >= 2 * (n_added + 4 - n_now)
    assert ring.n_transitions == 2 * n_now
    assert len(numbers) > 0.35 * 2 * n_now


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("n_rows", [5, 20, 30, 60])
def test_priorities_stay(n_rows: int, where: str, tmp_path: Path) -> None:
    sampler = PrioritizedSampler(alpha=0.7)
    ring = new_ring("vector", where, tmp_path, n_rows=30, sampler=sampler)
    source = Source(ring, "vector")
    source.append(40)
    numbers = np.unique(ring.sample(5000).arrays["numbers"])
    errors = np.linspace(0.1, 0.5, len(numbers))
    ring.update(numbers, errors)
    source.append(2)
    before = dict(zip(*pairs_of(ring), strict=True))
    sampler_before: Any = ring.buffer.sampler
    new_priority = sampler_before.new_priority
    ring.resize(n_rows)
    after = dict(zip(*pairs_of(ring), strict=True))
    assert after == {action: before[action] for action in sorted(before)[-2 * n_rows :]}
    assert len(after) == 2 * min(n_rows, 30)
    np.testing.assert_allclose(ring.mass, sum(after.values()))
    sampler_after: Any = ring.buffer.sampler
    if n_rows >= 30:
        assert sampler_after.new_priority == new_priority
    if n_rows == 30:
        return
    assert ring.update(numbers, errors) == 0, "numbers of before name none of them"
    assert dict(zip(*pairs_of(ring), strict=True)) == after
    encoded = ring.sample(100)
    assert ring.update(encoded.arrays["numbers"], np.ones(100)) == 100
    later = dict(zip(*pairs_of(ring), strict=True))
    for action in encoded.arrays["actions"].reshape(-1).tolist():
        assert later[action] == pytest.approx(1.0, rel=1e-5)


def pairs_of(ring: Ring) -> tuple[list[float], list[float]]:
    """Return the actions of all transitions, and their priorities."""
    buffer: Any = ring.buffer
    actions: NDArray[Any] = buffer.actions[: buffer.size()].reshape(-1)
    return actions.tolist(), buffer.sampler.priorities.reshape(-1)[: len(actions)].tolist()


def test_rings_of_one_row(tmp_path: Path) -> None:
    ring = new_ring("vector", "memory", tmp_path, n_rows=1)
    source = Source(ring, "vector")
    source.append(1, 1, 3)
    assert ring.n_transitions == 2
    ring.resize(3)
    assert ring.n_transitions == 2
