"""Episodes of replay buffers, and their export as datasets, videos and contact sheets."""

from sb3_compressed.datasets.contact_sheet import write_contact_sheet
from sb3_compressed.datasets.minari import export_minari, import_minari
from sb3_compressed.datasets.trajectory import Trajectory, trajectories
from sb3_compressed.datasets.video import write_video

__all__ = ["Trajectory", "export_minari", "import_minari", "trajectories", "write_contact_sheet", "write_video"]
