"""Plot the cost of buffers relative to SB3's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sb3_compressed.common.extras import import_extra

__all__ = ["check_plottable", "plot_ratios"]

BLACK, BLUE, GRAY = "#1a1a19", "#2a78d6", "#8a8a84"


def check_plottable(path: Path) -> None:
    """Verify, before the long measurements, that a plot can be written.

    :raises ImportError: if Matplotlib is not installed
    :raises ValueError: if Matplotlib does not support the file format, or the folder does not exist
    """
    formats = import_extra("matplotlib.figure", "plot", "plots").Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in formats:
        raise ValueError(f"the plot must be a {', '.join(sorted(formats))} file, got {str(path)!r}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"the folder of the plot does not exist: {path.absolute().parent}")


def plot_ratios(path: Path, title: str, names: Sequence[str], panels: Mapping[str, Sequence[float]]) -> None:
    """Plot one panel of bars per kind of cost.

    :param names: the buffers, SB3's first
    :param panels: for each kind of cost the ratios of all buffers, 1 for SB3's
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(panels) + 1.5, 0.4 * len(names) + 1.1), layout="constrained")
    figure.suptitle(title, fontsize=10)
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (kind, values) in zip(all_axes, panels.items(), strict=True):
        axes.barh(names, values, color=[BLACK] + [BLUE] * (len(names) - 1), height=0.6)
        for row, value in enumerate(values):
            axes.annotate(f" {value:.3g}x", (value, row), va="center", fontsize=8)
        axes.axvline(1, color=GRAY, lw=0.8, zorder=0)
        axes.set_title(kind, fontsize=9)
        axes.set_xlim(0, 1.2 * max(values))
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0].invert_yaxis()
    figure.savefig(path, dpi=150, facecolor="white")
