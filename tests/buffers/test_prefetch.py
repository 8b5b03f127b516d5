"""``prefetch=`` of 0.3.0 is accepted, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from numbered import COUNTER, IMAGES, add_steps
from stable_baselines3 import DQN
from support import assert_same_batch, same_draws

from sb3_compressed import (
    CompressedReplayBuffer,
)


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_it_warns_and_batches_are_those_without_it(sampler: str) -> None:
    with pytest.warns(DeprecationWarning, match="prefetch=3 has no effect") as warned:
        given = CompressedReplayBuffer(20, IMAGES, COUNTER, "cpu", sampler=sampler, prefetch=3)
    assert [warning.filename for warning in warned] == [__file__]

    def batches(buffer: Any) -> list[Any]:
        found = []
        for step in range(30):
            add_steps(buffer, range(step, step + 1))
            found.append(buffer.sample(4))
        return found

    plain = CompressedReplayBuffer(20, IMAGES, COUNTER, "cpu", sampler=sampler)
    for pair in zip(*same_draws(lambda: batches(given), lambda: batches(plain), seed=0), strict=True):
        assert_same_batch(*pair)


def test_a_model_warns_at_its_line_and_loads(tmp_path: Any) -> None:
    with pytest.warns(DeprecationWarning, match="prefetch=2") as warned:
        model = DQN(
            "MlpPolicy", "CartPole-v1", replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs={"prefetch": 2}
        )
    assert [warning.filename for warning in warned] == [__file__]
    model.save(tmp_path / "model")
    with pytest.warns(DeprecationWarning, match="prefetch=2"):
        DQN.load(tmp_path / "model", env=model.env)
