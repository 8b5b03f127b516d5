"""Buffers on disk: an append-only log of checked records in a folder."""

from sb3_compressed.storage.verification import verify

__all__ = ["verify"]
