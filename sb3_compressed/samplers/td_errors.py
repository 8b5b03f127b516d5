"""``validated_td_errors``: validation of what ``update_priorities`` of any replay buffer receives."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["validated_td_errors"]


def validated_td_errors(indices: ArrayLike, td_errors: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return indices and the absolute values of their TD errors as arrays ``(n,)``, or raise.

    :param indices: integers ``(n,)``, in an array or a tensor on any device
    :param td_errors: finite numbers ``(n,)`` or ``(n, 1)``, likewise
    :raises ValueError: if shapes do not fit, or a TD error is not finite
    :raises TypeError: if indices are not integers, or TD errors are not numbers
    """
    numbers, errors = np.asarray(_on_cpu(indices)), np.asarray(_on_cpu(td_errors))
    if numbers.dtype.kind not in "iu" and numbers.size:
        raise TypeError(f"indices must be integers, as in batch.indices, got {numbers.dtype}")
    if numbers.ndim != 1 or errors.shape not in (numbers.shape, (*numbers.shape, 1)):
        hint = "; see sequence_priorities() for sequences" if errors.ndim > 1 else ""
        raise ValueError(
            f"indices and td_errors must have the same shape (n,), got {numbers.shape} and {errors.shape}{hint}"
        )
    if errors.dtype.kind not in "fiub":
        raise TypeError(f"td_errors must be numbers, got {errors.dtype}")
    errors = np.abs(errors.reshape(-1).astype(np.float64))
    if not (is_finite := np.isfinite(errors)).all():
        wrong = int(np.flatnonzero(~is_finite)[0])
        raise ValueError(f"td_errors must be finite, got {errors[wrong]} for the index {numbers[wrong]}")
    return numbers.astype(np.int64, copy=False), errors


def _on_cpu(values: Any) -> Any:
    """Return a tensor as an array, and anything else unchanged."""
    th = sys.modules.get("torch")  # not imported here, since that takes long
    if th is None or not isinstance(values, th.Tensor):
        return values
    values = values.detach()
    return (values.float() if values.dtype == th.bfloat16 else values).cpu().numpy()  # NumPy has no bfloat16
