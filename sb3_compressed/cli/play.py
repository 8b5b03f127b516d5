"""``sb3-compressed play``: show a stored episode as a video or a contact sheet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sb3_compressed.cli.output import Json, print_result, progress_bar
from sb3_compressed.cli.sources import SourcePath, Unpickle, expand_user, find_source, open_source

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer

    from sb3_compressed.datasets import Trajectory

__all__ = ["play"]


Episode = Annotated[
    int | None,
    typer.Option(help="Number of the episode, from 0.", show_default="complete episode with the highest return"),
]
Video = Annotated[
    Path | None,
    typer.Option(
        help="Video to write, .mp4 or .gif.",
        show_default="episode-NUMBER.mp4 unless --sheet is given",
        callback=expand_user,
    ),
]
Sheet = Annotated[
    Path | None,
    typer.Option(help="Contact sheet to write: evenly spaced frames in a .png.", callback=expand_user),
]
Scale = Annotated[
    int | None, typer.Option(min=1, help="Enlarge frames by this factor.", show_default="large enough to see")
]
Channels = Annotated[int | None, typer.Option(help="1 for grayscale, 3 for color images.", show_default="detected")]


def play(
    path: SourcePath,
    episode: Episode = None,
    out: Video = None,
    sheet: Sheet = None,
    pictures: Annotated[int, typer.Option(min=1, help="Number of frames on the contact sheet.")] = 20,
    fps: Annotated[float, typer.Option(help="Frames per second of the video.")] = 15,
    scale: Scale = None,
    key: Annotated[str | None, typer.Option(help="Key of Dict observations to show, if several are images.")] = None,
    channels: Channels = None,
    unpickle: Unpickle = False,
    as_json: Json = False,
) -> None:
    """Show a stored episode as a video, a contact sheet, or both. Requires the extra "video"."""
    from sb3_compressed.datasets import write_contact_sheet, write_video

    source = find_source(path)
    options: dict[str, Any] = {"scale": scale, "key": key, "channels": channels}
    with open_source(source, unpickle=unpickle) as buffer:
        number, n_episodes, chosen = _choose(source.path, buffer, episode)
        result: dict[str, Any] = {
            "path": source.path,
            "episode": number,
            "env": chosen.env,
            "steps": len(chosen),
            "return": chosen.total_reward,
            "has_begin": chosen.has_begin,
            "has_end": chosen.has_end,
        }
        lines = [f"episode {number} of {n_episodes}: {len(chosen):,} steps, return {chosen.total_reward:g}"]
        if out is None and sheet is None:
            out = Path(f"episode-{number}.mp4")
        if sheet is not None:  # first, since a video can take minutes
            steps = write_contact_sheet(chosen, sheet, n_images=pictures, **options)
            result |= {"sheet": sheet, "steps_shown": steps}
            lines.append(f"{sheet}: {len(steps)} frames")
        if out is not None:
            with progress_bar() as bar:
                task = bar.add_task("writing frames", total=len(chosen) + 1)
                n_frames = write_video(chosen, out, fps=fps, progress=lambda n: bar.advance(task, n), **options)
            result |= {"video": out, "frames": n_frames, "fps": fps}
            lines.append(f"{out}: {n_frames:,} frames")
    print_result(result, *lines, as_json=as_json)


def _choose(path: Path, buffer: ReplayBuffer, number: int | None) -> tuple[int, int, Trajectory]:
    """Return an episode with its number, by default the best one, and the number of episodes.

    :raises ValueError: if there is no such episode
    """
    from sb3_compressed.datasets import trajectories
    from sb3_compressed.datasets.episode_statistics import best_episode

    episodes = [*trajectories(buffer)]
    if number is None:
        number = best_episode(episodes)
    if number is None:
        raise ValueError(f"{path} contains no transitions yet")
    if not 0 <= number < len(episodes):
        raise ValueError(f"{path} contains episodes 0 to {len(episodes) - 1}, got {number}")
    return number, len(episodes), episodes[number]
