"""The name in pickles of 0.3.0 of the codec :class:`~sb3_compressed.codecs.delta.Delta`."""

from sb3_compressed.codecs.delta import Delta as Adaptive

__all__ = ["Adaptive"]
