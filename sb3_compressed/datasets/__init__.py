"""Episodes of replay buffers, and data sets of Minari and Dopamine."""

from typing import TYPE_CHECKING

from sb3_compressed.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from sb3_compressed.datasets.dopamine import import_dopamine
    from sb3_compressed.datasets.minari import export_minari, import_minari
    from sb3_compressed.datasets.trajectory import Trajectory, trajectories

__all__ = [
    "Trajectory",
    "export_minari",
    "import_dopamine",
    "import_minari",
    "trajectories",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    ("trajectory", "minari", "dopamine"),
)
