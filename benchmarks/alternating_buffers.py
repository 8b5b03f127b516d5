"""Measure the time of a training with each buffer, relative to SB3's, with both in turns in one process.

    python benchmarks/alternating_buffers.py
    python benchmarks/alternating_buffers.py --algorithms QRDQN --scenes recorded:Crafter-v0 --pairs 100

The same training takes a quarter more or less time in another process, since its memory lies elsewhere: as much as
ten times what a buffer costs. ``training.py``, which has a process for each buffer, finds such costs only in many
rounds. Here, a model is trained with SB3's buffer and another one in turns. All else is the same: the network, its
memory, the environment and the process.

Trainings are those of ``training.py`` with a replay buffer. Each turn takes ``CYCLES`` cycles of an update and the
steps before the next one, and is compared with both of its neighbors. Its first cycles are not measured: what other
threads do for the buffer of the turn before ends in them, and the caches are filled. Transitions of a turn are added to
its buffer alone, so each holds half of them.

The C library returns memory to the system when the top of its heap is free, which depends on chance: one of two equal
trainings may have thousands of page faults a second. So the processes here keep freed memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from ratios import Results, ratio_interval
from session import parser, run_interleaved, save, serve
from settings import SETTINGS
from stable_baselines3.common.callbacks import BaseCallback
from tables import markdown
from training_loops import RECORDED, make_env, make_model, missing, recording_of

from adapters.buffer_names import SB3_OPTIMIZED, title
from sb3_compressed import buffer_statistics
from sb3_compressed.benchmarking.measurement import Job, Measurement
from sb3_compressed.buffers.replay_mixin import CompressedReplay

ALGORITHMS = ["DQN", "QRDQN", "SAC"]
SCENES = ["MsPacman", "Crafter-v0", "Doom84-v0", "MiniGridRGB-v0"]
SCENES += [f"{RECORDED}{scene}" for scene in ("MsPacman", "Crafter-v0", "Doom84-v0")]
SMOKE = ["recorded:Noise84-v0"]
N_PAIRS, SMOKE_PAIRS = 40, 2
#: Cycles of a turn, and those at its beginning that are not measured.
CYCLES, SETTLING = 80, 16
#: Turns of each buffer before those that are measured: codecs are chosen.
WARM_UP = 16
#: Bytes from which the C library (of GNU) returns freed memory to the system.
KEPT_NBYTES = 1_000_000_000


class AlternatingBuffers(BaseCallback):
    """Trains with each of two buffers in turns, the first one in even turns.

    :param buffers: the two
    :param n_cycles: of a turn
    :param n_settling: cycles at the beginning of a turn that are not measured
    :ivar seconds: of each turn
    :ivar cpu: CPU seconds of all threads of the process in each turn
    """

    def __init__(self, buffers: tuple[Any, Any], n_cycles: int, n_settling: int) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self._buffers = buffers
        self._n_cycles, self._n_settling = n_cycles, n_settling
        self._n = 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        model: Any = self.model
        # Before the update, so that an update and the steps after it belong to one buffer.
        n_left = model.learning_starts - self.num_timesteps
        if n_left > 0:  # both need transitions to sample from
            model.replay_buffer = self._buffers[int(n_left > model.learning_starts / 2)]
            return
        position = self._n % self._n_cycles
        if position == 0:
            if self._n:
                self._end_turn()
            model.replay_buffer = self._buffers[len(self.seconds) % 2]
        if position == self._n_settling:
            self._began, self._cpu_began = time.perf_counter(), time.process_time()
        self._n += 1

    def _end_turn(self) -> None:
        self.seconds.append(time.perf_counter() - self._began)
        self.cpu.append(time.process_time() - self._cpu_began)


def neighbors(values: list[float]) -> tuple[list[float], list[float]]:
    """Return the values of odd turns, and for each the mean of those before and after it.

    >>> neighbors([1.0, 5.0, 3.0, 6.0, 5.0])
    ([5.0, 6.0], [2.0, 4.0])
    """
    odd = values[1:-1:2]
    return odd, [(before + after) / 2 for before, after in zip(values[:-2:2], values[2::2])]


def n_steps(algorithm: str, n_pairs: int, warm_up: int, n_cycles: int) -> int:
    """Return the steps of a training with one environment and so many pairs of turns after the warm-up."""
    settings = SETTINGS[algorithm]
    n_turns = 2 * (warm_up + n_pairs) + 1
    return int(settings["learning_starts"] + settings["train_freq"] * (n_turns * n_cycles + 1))


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
) -> Measurement:
    """Train once and return the ``time`` with a buffer relative to SB3's, its interval of 95%, and the CPU time.

    :param name: of the buffer
    :param scene: with ``recorded:`` before it, frames from memory and a tiny network
    :param n_threads: of torch, ``None`` for its default
    :param n_pairs: turns of the buffer
    :param warm_up: turns of each buffer before
    :param n_cycles: of a turn
    :param device: of the model and both buffers
    :param batch_size: ``None`` for that of ``settings.py``
    """
    import torch as th

    if n_threads is not None:
        th.set_num_threads(n_threads)
    steps = n_steps(algorithm, n_pairs, warm_up, n_cycles)
    env = make_env(algorithm, scene, 1, steps)
    make: Callable[[str], Any] = partial(
        make_model, algorithm=algorithm, env=env, is_fast=scene.startswith(RECORDED), seed=0, rollout_size=steps,
        warm_up=steps, buffer_size=steps, device=device,
    )  # fmt: skip
    buffer = make(name).replay_buffer
    model = make("SB3")
    model.batch_size = batch_size or model.batch_size
    alternation = AlternatingBuffers((model.replay_buffer, buffer), n_cycles, n_cycles * SETTLING // CYCLES)
    model.learn(steps, callback=alternation)
    env.close()
    measured = slice(2 * warm_up, 2 * (warm_up + n_pairs) + 1)
    ours, base = neighbors(alternation.seconds[measured])
    our_cpu, base_cpu = neighbors(alternation.cpu[measured])
    low, high = ratio_interval(ours, base)
    result = {"time": sum(ours) / sum(base), "low": low, "high": high, "pairs": len(ours)}
    result["cpu"] = sum(our_cpu) / sum(base_cpu)
    if isinstance(buffer, CompressedReplay):
        found = buffer_statistics(buffer)
        result["memory"] = found.memory_nbytes / found.raw_memory_nbytes
    return result


def table(results: Results) -> str:
    """Return a row per training and buffer."""
    rows = []
    for label, of_label in results.items():
        for name, each in of_label.items():
            if "error" in each:
                rows.append([label, title(name), "failed", *[""] * 4])
                continue
            cells = [f"{each['time']:.3f}x", f"{each['low']:.3f}x to {each['high']:.3f}x", f"{each['pairs']:.0f}"]
            cells.append(f"{each['cpu']:.2f}x")
            cells.append(f"{each['memory']:.1%}" if "memory" in each else "")
            rows.append([label, title(name), *cells])
    return markdown(["training", "buffer", "time", "interval", "pairs", "CPU time", "memory"], rows)


def sections(results: Results) -> list[str]:
    """Return the report."""
    return [
        "Time and CPU time of a training with a buffer, relative to the same training with SB3's, in one process: a "
        f"model is trained with both in turns of {CYCLES} updates and the steps between them, and each turn is "
        "compared with its neighbors; with a 95% interval (bootstrap over turns). So neither a slow phase of the "
        "machine nor where the memory of a process lies matters. `memory` is what the buffer reports at the end, "
        "relative to raw arrays. "
        "`recorded` scenes are replayed from memory and trained with a tiny network.",
        table(results),
    ]


def main() -> None:
    """Run from the command line."""
    serve(measure)
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):  # of the processes that measure
        os.environ[name] = str(KEPT_NBYTES)
    flags = parser(__doc__, buffers=["auto", SB3_OPTIMIZED], rounds=1)
    flags.add_argument("--algorithms", nargs="+", default=["DQN"], choices=ALGORITHMS, help="(default: DQN)")
    flags.add_argument("--scenes", nargs="+", default=SCENES, help=f"(default: {' '.join(SCENES)})")
    flags.add_argument("--torch-threads", nargs="+", default=["1"], choices=["1", "all"], help="(default: 1)")
    flags.add_argument("--device", default="cpu", help="of the model and both buffers (default: cpu)")
    flags.add_argument("--batch-size", type=int, help="(default: that of settings.py)")
    flags.add_argument("--pairs", type=int, default=N_PAIRS, help="turns of a buffer (default: %(default)s)")
    flags.add_argument("--warm-up", type=int, default=WARM_UP, help="turns before (default: %(default)s)")
    arguments = flags.parse_args()
    warm_up, n_cycles = arguments.warm_up, CYCLES
    if arguments.smoke:
        arguments.scenes, arguments.pairs, warm_up, n_cycles = SMOKE, SMOKE_PAIRS, 1, 5
    jobs = []
    for algorithm, scene, threads in product(arguments.algorithms, arguments.scenes, arguments.torch_threads):
        if reason := missing(algorithm, scene):
            print(f"skipping {algorithm} on {scene}: {reason}")
            continue
        if scene.startswith(RECORDED):
            recording_of(algorithm, scene, 1, n_steps(algorithm, arguments.pairs, warm_up, n_cycles))
        given = {
            "algorithm": algorithm,
            "scene": scene,
            "n_threads": None if threads == "all" else 1,
            "n_pairs": arguments.pairs,
            "warm_up": warm_up,
            "n_cycles": n_cycles,
            "device": arguments.device,
            "batch_size": arguments.batch_size,
        }
        label = f"{algorithm}, {scene}, torch on {'all threads' if threads == 'all' else '1 thread'}"
        label += f", batches of {arguments.batch_size}" * bool(arguments.batch_size)
        jobs += [Job(label, name, {"name": name, **given}) for name in arguments.buffers]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(
        arguments.out,
        "alternating_buffers",
        {"pairs": arguments.pairs, "freed memory": "kept"},
        results,
        arguments.peers,
    )
    print("\n\n".join(sections(results)))


if __name__ == "__main__":
    main()
