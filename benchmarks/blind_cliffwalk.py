"""Blind Cliffwalk: the updates of Q-learning with uniform and prioritized replay (Schaul et al. 2016, figure 1).

    python benchmarks/blind_cliffwalk.py --states 16

In each of ``n`` states one of two actions is right. A wrong one ends the episode without a reward; the reward of 1
follows ``n`` right ones. The replay memory contains the ``2 ** (n + 1) - 2`` transitions of all sequences of actions,
of which only one is successful. Tabular Q-learning replays one transition at a time until the mean squared error of
its values is below 0.001; what varies is how the next transition is chosen:

- uniform: each with the same probability;
- proportional: by this package's ``PrioritizedSampler`` with its default arguments, without importance weights, whose
  purpose is another one: unbiased means of noisy targets;
- greedy: the one with the largest TD error when it was last replayed, each once before that;
- oracle: the one whose update reduces the error most, which is known in hindsight only.

Everything else is as in appendix B.1 of the paper, https://arxiv.org/abs/1511.05952: the discount is ``1 - 1 / n``, the
step size 1/4, and initial values are normally distributed with a standard deviation of 0.1. Each round has its own
seed.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ratios import Results
from rich.progress import track
from session import CONSOLE, parser, save
from tables import markdown

from sb3_compressed.samplers import PrioritizedSampler

STATES, SMOKE_STATES = 16, 4
STEP_SIZE = 0.25
CONVERGED = 1e-3  # mean squared error
CHUNK = 10_000  # random numbers at once


class Values:
    """Values of actions, with a table entry for each state and action.

    :param n_states: number of states
    :param rng: for the initial values
    """

    def __init__(self, n_states: int, rng: np.random.Generator) -> None:
        self.n_states = n_states
        self._discount = 1 - 1 / n_states
        # Entries 2 * state + 1 are those of the right actions.
        self._true = [self._discount ** (n_states - 1 - i // 2) if i % 2 else 0.0 for i in range(2 * n_states)]
        self._values: list[float] = rng.normal(0.0, 0.1, 2 * n_states).tolist()
        self._squared_error = self._sum_of_squares()

    def td_error(self, entry: int) -> float:
        """Return the TD error of the transition with a state and action."""
        values = self._values
        if entry % 2 == 0:
            target = 0.0
        elif entry == 2 * self.n_states - 1:
            target = 1.0
        else:
            target = self._discount * max(values[entry + 1], values[entry + 2])
        return target - values[entry]

    def update(self, entry: int) -> float:
        """Replay a transition and return its TD error before the update."""
        td_error = self.td_error(entry)
        self._squared_error += self._change_of_squares(entry, td_error)
        self._values[entry] += STEP_SIZE * td_error
        return td_error

    def is_converged(self) -> bool:
        """Return whether the values are close to the true ones."""
        if self._squared_error / len(self._values) >= CONVERGED:
            return False
        self._squared_error = self._sum_of_squares()  # without the rounding errors of the updates
        return self._squared_error / len(self._values) < CONVERGED

    def best_entry(self) -> int:
        """Return the entry whose update reduces the error most."""
        return min(range(len(self._values)), key=lambda entry: self._change_of_squares(entry, self.td_error(entry)))

    def _change_of_squares(self, entry: int, td_error: float) -> float:
        before = self._values[entry] - self._true[entry]
        return (before + STEP_SIZE * td_error) ** 2 - before**2

    def _sum_of_squares(self) -> float:
        return sum((value - true) ** 2 for value, true in zip(self._values, self._true))


def replay_memory(n_states: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the state and action of each transition of all sequences of actions, executed in random order.

    :return: entries of :class:`Values`, ``(2 ** (n_states + 1) - 2,)``
    """
    transitions: list[int] = []
    for actions in rng.permutation(2**n_states).tolist():
        for state in range(n_states):
            is_right = actions >> state & 1
            transitions.append(2 * state + is_right)
            if not is_right:
                break
    return np.array(transitions)


