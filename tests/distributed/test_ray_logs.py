"""``errors_of_ray`` finds what Ray logs about an actor that it could not restart."""

from __future__ import annotations

from pathlib import Path

import programs
import pytest

from distributed.ray_logs import errors_of_ray

pytestmark = pytest.mark.slow

#: In a Ray session of its own, since that of the other tests must not have logged errors.
PROGRAM = """
import numpy as np
import ray
from sb3_compressed.distributed.ray_session import new_actor

class Restartable:
    def __init__(self, content):
        self.content = content

    def size(self):
        return self.content.size

class NotRestartable(Restartable):
    pass

context = ray.init("local", include_dashboard=False, num_cpus=1, object_store_memory=100_000_000, log_to_driver=False)
content = np.zeros(2_000_000, np.uint8)
first = new_actor(Restartable, {}, content)
second = ray.remote(NotRestartable).options(num_cpus=0, max_restarts=1).remote(ray.put(content))
assert ray.get([actor.size.remote() for actor in (first, second)]) == [content.size] * 2
ray.shutdown()
print(context.address_info["session_dir"])
"""


def test_an_actor_with_its_argument_in_the_object_store_is_an_error() -> None:
    done = programs.fresh_outcome(PROGRAM, RAY_USAGE_STATS_ENABLED="0")
    assert done.returncode == 0, done.stderr
    [error] = errors_of_ray(Path(done.stdout.splitlines()[-1]))
    assert "'NotRestartable'" in error
    assert "has constructor arguments in the object store and max_restarts > 0" in error
