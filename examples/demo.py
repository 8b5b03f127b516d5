"""What a compressed replay buffer changes in a training, and what it leaves as it is: ``make demo``.

    python examples/demo.py  # one to two minutes; Ctrl-C ends it
    python examples/demo.py --game Breakout

DQN is trained twice on an Atari game with the same seed: with SB3's buffer, then with a compressed one, each in a
process of its own. Their weights are compared, and memory and time measured. It does not show learning: so few updates
teach a network nothing.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from demo_progress import Display, new_display
from rich import box
from rich.console import Console
from rich.table import Table

KERNELS, TRAINING = (Path(__file__).with_name(name) for name in ("demo_kernels.py", "demo_training.py"))
#: What ``demo_training.py`` calls the buffers, and their names.
BUFFERS = {"sb3": "SB3's ReplayBuffer", "compressed": "CompressedReplayBuffer"}
#: The usual size of replay buffers for Atari games.
FULL_SIZE = 1_000_000
#: Observation and next observation in SB3's buffer, four frames each.
SB3_NBYTES = 2 * 4 * 84 * 84
#: Memory of a training besides its buffer.
OTHER_NBYTES = 700_000_000
#: Share of the transitions after which the growth of a process is that of its buffer: updates have begun before.
SETTLED = 0.3
#: Processes grow and shrink by that much anyway, so their growth counts only from so many transitions on.
NOISE_NBYTES, MIN_TRANSITIONS = 1_000_000, 5_000

console = Console(highlight=False)


@dataclass
class Training:
    """What was measured of a training.

    :param name: the name of its buffer
    :ivar memory: numbers of transitions, and the resident memory of the process at that time in bytes
    :ivar updates: numbers of updates of the network, each at the same time
    :ivar seconds: seconds since the process was started, each at the same time
    :ivar n_changed: parameters that the updates changed
    """

    name: str
    memory: list[tuple[int, int]] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    n_changed: int = 0

    @property
    def nbytes_per_transition(self) -> float | None:
        """By how much the process grew with each transition; ``None`` after too few of them.

        The median of the slopes between all pairs of measurements, which is hardly different if the system takes back
        other memory meanwhile.
        """
        last, _ = self.memory[-1]
        settled = [each for each in self.memory if each[0] >= SETTLED * last]
        n_transitions = last - settled[0][0]
        if n_transitions < MIN_TRANSITIONS:
            return None
        growth = median((after - before) / (n - first) for (first, before), (n, after) in combinations(settled, 2))
        return growth if growth * n_transitions >= NOISE_NBYTES else None


def main(
    game: Annotated[str, typer.Option(help="Atari game, for example Pong or MsPacman.")] = "MsPacman",
    transitions: Annotated[int, typer.Option(min=300, help="Transitions to collect with each buffer.")] = 15_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of both trainings.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the plot and the GIF.")] = Path("build/demo"),
) -> None:
    """Train DQN with SB3's replay buffer and with a compressed one, and compare weights, memory and time."""
    check_memory(transitions)
    console.print(
        f"DQN on {game}: {transitions:,} transitions with each buffer, one process after the other, same seed. "
        "With 15,000 it takes one to two minutes.\n"
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"--out: {error}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process and no file is left
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ["--game", game, "--transitions", str(transitions), "--seed", str(seed)]
        with new_display(console, transitions) as display:
            prepare_kernels(display)
            trainings = [train(buffer, folder, options, display) for buffer in BUFFERS]
        n_parameters, n_different = compare(*(folder / f"{buffer}.npz" for buffer in BUFFERS))
        (out / "frames.gif").write_bytes((folder / "frames.gif").read_bytes())
    plot(trainings, game, out / "demo.svg")
    console.print()
    console.print(comparison(trainings))
    n_updates, n_changed = trainings[-1].updates[-1], trainings[-1].n_changed
    if n_different:
        console.print(f"Weights: DIFFERENT in {n_different:,} of {n_parameters:,} parameters.", style="bold red")
    else:
        console.print(
            f"[bold green]Weights: identical.[/] All {n_parameters:,} parameters of the network and its target network "
            f"are equal, bit for bit, after {n_updates} updates, which changed {n_changed:,} of them."
        )
    console.print(
        f"\nThis does not show learning: {n_updates} updates teach the network nothing. Memory is the resident set "
        f"size (RSS) of each process. That of {FULL_SIZE:,} transitions is extrapolated from the growth of each; all "
        "else was measured, in one run each, so times vary. SB3's optimize_memory_usage=True would take about half of "
        "SB3's memory.\n"
    )
    console.print(f"plot: {out / 'demo.svg'}", soft_wrap=True)
    console.print(f"frames: {out / 'frames.gif'}, decoded from the compressed buffer", soft_wrap=True)
    if n_different:
        raise typer.Exit(1)


def check_memory(transitions: int) -> None:
    """Exit if SB3's buffer does not fit into memory."""
    needed, available = SB3_NBYTES * transitions + OTHER_NBYTES, psutil.virtual_memory().available
    if needed > available:
        fitting = max((available - OTHER_NBYTES) // SB3_NBYTES // 1000 * 1000, 0)
        advice = f"run python examples/demo.py --transitions {fitting}" if fitting else "close other programs"
        sys.exit(
            f"SB3's buffer with {transitions:,} transitions needs a process of {needed / 1e9:.1f} GB, and "
            f"{available / 1e9:.1f} GB of memory are available: {advice}"
        )


def prepare_kernels(display: Display) -> None:
    """Compile what the first compressed buffer of an installation would compile, so that its memory is not measured."""
    display.begin("kernels", "compiling those not cached")
    begin = time.monotonic()
    done = subprocess.run([sys.executable, str(KERNELS)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"The kernels cannot be compiled:\n{done.stderr}")
    n_compiled = int(done.stdout)
    seconds = f"{time.monotonic() - begin:.1f} s"
    display.end(f"compiled {n_compiled} in {seconds}, once" if n_compiled else f"loaded from the cache in {seconds}")


def train(buffer: str, folder: Path, options: Sequence[str], display: Display) -> Training:
    """Train in a process of its own; exit with its error message if it fails."""
    training = Training(BUFFERS[buffer])
    display.begin(training.name, "importing PyTorch and SB3")
    begin = time.monotonic()
    with open(folder / "errors.txt", "w+", encoding="utf-8") as errors:
        command = [sys.executable, str(TRAINING), buffer, str(folder), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            try:
                for line in process.stdout or ():
                    receive(json.loads(line), training, display, time.monotonic() - begin)
                code = process.wait()
            except BaseException:
                process.kill()
                raise
        if code:
            errors.seek(0)
            reason = errors.read() or f"the process ended with exit code {code}"
            sys.exit(f"Training with {training.name} failed:\n{reason}")
    n_transitions, nbytes = training.memory[-1]
    display.end(f"{n_transitions:,} transitions, {nbytes / 1e6:,.0f} MB")
    return training


def receive(values: Mapping[str, Any], training: Training, display: Display, seconds: float) -> None:
    """Record and show what a training reports.

    :param seconds: time since its process was started
    """
    if "stage" in values:
        display.show_stage(values["stage"])
    if "rss" in values:
        training.memory.append((values["transitions"], values["rss"]))
        training.updates.append(values["updates"])
        training.seconds.append(seconds)
        display.show_transitions(*training.memory[-1], values["updates"])
    training.n_changed = values.get("n_changed", training.n_changed)


def compare(path: Path, other: Path) -> tuple[int, int]:
    """Return the number of parameters in a file, and how many of them differ in any bit from those in another."""
    with np.load(path) as ours, np.load(other) as theirs:
        if {name: ours[name].shape for name in ours} != {name: theirs[name].shape for name in theirs}:
            raise ValueError(f"{path} and {other} contain different networks")
        differ = [ours[name].view(np.uint32) != theirs[name].view(np.uint32) for name in ours]
    return sum(each.size for each in differ), sum(int(np.count_nonzero(each)) for each in differ)


def comparison(trainings: Sequence[Training]) -> Table:
    """Return a table of what was measured."""
    table = Table("", box=box.SIMPLE_HEAD, pad_edge=False)
    for training in trainings:
        table.add_column(training.name, justify="right", no_wrap=True)
    rows: dict[str, Callable[[Training], str]] = {
        "memory at the first step": lambda each: f"{each.memory[0][1] / 1e6:,.0f} MB",
        "memory at the last step": lambda each: f"{each.memory[-1][1] / 1e6:,.0f} MB",
        "growth per transition": lambda each: multiple(each.nbytes_per_transition, 1, "{:,.0f} bytes"),
        f"{FULL_SIZE:,} (extrapolated)": lambda each: multiple(
            each.nbytes_per_transition, FULL_SIZE / 1e9, "{:.2g} GB"
        ),
        "time until the first step": lambda each: f"{each.seconds[0]:.1f} s",
        "time from there to the last": lambda each: f"{each.seconds[-1] - each.seconds[0]:.1f} s",
    }
    for name, text in rows.items():
        table.add_row(name, *map(text, trainings))
    return table


def multiple(nbytes: float | None, factor: float, text: str) -> str:
    """Return a formatted multiple of the memory of a transition, if that is known."""
    return "too few to measure" if nbytes is None else text.format(factor * nbytes)


def plot(trainings: Sequence[Training], game: str, path: Path) -> None:
    """Plot memory and time of both processes against the number of transitions."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    figure.suptitle(f"DQN on {game} with each buffer", fontsize=10)
    panels: dict[str, Callable[[Training], list[float]]] = {
        "memory of the process (RSS), MB": lambda each: [nbytes / 1e6 for _, nbytes in each.memory],
        "time since the first step, s": lambda each: [seconds - each.seconds[0] for seconds in each.seconds],
    }
    first_update = next((count for (count, _), n in zip(trainings[0].memory, trainings[0].updates) if n), 0)
    all_axes = figure.subplots(1, len(panels))
    for axes, (title, values) in zip(all_axes, panels.items(), strict=True):
        for training, color in zip(trainings, ("#1a1a19", "#2a78d6"), strict=True):
            transitions = [count for count, _ in training.memory]
            axes.plot(transitions, values(training), color=color, lw=2, label=training.name)
        if first_update:
            axes.axvline(first_update, color="#8a8a84", lw=0.8, ls=":", zorder=0)
            axes.annotate("updates begin", (first_update, 0), (4, 6), textcoords="offset points", fontsize=8)
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, transitions[-1])
        axes.locator_params(axis="x", nbins=4)
        axes.set_xlabel("transitions in the buffer")
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("{x:,.0f}")
    all_axes[0].legend(frameon=False, loc="upper left")
    with mpl.rc_context({"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"]}):
        figure.savefig(path, facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    typer.run(main)
