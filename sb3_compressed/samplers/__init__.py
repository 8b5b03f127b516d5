"""Samplers of replay buffers: which transitions a batch consists of."""

from sb3_compressed.samplers.registry import available_samplers, get_sampler
from sb3_compressed.samplers.sampler import Draw, Sampler

__all__ = ["Draw", "Sampler", "available_samplers", "get_sampler"]
