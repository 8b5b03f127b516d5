"""``output_tensors``: observations in the format that ``output_dtype`` and ``normalize_images`` select."""

from __future__ import annotations

from typing import Any, Literal

from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

__all__ = ["OutputDtype", "output_tensors"]

OutputDtype = Literal["raw", "float"]


def output_tensors(observations: Any, space: spaces.Space[Any], dtype: OutputDtype, *, normalize_images: bool) -> Any:
    """Return observations of a batch in the format of a buffer.

    :param observations: a tensor, or a dict of them
    :param space: their space
    :param dtype: ``"float"`` for float32, ``"raw"`` for the dtype that they have
    :param normalize_images: whether to divide images by 255
    """
    if isinstance(observations, dict):
        return {
            key: output_tensors(part, space[key], dtype, normalize_images=normalize_images)  # type: ignore[index]
            for key, part in observations.items()
        }
    if normalize_images and is_image_space(space):
        return observations.float() / 255.0  # as SB3's policies do it
    return observations.float() if dtype == "float" else observations