def uniform(values: Values, memory: NDArray[np.int64], rng: np.random.Generator) -> Iterator[None]:
    """Replay transitions with equal probabilities."""
    while True:
        for entry in memory[rng.integers(len(memory), size=CHUNK)].tolist():
            values.update(entry)
            yield


def proportional(values: Values, memory: NDArray[np.int64], rng: np.random.Generator) -> Iterator[None]:
    """Replay transitions with probabilities proportional to their priorities."""
    np.random.seed(rng.integers(2**32))  # noqa: NPY002  # which samplers use
    sampler = PrioritizedSampler()
    sampler.bind(len(memory), 1)
    sampler.add(np.arange(len(memory)))
    entries = memory.tolist()
    while True:
        indices, _ = sampler.draw(1)
        td_error = values.update(entries[indices[0]])
        sampler.update(indices, np.array([abs(td_error)]))
        yield


def greedy(values: Values, memory: NDArray[np.int64], rng: np.random.Generator) -> Iterator[None]:
    """Replay the transition with the largest last TD error."""
    queue = [(-np.inf, index) for index in range(len(memory))]
    entries = memory.tolist()
    while True:
        index = queue[0][1]
        td_error = values.update(entries[index])
        heapq.heapreplace(queue, (-abs(td_error), index))
        yield


def oracle(values: Values, memory: NDArray[np.int64], rng: np.random.Generator) -> Iterator[None]:
    """Replay the transition that reduces the error most."""
    while True:
        values.update(values.best_entry())
        yield


Replay = Callable[[Values, NDArray[np.int64], np.random.Generator], Iterator[None]]
REPLAYS: dict[str, Replay] = {"uniform": uniform, "proportional": proportional, "greedy": greedy, "oracle": oracle}


def updates_to_convergence(replay: Replay, n_states: int, seed: int) -> int:
    """Return how many updates it takes until the values are close to the true ones."""
    rng = np.random.default_rng(seed)
    values = Values(n_states, rng)
    memory = replay_memory(n_states, rng)
    updates = replay(values, memory, rng)
    n_updates = 0
    while not values.is_converged():
        next(updates)
        n_updates += 1
    return n_updates


def run(n_states: list[int], rounds: int) -> Results:
    """Return medians and the updates of each round."""
    results: Results = {}
    for n in track(n_states, "replaying", console=CONSOLE):
        of_states: dict[str, dict[str, Any]] = {}
        for name, replay in REPLAYS.items():
            updates = [updates_to_convergence(replay, n, seed) for seed in range(rounds)]
            of_states[name] = {"updates": statistics.median(updates), "runs": {"updates": updates}}
        results[str(n)] = of_states
    return results


def table(results: Results) -> str:
    """Return a row per number of states: the median updates of each kind of replay, and the quotient of two."""
    rows = []
    for n_states, found in results.items():
        medians = {name: found[name]["updates"] for name in REPLAYS}
        quotient = medians["uniform"] / max(medians["proportional"], 1)
        cells = [f"{median:,.0f}" for median in medians.values()]
        rows.append([n_states, f"{2 ** (int(n_states) + 1) - 2:,}", *cells, f"{quotient:.1f}x"])
    return markdown(["states", "transitions", *REPLAYS, "uniform / proportional"], rows)


def main() -> None:
    """Run the experiment from the command line."""
    flags = parser(__doc__, rounds=10)
    flags.add_argument("--states", type=int, default=STATES, help="the largest number of states (default: %(default)s)")
    arguments = flags.parse_args()
    if arguments.smoke:
        arguments.states, arguments.rounds = SMOKE_STATES, 2
    results = run(list(range(2, arguments.states + 1)), arguments.rounds)
    options = {key: getattr(arguments, key) for key in ("states", "rounds")}
    save(arguments.out, "blind_cliffwalk", options, results, arguments.peers)
    print(table(results))


if __name__ == "__main__":
    main()
