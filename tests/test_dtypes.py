"""``find_buffer_dtypes``: the smallest lossless dtypes, and no compilation in worker processes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import SubprocVecEnv

from sb3_compressed import Codec, CompressedArray, find_buffer_dtypes, get_codec
from sb3_compressed.codecs.delta import Delta


@pytest.mark.parametrize(
    ("shape", "runs_type"),
    [((16,), "u1"), (255, "u1"), (256, "u2"), ((84, 84), "u2"), ((4, 84, 84), "u2"), ((3, 300, 300), "u4"), ((), "u1")],
)
def test_runs_type_is_the_smallest_that_fits_an_observation(shape: Any, runs_type: str) -> None:
    assert find_buffer_dtypes(shape, np.uint8, "rle") == {
        "elem_type": np.dtype(np.uint8),
        "runs_type": np.dtype(runs_type),
    }


def test_elem_type_is_the_dtype_of_the_observations() -> None:
    assert find_buffer_dtypes((84, 84))["elem_type"] == np.uint8
    assert find_buffer_dtypes((84, 84), np.float32)["elem_type"] == np.float32
    assert find_buffer_dtypes(spaces.Box(-1, 1, (3, 4), np.float64))["elem_type"] == np.float64
    assert find_buffer_dtypes(spaces.Box(-1, 1, (3, 4), np.float64), np.float32)["elem_type"] == np.float32
    assert find_buffer_dtypes(spaces.MultiBinary(9)) == {"elem_type": np.dtype(np.int8), "runs_type": np.dtype("u1")}
    assert find_buffer_dtypes(spaces.Discrete(9)) == {"elem_type": np.dtype(np.int64), "runs_type": np.dtype("u1")}


def test_dict_space_gives_a_dict_per_key() -> None:
    space = spaces.Dict({"screen": spaces.Box(0, 255, (84, 84), np.uint8), "state": spaces.Box(-1, 1, (17,))})
    assert find_buffer_dtypes(space, compression_method="rle-jit") == {
        "screen": {"elem_type": np.dtype(np.uint8), "runs_type": np.dtype("u2")},
        "state": {"elem_type": np.dtype(np.float32), "runs_type": np.dtype("u1")},
    }


def test_an_action_space_is_no_dtype() -> None:
    with pytest.raises(TypeError, match="observation space alone"):
        find_buffer_dtypes(spaces.Box(0, 255, (84, 84), np.uint8), spaces.Discrete(6))


class CompressingEnv(gym.Env[Any, Any]):
    """An environment that compresses in its process, and reports how much numba compiled there."""

    observation_space = spaces.Box(0, 255, (8, 8), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros((8, 8), np.uint8), {}

    def step(self, action: Any) -> Any:
        from numba.core import event

        frames = np.arange(2 * 64, dtype=np.uint8).reshape(2, 8, 8) // 16
        out = np.empty_like(frames)
        with event.install_recorder("numba:compile") as compilations:
            array = CompressedArray((2, 2, 8, 8), codec="delta")
            array[0] = frames
            restored = (array[0] == frames).all()
            codec: Codec
            for codec in (get_codec("rle-jit"), Delta().train(frames)):
                codec.decode_into(codec.encode(frames), out)
                restored &= (out == frames).all()
        return out[0], 0.0, False, False, {"compiled": len(compilations.buffer), "restored": bool(restored)}


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # as for users of SB3
def test_workers_compile_nothing_afterwards(start_method: str) -> None:
    for method in ("rle-jit", "auto"):
        find_buffer_dtypes(CompressingEnv.observation_space, compression_method=method)
    env = SubprocVecEnv([CompressingEnv, CompressingEnv], start_method=start_method)
    try:
        env.reset()
        _, _, _, infos = env.step(np.zeros(2, dtype=int))
    finally:
        env.close()
    for info in infos:
        assert info["restored"]
        assert info["compiled"] == 0


def test_recorder_detects_compilations() -> None:
    import numba
    from numba.core import event

    with event.install_recorder("numba:compile") as compilations:
        numba.njit(lambda number: number + 1)(1)
    assert compilations.buffer


def test_spaces_without_a_dtype_raise() -> None:
    with pytest.raises(ValueError, match=r"observations of Tuple\(Discrete\(2\)\) have no dtype"):
        find_buffer_dtypes(spaces.Tuple([spaces.Discrete(2)]))
