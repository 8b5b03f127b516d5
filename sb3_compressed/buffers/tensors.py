"""From the arrays of a batch to tensors, on the CPU or a GPU, and in the format that a buffer's options select.

For a GPU, observations are decoded to pinned memory, see :meth:`.BatchPool.begin_batch`, and copied asynchronously.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecNormalize

from sb3_compressed.arrays.batch_pool import ALIGNMENT

__all__ = [
    "OutputDtype",
    "as_array",
    "output_tensors",
    "tensor_converter",
    "to_tensor",
    "torch_device",
]

OutputDtype = Literal["raw", "float"]

#: The same on CUDA devices.
DEVICE_ALIGNMENT = 512

#: SB3's methods that receive the arrays of a batch. A user's replacements may modify or keep these, so they get copies.
NORMALIZE_OBS, NORMALIZE_REWARD = BaseBuffer._normalize_obs, BaseBuffer._normalize_reward
TO_TORCH = BaseBuffer.to_torch


def torch_device(device: Any) -> th.device:
    """Return what a buffer's ``device`` is for PyTorch: a user may assign a string, an integer, or ``None``."""
    if type(device) is th.device:
        return device
    return th.get_default_device() if device is None else th.device(device)


def as_array(values: Any) -> Any:
    """Return values as an array of NumPy, also those that a device has decoded."""
    return values.cpu().numpy() if isinstance(values, th.Tensor) else values


def tensor_converter(
    buffer: BaseBuffer, env: VecNormalize | None = None, *, copy: bool = False
) -> Callable[[Any], th.Tensor] | None:
    """Return what turns the arrays of a batch into tensors: SB3's ``to_torch``, without its copy where it can be.

    Tensors that a device has decoded are returned as they are.

    :param env: normalizes the arrays
    :param copy: whether other code may keep them, so that tensors must not share their memory
    :return: ``None`` if ``env`` or methods of a user's class receive the arrays, so that these must be NumPy's, and
        ``to_torch`` turns them into tensors
    """
    # A user's class may replace these methods, or a user may assign others to a class or to this buffer.
    if env is not None or not (
        buffer._normalize_obs is NORMALIZE_OBS
        and buffer._normalize_reward is NORMALIZE_REWARD
        and getattr(buffer.to_torch, "__func__", None) is TO_TORCH
    ):
        return None
    if copy:
        return lambda values: values if isinstance(values, th.Tensor) else buffer.to_torch(values)
    return partial(to_tensor, device=torch_device(buffer.device))


def to_tensor(values: Any, device: th.device) -> th.Tensor:
    """Return an array of a batch as a tensor on a device, on the CPU in the same memory; or a tensor that is there.

    A copy from pinned memory is asynchronous.
    """
    if isinstance(values, th.Tensor):
        tensor = values.to(device)  # the same one, unless a user has assigned another device to the buffer
    elif device.type == "cpu":
        tensor = th.from_numpy(values)
    else:
        return th.from_numpy(values).to(device, non_blocking=device.type == "cuda")  # pragma: no cover  # needs a GPU
    # Matrix products may round differently at addresses that PyTorch would not choose, and then weights would not be
    # those with SB3's buffer.
    alignment = ALIGNMENT if device.type == "cpu" else DEVICE_ALIGNMENT
    return tensor.clone() if tensor.is_floating_point() and tensor.data_ptr() % alignment else tensor


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
