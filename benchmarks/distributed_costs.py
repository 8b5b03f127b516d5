"""What collectors and weights cost: environments, policies, encoding, and sending weights."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import ray
import torch as th
from distributed_throughput import SEGMENT_ROWS
from frame_recording import Recording, play
from measurement import Measurement
from metrics import one_thread
from process_times import cpu_times
from sb3_envs import wrap_as_sb3
from sources import Source
from stable_baselines3 import DQN

from adapters.ray_buffers import DistributedBuffer, start_ray

__all__ = ["measure_costs"]


class WeightsReceiver:
    """Has a policy whose weights it replaces, for an actor."""

    def __init__(self, policy: Any) -> None:
        one_thread()
        self._policy = policy

    def receive(self, weights: dict[str, Any]) -> None:
        """Replace the weights."""
        self._policy.load_state_dict({name: th.tensor(values) for name, values in weights.items()})


def measure_costs(source: str, recording: Recording, rows: int, seconds: float) -> Measurement:
    """Measure one after the other.

    :param source: the environments of the recording
    :param rows: steps of the buffer
    :param seconds: of each measurement
    :return: seconds of CPU time per transition: ``environment`` and ``policy`` of a collector, ``add`` with encoding
        and sending; per version of the weights: ``publish`` of the learner, ``receive`` of a collector; and
        ``weights_nbytes``
    """
    one_thread()
    start_ray()
    result: Measurement = {}
    of_source = Source(source)
    env = wrap_as_sb3(of_source.make(recording.n_envs), of_source.n_stack)
    model = DQN("CnnPolicy", env, buffer_size=recording.n_envs, device="cpu")
    obs: Any = env.reset()
    used = {"environment": 0.0, "policy": 0.0}
    n, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.process_time()
        actions, _ = model.predict(obs)
        decided = time.process_time()
        obs, *_ = env.step(actions)
        used["policy"] += decided - begin
        used["environment"] += time.process_time() - decided
        n += recording.n_envs
    env.close()
    result |= {key: value / n for key, value in used.items()}
    result["add"] = _add_seconds(recording, rows)
    result |= _weights(model.policy, seconds)
    return result


def _add_seconds(recording: Recording, rows: int) -> float:
    """Return the CPU time of a writer for each transition, after its codec was trained."""
    buffer = DistributedBuffer(recording, rows)
    times: list[float] = []
    for step in itertools.islice(play(recording), rows):
        begin = time.process_time()
        buffer.add(step)
        times.append(time.process_time() - begin)
    buffer.close()
    warm = rows // 4 // SEGMENT_ROWS * SEGMENT_ROWS
    return float(np.mean(times[warm:])) / recording.n_envs


def _weights(policy: Any, seconds: float) -> Measurement:
    weights = {name: values.numpy() for name, values in policy.state_dict().items()}
    receiver: Any = ray.remote(WeightsReceiver).remote(policy)
    ray.get(receiver.receive.remote(ray.put(weights)))
    n, before, end = 0, cpu_times(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        ray.get(receiver.receive.remote(ray.put(weights)))
        n += 1
    used = cpu_times().since(before)
    return {
        "publish": used["learner"] / n,
        "receive": used["WeightsReceiver"] / n,
        "weights_nbytes": float(sum(values.nbytes for values in weights.values())),
    }
