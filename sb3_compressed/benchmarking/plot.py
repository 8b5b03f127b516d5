"""A plot of what buffers cost, as ratios to SB3's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["check_plottable", "plot_ratios"]

INK, OURS, GREY = "#1a1a19", "#2a78d6", "#8a8a84"


def check_plottable(path: Path) -> None:
    """Find out before the work is done whether there can be a plot of it.

    :raises ImportError: if Matplotlib is not installed
    :raises ValueError: if it cannot write such a file
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need Matplotlib: pip install 'sb3-compressed[plot]'") from error
    kinds = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in kinds:
        raise ValueError(f"a plot can be a file of {', '.join(sorted(kinds))}, got {str(path)!r}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {path.absolute().parent} for the plot")


def plot_ratios(path: Path, title: str, names: Sequence[str], panels: Mapping[str, Sequence[float]]) -> None:
    """Draw a panel of bars for each kind of cost.

    :param names: the buffers, SB3's own first
    :param panels: for each kind a number of each buffer, 1 for SB3's
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(panels) + 1.5, 0.4 * len(names) + 1.1), layout="constrained")
    figure.suptitle(title, fontsize=10)
    every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (said, values) in zip(every, panels.items(), strict=True):
        axes.barh(names, values, color=[INK] + [OURS] * (len(names) - 1), height=0.6)
        for row, value in enumerate(values):
            axes.annotate(f" {value:.3g}x", (value, row), va="center", fontsize=8)
        axes.axvline(1, color=GREY, lw=0.8, zorder=0)
        axes.set_title(said, fontsize=9)
        axes.set_xlim(0, 1.2 * max(values))
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    every[0].invert_yaxis()
    figure.savefig(path, dpi=150, facecolor="white")
