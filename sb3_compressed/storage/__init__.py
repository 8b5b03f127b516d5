"""Buffers on disk: an append-only log of checksummed records in a folder."""

from sb3_compressed.storage.verification import verify

__all__ = ["verify"]
