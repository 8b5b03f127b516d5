"""The dtypes of numbers, as text that comes from a file."""

from sb3_compressed.codecs.dtype_names import dtype_from_text

__all__ = ["dtype_from_text"]
