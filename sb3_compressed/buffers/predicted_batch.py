"""The module from which pickles of 0.3.0 import ``PredictedBatch``; buffers that are loaded leave it out."""

__all__ = ["PredictedBatch"]


class PredictedBatch:
    """What a buffer of 0.3.0 decoded the next batch with."""
