"""sb3-extra-buffers, constructed as in its README: ``dtypes`` from ``find_buffer_dtypes``.

It stores one compressed ``bytes`` object per observation and one per next observation, each a whole stack.

Its ``zstd`` uses python-zstd, which allocates the compression bound for each payload but reports the payload's size:
``sys.getsizeof`` returns 2 kB where 28 kB are allocated. Only the RSS shows the actual memory.
"""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer, find_buffer_dtypes

CLASSES = {"replay": CompressedReplayBuffer, "rollout": CompressedRolloutBuffer}


def arguments(method: str, space: spaces.Space[Any]) -> dict[str, Any]:
    """Return the additional arguments of the constructors."""
    dtypes = find_buffer_dtypes(space.shape, elem_dtype=space.dtype, compression_method=method)
    return {"compression_method": method, "dtypes": dtypes}
