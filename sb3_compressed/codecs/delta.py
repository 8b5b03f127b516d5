"""The name in pickles of 0.2.0 of the codec ``delta``, which ``auto`` uses as well."""

from sb3_compressed.codecs.adaptive import Adaptive as Delta

__all__ = ["Delta"]
