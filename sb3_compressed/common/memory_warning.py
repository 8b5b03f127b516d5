"""The warnings that a buffer will not fit into memory: when it is created, and once its codec was trained twice."""

from __future__ import annotations

from sb3_compressed.common.memory import available_memory
from sb3_compressed.common.warning import warn_user

__all__ = ["warn_of_estimate", "warn_of_payloads"]


def warn_of_estimate(nbytes: float) -> None:
    """Warn as SB3 does if a buffer may not fit into the available memory.

    :param nbytes: its memory when it is full, estimated before anything was added
    """
    available = available_memory()
    if nbytes > available:
        warn_user(
            f"This system does not have apparently enough memory to store the complete buffer: about "
            f"{nbytes / 1e9:.2f}GB, estimated from typical sizes of game frames, > {available / 1e9:.2f}GB"
        )


def warn_of_payloads(nbytes: float, payload_nbytes: float) -> None:
    """Warn if the full buffer will not fit into the available memory.

    :param nbytes: its memory when it is full, at the present size of payloads
    :param payload_nbytes: mean size of payloads
    """
    available = available_memory()
    if nbytes > available:
        warn_user(
            f"the full buffer will take about {nbytes / 1e9:.2f}GB of memory, as its frames take "
            f"{payload_nbytes:,.0f} bytes each, but only {available / 1e9:.2f}GB are available: choose a smaller "
            "buffer_size, or a folder as storage"
        )
