"""Measure whether decoding batches ahead makes a training faster, with and without it in turns, in one process.

    python benchmarks/decoding_ahead.py
    python benchmarks/decoding_ahead.py --scenes recorded:Doom84-v0 --torch-threads all --ratios 60

:class:`.Alternation` compares stretches of 32 batches in every training, and decodes ahead unless that costs time. This
is one comparison of more stretches, after a longer warm-up: the time of the training with decoding ahead, relative to
that without it. Trainings are those of ``training.py``: DQN with ``auto``, and with ``recorded:`` before the name of a
scene, frames from memory and a tiny network.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from ratios import Results
from session import parser, run_interleaved, save, serve
from tables import markdown
from training_loops import RECORDED, make_env, make_model, missing, recording_of

from sb3_compressed.benchmarking.measurement import Job, Measurement
from sb3_compressed.buffers.alternation import Alternation

SCENES = ["MsPacman", "Crafter-v0", "Doom84-v0", "MiniGridRGB-v0"]
SCENES += [f"{RECORDED}{scene}" for scene in ("MsPacman", "Crafter-v0", "Doom84-v0")]
SMOKE = ["recorded:Noise84-v0"]
N_RATIOS, SMOKE_RATIOS = 30, 2
#: Batches before the first stretch; steps of a training before the first batch, and for each.
WARM_UP, LEARNING_STARTS, TRAIN_FREQ = 1_500, 1_000, 4


def n_steps(n_ratios: int, warm_up: int) -> int:
    """Return the steps of a training with so many stretches without decoding ahead, and one stretch more."""
    return LEARNING_STARTS + TRAIN_FREQ * (warm_up + (3 * n_ratios + 1) * Alternation.N_ROUNDS)


def measure(name: str, scene: str, n_threads: int | None, n_ratios: int, warm_up: int) -> Measurement:
    """Train once and return the ``time`` with decoding ahead relative to without, and its interval of 95%.

    :param name: compression method
    :param n_threads: of torch, ``None`` for its default
    :param n_ratios: number of stretches without decoding ahead
    :param warm_up: batches before the first stretch
    """
    import torch as th

    if n_threads is not None:
        th.set_num_threads(n_threads)
    Alternation.MIN_RATIOS = Alternation.MAX_RATIOS = n_ratios
    Alternation.WARM_UP = warm_up
    steps = n_steps(n_ratios, warm_up)
    env = make_env("DQN", scene, 1, steps)
    model = make_model(
        name, "DQN", env, is_fast=scene.startswith(RECORDED), seed=0, rollout_size=steps, warm_up=2 * LEARNING_STARTS,
        buffer_size=steps,
    )  # fmt: skip
    model.learn(steps)
    env.close()
    predicted: Any = model.replay_buffer._predicted_batch
    if predicted is None:
        raise RuntimeError("no batch is decoded ahead here: that needs two cores and threads")
    ratios = np.array(predicted.alternation.ratios)
    mean, error = ratios.mean(), ratios.std(ddof=1) / math.sqrt(len(ratios))
    low, high = (math.exp(mean + sign * 1.96 * error) for sign in (-1, 1))
    return {"time": math.exp(mean), "low": low, "high": high, "ratios": len(ratios)}


def table(results: Results) -> str:
    """Return a row per training."""
    rows = [
        [label, f"{each['time']:.3f}x", f"{each['low']:.3f}x to {each['high']:.3f}x", f"{each['ratios']:.0f}"]
        for label, of_label in results.items()
        for each in of_label.values()
        if "error" not in each
    ]
    return markdown(["training", "time", "interval", "ratios"], rows)


def sections(results: Results) -> list[str]:
    """Return the report."""
    return [
        "Time of a training of DQN with `auto` while batches are decoded ahead, relative to the same training while "
        "they are not: each stretch of 32 batches without it is compared with both of its neighbors, and none with its "
        "eight longest rounds; with a 95% interval. A buffer does without where a shorter comparison finds that it "
        "costs time.",
        table(results),
    ]


def main() -> None:
    """Run from the command line."""
    serve(measure)
    flags = parser(__doc__, buffers=["auto"], rounds=1)
    flags.add_argument("--scenes", nargs="+", default=SCENES, help=f"(default: {' '.join(SCENES)})")
    flags.add_argument("--torch-threads", nargs="+", default=["1"], choices=["1", "all"], help="(default: 1)")
    flags.add_argument("--ratios", type=int, default=N_RATIOS, help="stretches without it (default: %(default)s)")
    arguments = flags.parse_args()
    warm_up = WARM_UP
    if arguments.smoke:
        arguments.scenes, arguments.ratios, warm_up = SMOKE, SMOKE_RATIOS, 64
    jobs = []
    for scene in arguments.scenes:
        if reason := missing("DQN", scene):
            print(f"skipping {scene}: {reason}")
            continue
        if scene.startswith(RECORDED):
            recording_of("DQN", scene, 1, n_steps(arguments.ratios, warm_up))
        for threads in arguments.torch_threads:
            label = f"DQN, {scene}, torch on {'all threads' if threads == 'all' else '1 thread'}"
            given = {
                "scene": scene,
                "n_threads": None if threads == "all" else 1,
                "n_ratios": arguments.ratios,
                "warm_up": warm_up,
            }
            jobs += [Job(label, name, {"name": name, **given}) for name in arguments.buffers]
    results = run_interleaved(measure, jobs, arguments.rounds, arguments.peers)
    save(arguments.out, "decoding_ahead", {"ratios": arguments.ratios}, results, arguments.peers)
    print("\n\n".join(sections(results)))


if __name__ == "__main__":
    main()
