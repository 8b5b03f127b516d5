"""The learner decodes batches that were requested before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from drawn_examples import FACTOR
from interrupts import bytecodes, evenly, interrupt

from distributed.buffers import add_rows, assert_true, new_buffer, pipeline_of, refreshed
from sb3_compressed import CorruptPayload
from sb3_compressed.distributed import DistributedReplayBuffer, sample_pipeline
from sb3_compressed.distributed.batch_decoding import BatchDecoder
from sb3_compressed.distributed.sample_pipeline import Part

#: At how many bytecodes of the pipeline, and of everything, a call is interrupted.
N_INTERRUPTS = (40, 10) if FACTOR is None else (150, 30)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


@pytest.fixture(scope="module")
def shared(local_ray: None) -> Iterator[DistributedReplayBuffer]:
    """Return a buffer in 2 shards."""
    buffer = new_buffer("transposed", 60, n_envs=4, n_shards=2, num_threads=2)
    add_rows(buffer, "transposed", range(60))
    yield buffer
    buffer.close()


@pytest.fixture
def images(shared: DistributedReplayBuffer) -> Iterator[DistributedReplayBuffer]:
    """Return that buffer without any batches that were requested."""
    refreshed(shared)
    before = shared._pipeline
    yield shared
    shared._pipeline = before


@pytest.mark.parametrize("prefetch", [0, 16])
def test_batches_keep_their_memory_while_they_are_used(images: DistributedReplayBuffer, prefetch: int) -> None:
    images._pipeline = pipeline_of(images, prefetch)
    held: list[Any] = []
    for _ in range(12):
        batch = images.sample(32)
        held = [*held[-3:], batch]
        for each in held:  # whose memory was not reused
            assert_true(each, "transposed", 4)


def test_a_damaged_payload_is_an_error_of_the_batch_that_contains_it(
    images: DistributedReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: Callable[..., Any] = BatchDecoder.decoded
    damaged: list[list[Part]] = []

    def decoded(self: BatchDecoder, parts: list[Part], name: str) -> Any:
        if len(damaged) < 3:
            damaged.append(parts)
        if parts is damaged[-1] and len(damaged) == 3:
            raise CorruptPayload("it is damaged")
        return expected(self, parts, name)

    monkeypatch.setattr(BatchDecoder, "decoded", decoded)
    for _ in range(2):
        assert_true(images.sample(8), "transposed", 4)
    with pytest.raises(CorruptPayload, match="it is damaged"):
        images.sample(8)
    assert_true(images.sample(8), "transposed", 4)


def test_ctrl_c_at_any_time_loses_at_most_the_batch(images: DistributedReplayBuffer) -> None:
    images._pipeline = pipeline_of(images, 2)

    def sample() -> None:
        images.sample(16)

    def three() -> None:
        for _ in range(3):
            sample()

    three()  # which runs what no later one does, such as imports
    # Python handles no signals between the end of a with block and the release of its lock.
    found = [at for at in bytecodes(three) if at[0].co_name != "_claim"]
    assert len(found) > 280
    of_pipeline = [at for at in found if at[0].co_filename == sample_pipeline.__file__]
    for at in evenly(of_pipeline, N_INTERRUPTS[0]) + evenly(found, N_INTERRUPTS[1]):
        # Not each batch runs all of them.
        assert any(interrupt(sample, at, must_reach=False) is not None for _ in range(10))
        batch = images.sample(16)
        assert len(batch.actions) == 16
        assert_true(batch, "transposed", 4)
