"""How long batches take until they are on a CUDA device, relative to SB3's buffer, in one process.

The same frames are added to SB3's buffer and another one, both for the device, and batches are sampled from them in
turns, each from random numbers of its own, as if the other one did not exist. Measured are the time of the call, after
which the training goes on, and the time until the batch is on the device, when it waits. Before each batch the thread
sleeps, as long as a fast update takes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
from frame_recording import play
from measurement import Measurement
from ratios import ratio_interval
from session import serve
from sources import record

from adapters import sb3_class
from sb3_compressed import buffer_statistics

__all__ = ["measure"]

UPDATE_SECONDS = 0.002  # between two batches


def measure(
    name: str, scene: str, batch_size: int, rows: int, n_batches: int, warm_up: int, device: str = "cuda"
) -> Measurement:
    """Return median milliseconds of both buffers, and their ratios with intervals of 95%.

    :param name: of the buffer
    :param rows: transitions in each buffer
    :param warm_up: batches before those that are measured
    :return: for ``call`` and ``ready``, what a buffer takes (``ours`` and ``theirs``), ``ratio``, ``low`` and ``high``;
        and ``nbytes`` of a transition, on the device if it is there
    """
    import torch as th

    recording = record(scene, 1, rows)
    buffers = [new_buffer(each, recording, rows, device) for each in ("SB3", name)]
    for step in islice(play(recording), rows):
        for buffer in buffers:
            step.add_to(buffer)
    wait: Callable[[], None] = th.cuda.synchronize if device == "cuda" else lambda: None
    calls: list[list[float]] = [[], []]
    ready: list[list[float]] = [[], []]
    states: list[Any] = [np.random.get_state()] * 2  # noqa: NPY002  # what SB3 draws from
    for _ in range(warm_up + n_batches):
        for index, buffer in enumerate(buffers):
            np.random.set_state(states[index])  # noqa: NPY002
            time.sleep(UPDATE_SECONDS)
            wait()
            begin = time.perf_counter()
            batch = buffer.sample(batch_size)
            called = time.perf_counter()
            wait()
            ready[index].append(time.perf_counter() - begin)
            calls[index].append(called - begin)
            states[index] = np.random.get_state()  # noqa: NPY002
            del batch
    result: Measurement = {}
    for key, (theirs, ours) in (("call", calls), ("ready", ready)):
        theirs, ours = theirs[warm_up:], ours[warm_up:]
        low, high = ratio_interval(ours, theirs)
        result[key] = {
            "ours": 1000 * statistics.median(ours),
            "theirs": 1000 * statistics.median(theirs),
            "ratio": statistics.median(ours) / statistics.median(theirs),
            "low": low,
            "high": high,
        }
    size = buffer_statistics(buffers[1])
    result["nbytes"] = (size.device_memory_nbytes or size.memory_nbytes) / size.transitions
    return result


def new_buffer(name: str, recording: Any, rows: int, device: str) -> Any:
    """Return an empty buffer."""
    space = recording.observation_space
    cls, arguments = sb3_class(name, "replay", space)
    return cls(rows, space, recording.action_space, device=device, n_envs=1, **arguments)


if __name__ == "__main__":
    serve(measure)
