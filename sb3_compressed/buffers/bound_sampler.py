"""The module from which pickles of version 0.2 import ``BoundSampler``."""

from sb3_compressed.samplers.bound_sampler import BoundSampler

__all__ = ["BoundSampler"]
