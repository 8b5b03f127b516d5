"""Measure the wall-clock time of training DQN and PPO on Pong with each buffer.

    python benchmarks/training.py --algorithms DQN --steps 5000 --buffers auto extra:zstd-3

Runs are paired: each seed is trained with every buffer, in an order that alternates from seed to seed, and the ratios
of the times are reported. Weights must be bit-identical for equal seeds, which is verified. Settings are in
``settings.py``.
"""

from __future__ import annotations

import hashlib
import statistics
from typing import Any, Literal

from ratios import Results, buffer_names
from session import available, parser, run_interleaved, save, serve
from settings import N_ENVS, SETTINGS
from sources import Source
from tables import markdown

from adapters import sb3_class
from adapters.buffer_names import title
from sb3_compressed.benchmarking.frame_recording import wrap_as_sb3
from sb3_compressed.benchmarking.metrics import one_thread, timed
from sb3_compressed.benchmarking.runner import Job, Measurement

BUFFERS = ["auto"]
STEPS = {"DQN": 12_000, "PPO": 20_480}


def measure(name: str, algorithm: str, game: str, steps: int, seed: int) -> Measurement:
    """Train once and return the seconds and a digest of the weights."""
    import stable_baselines3

    one_thread()
    source = Source(game)
    env = wrap_as_sb3(source.make(N_ENVS[algorithm]), source.n_stack)
    prefix: Literal["replay", "rollout"] = "replay" if algorithm == "DQN" else "rollout"
    cls, kwargs = sb3_class(name, prefix, env.observation_space)
    buffer: dict[str, Any] = {f"{prefix}_buffer_class": cls, f"{prefix}_buffer_kwargs": kwargs}
    settings = dict(SETTINGS[algorithm])
    for setting, limit in (("learning_starts", steps // 2), ("n_steps", steps // N_ENVS[algorithm])):  # for short runs
        if setting in settings:
            settings[setting] = min(settings[setting], limit)
    make = getattr(stable_baselines3, algorithm)
    model = make("CnnPolicy", env, seed=seed, device="cpu", **settings, **buffer)
    seconds = timed(model.learn, steps)
    digest = hashlib.sha256()
    for parameter in model.policy.state_dict().values():
        digest.update(parameter.numpy().tobytes())
    return {"seconds": seconds, "weights": digest.hexdigest()[:16]}


def summary(results: Results, algorithm: str, name: str) -> tuple[list[float], bool]:
    """Return the ratios of paired times, and whether the weights of all pairs are equal."""
    pairs = [
        (of_pair[name], of_pair["SB3"])
        for label, of_pair in results.items()
        if label.startswith(algorithm) and "seconds" in of_pair.get(name, {}) and "seconds" in of_pair["SB3"]
    ]
    times = [ours["seconds"] / theirs["seconds"] for ours, theirs in pairs]
    return times, all(ours["weights"] == theirs["weights"] for ours, theirs in pairs)


def table(results: Results) -> str:
    """Return a row per algorithm and buffer."""
    rows = []
    for algorithm in dict.fromkeys(label.partition(",")[0] for label in results):
        for name in buffer_names(results):
            times, is_equal = summary(results, algorithm, name)
            if times:
                extent = f"{min(times):.3f}x to {max(times):.3f}x"
                equal = "yes" if is_equal else "**no**"
                rows.append(
                    [algorithm, title(name), f"{statistics.median(times):.3f}x", extent, str(len(times)), equal]
                )
    return markdown(["algorithm", "buffer", "time", "from", "pairs", "weights equal SB3's"], rows)


def main() -> None:
    """Run from the command line."""
    serve(measure)
    flags = parser(__doc__, buffers=BUFFERS, rounds=5)
    flags.add_argument("--algorithms", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    flags.add_argument("--game", default="Pong", help="Atari game, e.g. Pong (default: %(default)s)")
    flags.add_argument("--steps", type=int, help=f"environment steps (default: {STEPS})")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.steps, arguments.rounds = 128, 1
    names = available(["SB3", *arguments.buffers], arguments.peers)
    jobs: list[Job] = []
    for seed in range(arguments.rounds):
        for algorithm in arguments.algorithms:
            steps = arguments.steps or STEPS[algorithm]
            of_pair = {"algorithm": algorithm, "game": arguments.game, "steps": steps, "seed": seed}
            ordered = names[:: -1 if seed % 2 else 1]
            jobs += [Job(f"{algorithm}, seed {seed}", name, of_pair) for name in ordered]
    results = run_interleaved(measure, jobs, 1, arguments.peers)
    options = {"game": arguments.game, "steps": arguments.steps or STEPS, "pairs": arguments.rounds}
    save(arguments.out, "training", options, results, arguments.peers)
    print(table(results))


if __name__ == "__main__":
    main()
