"""sb3-extra-buffers, constructed as its README has it: ``dtypes`` from ``find_buffer_dtypes``.

It keeps one ``bytes`` object for each observation and one for each next observation, whole stacks, compressed.

Its ``zstd`` comes from python-zstd, which allocates the most a payload could take and says of the object that it is as
small as the payload: ``sys.getsizeof`` counts 2 kB where 28 kB are allocated. Only the operating system tells.
"""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer, find_buffer_dtypes

CLASSES = {"replay": CompressedReplayBuffer, "rollout": CompressedRolloutBuffer}


def arguments(method: str, space: spaces.Space[Any]) -> dict[str, Any]:
    """Return what the constructors get besides what SB3's get."""
    dtypes = find_buffer_dtypes(space.shape, elem_dtype=space.dtype, compression_method=method)
    return {"compression_method": method, "dtypes": dtypes}
