"""Actors are restarted, and their calls do not fill the memory of Ray's control process."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from distributed.stopped import until
from sb3_compressed.distributed.ray_session import new_actor

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


class Recorded:
    """An actor whose calls Ray records."""

    def call(self) -> None:
        """Do nothing."""


class Unrecorded(Recorded):
    """An actor whose calls Ray does not record."""


def test_ray_does_not_record_calls() -> None:
    """Each process sends its records once a second, so all records of the first round precede those of the second."""

    def recorded() -> list[str]:
        events: list[dict[str, Any]] = ray.timeline()
        return [event["cat"] for event in events if "ecorded.call" in event["cat"]]

    actors = [new_actor(Unrecorded, {}), new_actor(Recorded, {"enable_task_events": True})]
    for n_calls in (20, 40):
        for _ in range(20):
            for actor in actors:
                ray.get(actor.call.remote())
        until(lambda n=n_calls: recorded().count("task::Recorded.call") == n)  # type: ignore[misc]
    assert {*recorded()} == {"task::Recorded.call"}
    for actor in actors:
        ray.kill(actor)
