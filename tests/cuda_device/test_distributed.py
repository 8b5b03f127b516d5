"""The learner's buffer of a distributed training, on a CUDA device."""

from __future__ import annotations

import pytest
from distributed.buffers import actions_of, add_rows, new_buffer
from distributed.conftest import local_ray
from distributed.emitted import observation

__all__ = ["local_ray"]

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.mark.parametrize("options", [{}, {"sampler": "prioritized"}], ids=["uniform", "prioritized"])
def test_batches_are_what_was_added(options: dict[str, str]) -> None:
    buffer = new_buffer("transposed", 60, n_envs=2, n_shards=2, device="cuda", **options)
    add_rows(buffer, "transposed", range(40))
    buffer.flush()
    for _ in range(10):
        batch = buffer.sample(32)
        assert batch.observations.device.type == batch.rewards.device.type == "cuda"
        found = batch.observations.cpu().numpy()
        for row, action in enumerate(actions_of(batch)):
            number, env = divmod(action, 2)
            expected = observation("transposed", number, env)
            assert found[row].tobytes() == expected.reshape(found[row].shape).tobytes()
        if options:
            buffer.update_priorities(batch.indices, batch.rewards.reshape(-1).abs() + 0.1)
    buffer.close()
