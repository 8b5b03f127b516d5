"""Samplers of replay buffers: which transitions a batch consists of."""

from sb3_compressed.samplers.prioritized import PrioritizedSampler, sequence_priorities
from sb3_compressed.samplers.recent import RecentSampler
from sb3_compressed.samplers.registry import available_samplers, get_sampler
from sb3_compressed.samplers.sampler import Draw, Sampler
from sb3_compressed.samplers.without_replacement import WithoutReplacementSampler

__all__ = [
    "Draw",
    "PrioritizedSampler",
    "RecentSampler",
    "Sampler",
    "WithoutReplacementSampler",
    "available_samplers",
    "get_sampler",
    "sequence_priorities",
]
