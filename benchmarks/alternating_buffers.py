"""Measure the time of a training with each buffer, relative to SB3's, with both in turns in one process.

    python benchmarks/alternating_buffers.py
    python benchmarks/alternating_buffers.py --algorithms PPO --scenes tiny:Crafter-v0 --buffers auto none --pairs 100

In another process, the same training takes up to a quarter more or less time, since its memory lies elsewhere: up to
ten times what a buffer costs. So one process trains one model with SB3's buffer and another one in turns; the network,
its memory and the environment are the same.

Scenes are the sources of ``sources.py``, in three kinds of loops: with the environment; ``recorded:MsPacman`` replays
its frames from memory, as if the environment took no time; ``tiny:MsPacman`` does so with a tiny network, too, so that
the buffer takes most of the time. Settings are in ``settings.py``.

A turn takes some cycles, each of which collects transitions and then updates the network, and is compared with both of
its neighbors. The first cycles of a turn are not measured, since they fill the caches. Transitions of a turn are added
to its buffer alone, so each replay buffer holds half of them.

The C library returns memory to the system when the top of its heap is free, which depends on chance: one of two equal
trainings may have thousands of page faults a second. So the processes here keep freed memory, whatever the buffer.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from machine import version
from measurement import Job, Measurement
from metrics import TimedBatches, TimedCalls, median_us
from ratios import Results, ratio_interval
from session import parser, run_interleaved, save, serve
from settings import N_ENVS, SETTINGS
from stable_baselines3.common.callbacks import BaseCallback
from tables import markdown
from training_loops import (
    RECORDED,
    ROLLOUT_SIZE,
    TINY,
    is_on_policy,
    is_recorded,
    make_env,
    make_model,
    missing,
    recording_of,
)

from adapters.buffer_names import SB3_OPTIMIZED, title
from sb3_compressed import buffer_statistics
from sb3_compressed.buffers.base import CompressedBuffer

SCENES = {
    "DQN": ["MsPacman", "MiniGridRGB-v0", "Crafter-v0", "Doom84-v0"],
    "SAC": ["Humanoid-v5", "CarRacing-v3", f"{RECORDED}CarRacing-v3"],
    "PPO": ["MsPacman", "Crafter-v0"],
}
SCENES["DQN"] += [f"{kind}{scene}" for kind in (RECORDED, TINY) for scene in ("MsPacman", "Crafter-v0", "Doom84-v0")]
SCENES["PPO"] += [f"{kind}{scene}" for kind in (RECORDED, TINY) for scene in ("MsPacman", "Crafter-v0")]
ALGORITHMS = list(SCENES)
SCENES["QRDQN"] = SCENES["DQN"]
SMOKE = [f"{TINY}Noise84-v0"]
#: Measured turns of each buffer, and those before, in which kernels are compiled and codecs trained.
PAIRS, WARM_UP = {"PPO": 20, "SAC": 20}, {"PPO": 3, "SAC": 8}
OTHER_PAIRS, OTHER_WARM_UP = 40, 16
SMOKE_PAIRS = 2
#: Cycles of a turn. One of PPO is a whole rollout and its epochs.
CYCLES, OTHER_CYCLES = {"PPO": 1, "SAC": 10}, 80
#: The share of a turn at its beginning that is not measured.
SETTLING = 0.2
#: Bytes from which the C library (of GNU) returns freed memory to the system.
KEPT_NBYTES = 1_000_000_000


class Turns(BaseCallback):
    """Trains a model with each of two buffers in turns, the first one in even turns.

    :param model: the model
    :param buffers: the two
    :param n_cycles: of a turn
    :param n_settling: cycles at the beginning of a turn that are not measured
    :ivar seconds: of each turn
    :ivar cpu: CPU seconds of all threads of the process in each turn
    """

    def __init__(self, model: Any, buffers: tuple[Any, Any], n_cycles: int, n_settling: int) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self._buffers = buffers
        self._attribute = "rollout_buffer" if hasattr(model, "rollout_buffer") else "replay_buffer"
        self._n_cycles, self._n_settling = n_cycles, n_settling
        self._cycle = 0
        self._update: Callable[..., None] = model.train
        # A rollout belongs to the update after it, so buffers change between an update and the next rollout, where SB3
        # calls no callback.
        model.train = self._train

    def _on_step(self) -> bool:
        return True

    def _on_training_start(self) -> None:
        self._begin()

    def _on_rollout_end(self) -> None:
        model: Any = self.model
        starts = getattr(model, "learning_starts", 0)
        if self.num_timesteps < starts:  # both need transitions to sample from
            self._use(int(self.num_timesteps > starts / 2))
        elif self._cycle == 0:
            self._use(0)

    def _train(self, *args: Any, **kwargs: Any) -> None:
        self._update(*args, **kwargs)
        self._cycle += 1
        if self._cycle % self._n_cycles == 0:
            self.seconds.append(time.perf_counter() - self._began)
            self.cpu.append(time.process_time() - self._cpu_began)
            self._use(len(self.seconds) % 2)
        if self._cycle % self._n_cycles == self._n_settling:
            self._begin()

    def _use(self, index: int) -> None:
        setattr(self.model, self._attribute, self._buffers[index])

    def _begin(self) -> None:
        self._began, self._cpu_began = time.perf_counter(), time.process_time()


def neighbors(values: list[float]) -> tuple[list[float], list[float]]:
    """Return the values of odd turns, and for each the mean of those before and after it.

    >>> neighbors([1.0, 5.0, 3.0, 6.0, 5.0])
    ([5.0, 6.0], [2.0, 4.0])
    """
    odd = values[1:-1:2]
    return odd, [(before + after) / 2 for before, after in zip(values[:-2:2], values[2::2])]


def n_steps(algorithm: str, n_pairs: int, warm_up: int, n_cycles: int) -> int:
    """Return the transitions of a training with so many pairs of turns after the warm-up."""
    settings, n_cycles_in_total = SETTINGS[algorithm], (2 * (warm_up + n_pairs) + 1) * n_cycles
    if is_on_policy(algorithm):
        return ROLLOUT_SIZE * n_cycles_in_total
    return int(settings["learning_starts"] + settings["train_freq"] * (n_cycles_in_total + 1))


def measure(
    name: str,
    algorithm: str,
    scene: str,
    n_threads: int | None,
    n_pairs: int,
    warm_up: int,
    n_cycles: int,
    device: str = "cpu",
    batch_size: int | None = None,
    n_envs: int | None = None,
) -> Measurement:
    """Train once and return the ``time`` with a buffer relative to SB3's, its interval of 95%, and the CPU time.

    :param name: of the buffer
    :param scene: begins with ``recorded:`` or ``tiny:`` to replay frames
    :param n_threads: of torch, ``None`` for its default
    :param n_pairs: turns of the buffer
    :param warm_up: turns of each buffer before
    :param n_cycles: of a turn
    :param device: of the model and both buffers
    :param batch_size: ``None`` for that of ``settings.py``
    :param n_envs: number of environments, ``None`` for that of ``settings.py``
    :return: ratios, and median microseconds of the calls of the buffer, ``add`` and ``read`` (``sample``, or a batch of
        ``get``), and of SB3's, ``base add`` and ``base read``
    """
    import torch as th

    if n_threads is not None:
        th.set_num_threads(n_threads)
    steps, n_envs = n_steps(algorithm, n_pairs, warm_up, n_cycles), n_envs or N_ENVS[algorithm]
    env = make_env(algorithm, scene, n_envs, -(-steps // n_envs))
    make: Callable[[str], Any] = partial(
        make_model, algorithm=algorithm, env=env, is_tiny=scene.startswith(TINY), seed=0, rollout_size=ROLLOUT_SIZE,
        warm_up=steps, buffer_size=steps, device=device,
    )  # fmt: skip
    kind = "rollout_buffer" if is_on_policy(algorithm) else "replay_buffer"
    model, buffer = make("SB3"), getattr(make(name), kind)
    model.batch_size = batch_size or model.batch_size
    buffers = getattr(model, kind), buffer
    timed = TimedBatches if is_on_policy(algorithm) else TimedCalls
    calls = [[TimedCalls(each, "add"), timed(each, "get" if is_on_policy(algorithm) else "sample")] for each in buffers]
    turns = Turns(model, buffers, n_cycles, int(SETTLING * n_cycles))
    model.learn(steps, callback=turns)
    env.close()
    measured = slice(2 * warm_up, 2 * (warm_up + n_pairs) + 1)
    ours, base = neighbors(turns.seconds[measured])
    our_cpu, base_cpu = neighbors(turns.cpu[measured])
    low, high = ratio_interval(ours, base)
    result = {"time": sum(ours) / sum(base), "low": low, "high": high, "pairs": len(ours)}
    result["cpu"] = sum(our_cpu) / sum(base_cpu)
    for prefix, of_buffer in zip(("base ", ""), calls):
        for call, found in zip(("add", "read"), of_buffer):
            result[f"{prefix}{call}"] = median_us(found.seconds[len(found.seconds) // 2 :])
    if isinstance(buffer, CompressedBuffer):
        statistics = buffer_statistics(buffer)
        result["memory"] = statistics.memory_nbytes / statistics.raw_memory_nbytes
    return result


def table(results: Results) -> str:
    """Return a row per training and buffer."""
    rows = []
    for label, of_label in results.items():
        for name, each in of_label.items():
            if "error" in each:
                rows.append([label, title(name), "failed", *[""] * 6])
                continue
            cells = [f"{each['time']:.3f}x", f"{each['low']:.3f}x to {each['high']:.3f}x", f"{each['pairs']:.0f}"]
            cells.append(f"{each['cpu']:.2f}x")
            cells += [f"{each[call] / each[f'base {call}']:.2f}x" if call in each else "" for call in ("add", "read")]
            cells.append(f"{each['memory']:.1%}" if "memory" in each else "")
            rows.append([label, title(name), *cells])
    header = ["training", "buffer", "time", "interval", "pairs", "CPU time", "`add`", "batch", "memory"]
    return markdown(header, rows)


def readme_table(results: Results) -> str:
    """Return a row per training with torch on one thread: memory of ``auto`` and time with it."""
    rows = []
    for label, of_label in results.items():
        training, _, setting = label.rpartition(", torch on ")
        found = of_label.get("auto", {})
        if setting == "1 thread" and "memory" in found:
            rows.append([training, f"{found['memory']:.1%}", f"{found['time']:.2f}x"])
    # With environments, recorded scenes, and those with a tiny network, in this order.
    rows.sort(key=lambda row: (TINY in row[0], RECORDED in row[0]))
    return markdown(["training", "memory", "time"], rows)


def sections(results: Results) -> list[str]:
    """Return the report."""
    return [
        "Time and CPU time of a training with a buffer, relative to the same training with SB3's, in one process: a "
        f"model is trained with both in turns of {OTHER_CYCLES} cycles of steps and an update (SAC: {CYCLES['SAC']}; "
        "PPO: a rollout and its epochs), and each turn is compared with its neighbors; with a 95% interval (bootstrap "
        "over turns). So neither a slow phase of the machine nor where the memory of a process lies matters. The "
        "memory that a training frees is kept, with both. `add` and `batch` compare medians of single calls in the "
        "training; `memory` is what the buffer reports at the end, relative to raw arrays. `recorded` scenes are "
        "replayed from memory, and `tiny` ones are trained with a tiny network, too.",
        table(results),
    ]


def main() -> None:
    """Run from the command line."""
    serve(measure)
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):  # of the processes that measure
        os.environ[name] = str(KEPT_NBYTES)
    flags = parser(__doc__, buffers=["auto", SB3_OPTIMIZED], rounds=1)
    flags.add_argument("--algorithms", nargs="+", default=ALGORITHMS, choices=list(SCENES))
    flags.add_argument("--scenes", nargs="+", help="(default: several for each algorithm)")
    flags.add_argument("--torch-threads", nargs="+", default=["1"], choices=["1", "all"], help="(default: 1)")
    flags.add_argument("--device", default="cpu", help="of the model and both buffers (default: cpu)")
    flags.add_argument("--batch-size", type=int, help="(default: that of settings.py)")
    flags.add_argument("--envs", type=int, help=f"number of environments (default: {N_ENVS})")
    flags.add_argument("--pairs", type=int, help=f"turns of a buffer (default: {OTHER_PAIRS}, {PAIRS})")
    flags.add_argument("--warm-up", type=int, help=f"turns before (default: {OTHER_WARM_UP}, {WARM_UP})")
    flags.add_argument("--cycles", type=int, help=f"of a turn (default: {OTHER_CYCLES}, {CYCLES})")
    flags.add_argument("--update", action="store_true", help="keep the results of other trainings in the file --out")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.pairs, arguments.warm_up, arguments.cycles = SMOKE_PAIRS, 1, 5
        arguments.algorithms, arguments.scenes = ["DQN"], SMOKE
    jobs = []
    for algorithm, threads in product(arguments.algorithms, arguments.torch_threads):
        n_cycles = arguments.cycles or CYCLES.get(algorithm, OTHER_CYCLES)
        warm_up = arguments.warm_up or WARM_UP.get(algorithm, OTHER_WARM_UP)
        n_pairs = arguments.pairs or PAIRS.get(algorithm, OTHER_PAIRS)
        n_envs = arguments.envs or N_ENVS[algorithm]
        for scene in arguments.scenes or SCENES[algorithm]:
            if reason := missing(algorithm, scene):
                print(f"skipping {algorithm} on {scene}: {reason}")
                continue
            if is_recorded(scene):
                steps = n_steps(algorithm, n_pairs, warm_up, n_cycles)
                recording_of(algorithm, scene, n_envs, -(-steps // n_envs))
            given = {
                "algorithm": algorithm,
                "scene": scene,
                "n_threads": None if threads == "all" else 1,
                "n_pairs": n_pairs,
                "warm_up": warm_up,
                "n_cycles": n_cycles,
                "device": arguments.device,
                "batch_size": arguments.batch_size,
                "n_envs": n_envs,
            }
            label = f"{algorithm}, {scene}, torch on {'all threads' if threads == 'all' else '1 thread'}"
            label += f", batches of {arguments.batch_size}" * bool(arguments.batch_size)
            label += f", {arguments.envs} environments" * bool(arguments.envs)
            names = [name for name in arguments.buffers if name != SB3_OPTIMIZED or not is_on_policy(algorithm)]
            jobs += [Job(label, name, {"name": name, **given}) for name in names]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    options = {"freed memory": "kept"}
    if arguments.update and arguments.out and arguments.out.exists():
        before = json.loads(arguments.out.read_text())
        results = {**before["results"], **results}
        options = {**options, **before["arguments"]}
        if before["version"] != version():
            options["others measured with"] = before["version"]
    save(arguments.out, "alternating_buffers", options, results, arguments.peers)
    print("\n\n".join(sections(results)))


if __name__ == "__main__":
    main()
