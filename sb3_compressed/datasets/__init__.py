"""Replay buffers as offline data: episodes, and datasets that others can read."""

from sb3_compressed.datasets.episodes import Trajectory, trajectories
from sb3_compressed.datasets.minari import export_minari, import_minari

__all__ = ["Trajectory", "export_minari", "import_minari", "trajectories"]
