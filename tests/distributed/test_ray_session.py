"""Actors are restarted, whatever their arguments are; calls do not fill the memory of Ray's control process."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
import ray
from numpy.typing import NDArray

from distributed.stopped import until
from sb3_compressed.distributed.ray_session import ACTOR_FAILURES, new_actor

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


class Recorded:
    """An actor whose calls Ray records."""

    def call(self) -> None:
        """Do nothing."""


class Unrecorded(Recorded):
    """An actor whose calls Ray does not record."""


class Keeper:
    """An actor with an argument."""

    def __init__(self, content: NDArray[np.uint8]) -> None:
        self._content = content

    def content(self) -> tuple[int, NDArray[np.uint8]]:
        """Return the process and the argument."""
        return os.getpid(), self._content


@pytest.mark.parametrize("nbytes", [10, 2_000_000])
def test_an_actor_is_restarted_with_its_arguments(nbytes: int) -> None:
    content = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    actor = new_actor(Keeper, {}, content)
    pids: list[int] = []

    def restarted() -> Any:
        try:
            pid, found = ray.get(actor.content.remote())
        except ACTOR_FAILURES:
            return None
        return None if pid in pids else (pid, found)

    for _ in range(3):  # Ray may have deleted arguments by then
        pid, found = until(restarted)
        np.testing.assert_array_equal(found, content)
        pids.append(pid)
        os.kill(pid, signal.SIGKILL)
    ray.kill(actor)


def test_arguments_that_ray_cannot_keep_are_an_error() -> None:
    with pytest.raises(ValueError, match="Keeper"):
        new_actor(Keeper, {}, np.zeros(100 << 20, np.uint8))


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
