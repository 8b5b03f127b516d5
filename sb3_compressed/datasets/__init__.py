"""Episodes of replay buffers, and their export as datasets, videos and contact sheets."""

from typing import TYPE_CHECKING

from sb3_compressed.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from sb3_compressed.datasets.contact_sheet import write_contact_sheet
    from sb3_compressed.datasets.dopamine import import_dopamine
    from sb3_compressed.datasets.dopamine_export import export_dopamine
    from sb3_compressed.datasets.minari import export_minari, import_minari
    from sb3_compressed.datasets.trajectory import Trajectory, trajectories
    from sb3_compressed.datasets.video import write_video

__all__ = [
    "Trajectory",
    "export_dopamine",
    "export_minari",
    "import_dopamine",
    "import_minari",
    "trajectories",
    "write_contact_sheet",
    "write_video",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    ("trajectory", "minari", "dopamine", "dopamine_export", "contact_sheet", "video"),
)
