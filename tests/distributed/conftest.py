"""Fixtures of tests that need Ray."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from fork_server import fork_executables

from distributed.dying_shard import DEATHS
from distributed.ray_logs import errors_of_ray

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def local_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Start Ray on this machine, once for all tests of a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        # Processes of actors import helpers of the tests.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        patch.setenv(DEATHS, str(tmp_path_factory.mktemp("deaths")))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.shutdown()  # what a code block of the documentation has started in this process
        with pytest.MonkeyPatch.context() as executable:
            executable.setattr(sys, "executable", sys.executable)  # restored at the end of the block
            fork_executables()
            context: Any = ray.init(
                "local", include_dashboard=False, num_cpus=2, object_store_memory=150_000_000, log_to_driver=False,
                logging_level=logging.WARNING,
            )  # fmt: skip
        yield
        ray.shutdown()
    assert errors_of_ray(Path(context.address_info["session_dir"])) == []
