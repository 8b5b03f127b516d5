"""The module from which pickles of 0.3.0 import ``Prefetcher``; buffers that are loaded leave it out."""

__all__ = ["Prefetcher"]


class Prefetcher:
    """What a buffer of 0.3.0 with ``prefetch`` decoded batches with."""

    def __init__(self, n_batches: int) -> None:
        pass
