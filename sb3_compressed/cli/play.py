"""``sb3-compressed play``: show a stored episode as a video or a contact sheet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sb3_compressed.cli.output import Json, print_result, progress_bar
from sb3_compressed.cli.sources import SourcePath, Unpickle, expand_user, find_source, open_source

__all__ = ["play"]


def play(
    path: SourcePath,
    episode: Annotated[
        int | None,
        typer.Option(help="Number of the episode, from 0.", show_default="complete episode with the highest return"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Video to write, .mp4 or .gif.",
            show_default="episode-NUMBER.mp4 unless --sheet is given",
            callback=expand_user,
        ),
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(help="Contact sheet to write: evenly spaced frames in a .png.", callback=expand_user),
    ] = None,
    pictures: Annotated[int, typer.Option(min=1, help="Number of frames on the contact sheet.")] = 20,
    fps: Annotated[float, typer.Option(help="Frames per second of the video.")] = 15,
    scale: Annotated[
        int | None, typer.Option(min=1, help="Enlarge frames by this factor.", show_default="large enough to see")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of Dict observations to show, if several are images.")] = None,
    channels: Annotated[
        int | None, typer.Option(help="1 for grayscale, 3 for color images.", show_default="detected")
    ] = None,
    unpickle: Unpickle = False,
    as_json: Json = False,
) -> None:
    """Show a stored episode as a video, a contact sheet, or both. Requires the extra "video"."""
    from sb3_compressed.datasets import trajectories, write_contact_sheet, write_video
    from sb3_compressed.datasets.episode_statistics import best_episode

    source = find_source(path)
    with open_source(source, unpickle=unpickle) as buffer:
        episodes = [*trajectories(buffer)]
        number = best_episode(episodes) if episode is None else episode
        if number is None:
            raise ValueError(f"{source.path} contains no transitions yet")
        if not 0 <= number < len(episodes):
            raise ValueError(f"{source.path} contains episodes 0 to {len(episodes) - 1}, got {number}")
        chosen = episodes[number]
        result: dict[str, Any] = {
            "path": source.path,
            "episode": number,
            "env": chosen.env,
            "steps": len(chosen),
            "return": chosen.total_reward,
            "has_begin": chosen.has_begin,
            "has_end": chosen.has_end,
        }
        lines = [f"episode {number} of {len(episodes)}: {len(chosen):,} steps, return {chosen.total_reward:g}"]
        options: dict[str, Any] = {"scale": scale, "key": key, "channels": channels}
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
