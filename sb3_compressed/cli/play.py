"""``sb3-compressed play``: write a stored episode as a GIF."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sb3_compressed.cli.output import Json, print_result
from sb3_compressed.cli.sources import SourcePath, Unpickle, expand_user, find_source, open_source
from sb3_compressed.common.extras import import_extra

__all__ = ["play"]

#: Least length of the shorter side of a frame, in pixels: smaller ones are enlarged.
MIN_SIZE = 240

Episode = Annotated[
    int | None,
    typer.Option(help="Number of the episode, from 0.", show_default="complete episode with the highest return"),
]
Out = Annotated[
    Path | None, typer.Option(help="File to write.", show_default="episode-NUMBER.gif", callback=expand_user)
]


def play(
    path: SourcePath,
    episode: Episode = None,
    out: Out = None,
    frames: Annotated[int, typer.Option(min=1, help="Largest number of frames, the last ones of the episode.")] = 1000,
    fps: Annotated[float, typer.Option(min=1, max=50, help="Frames per second.")] = 15,
    unpickle: Unpickle = False,
    as_json: Json = False,
) -> None:
    """Write the images of a stored episode as a GIF. Requires the extra "video"."""
    from sb3_compressed.datasets import trajectories
    from sb3_compressed.datasets.episode_statistics import best_episode

    pillow = import_extra("PIL.Image", "video", "GIFs")
    source = find_source(path)
    with open_source(source, unpickle=unpickle) as buffer:
        episodes = [*trajectories(buffer)]
        number = best_episode(episodes) if episode is None else episode
        if number is None:
            raise ValueError(f"{source.path} contains no transitions yet")
        if not 0 <= number < len(episodes):
            raise ValueError(f"{source.path} contains episodes 0 to {len(episodes) - 1}, got {number}")
        chosen = episodes[number]
        part = chosen.part(max(len(chosen) - frames, 0), len(chosen))
        images = _newest_images(part.observations, buffer.observations)[-frames:]
        result: dict[str, Any] = {"path": source.path, "episode": number, "env": chosen.env, "steps": len(chosen)}
        result |= {"return": chosen.total_reward, "has_begin": chosen.has_begin, "has_end": chosen.has_end}
    out = out or Path(f"episode-{number}.gif")
    scale = -(-MIN_SIZE // min(images.shape[1:3]))
    enlarged = (pillow.fromarray(image.repeat(scale, axis=0).repeat(scale, axis=1)) for image in images)
    next(enlarged).save(out, save_all=True, append_images=enlarged, duration=10 * round(100 / fps), loop=0)
    print_result(
        result | {"video": out, "frames": len(images), "fps": fps},
        f"episode {number} of {len(episodes)}: {result['steps']:,} steps, return {result['return']:g}",
        f"{out}: {len(images):,} frames",
        as_json=as_json,
    )


def _newest_images(observations: Any, arrays: Any) -> Any:
    """Return the newest image of each observation, ``(n, height, width)`` or ``(n, height, width, 3)``."""
    for key in observations if isinstance(observations, dict) else [None]:
        images, array = (observations, arrays) if key is None else (observations[key], arrays[key])
        if images.dtype != np.uint8 or images.ndim not in (3, 4):
            continue
        if images.ndim == 3:
            return images
        channels_last = images if images.shape[3] < images.shape[1] else np.moveaxis(images, 1, 3)
        is_rgb = channels_last.shape[3] // getattr(array, "n_frames", 1) % 3 == 0
        return channels_last[..., -3:] if is_rgb else channels_last[..., -1]
    raise ValueError(
        "observations are not images of uint8; to watch the episode, replay Trajectory.actions in an environment with "
        "render_mode='rgb_array' that is wrapped in SB3's VecVideoRecorder"
    )
