"""``sb3-compressed play``: stored episodes to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sb3_compressed.cli.output import Json, progress_bar, show
from sb3_compressed.cli.sources import Source, Unpickle, find, opened

__all__ = ["play"]


def play(
    source: Source,
    episode: Annotated[
        int | None,
        typer.Option(
            help="Number of the episode, from 0.", show_default="the best of those whose begin and end are there"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Video to write, .mp4 or .gif.", show_default="episode-NUMBER.mp4, or none if there is a --sheet"
        ),
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option(help="Contact sheet to write, evenly spaced pictures in a .png.")
    ] = None,
    pictures: Annotated[int, typer.Option(min=1, help="How many pictures the contact sheet has.")] = 20,
    fps: Annotated[float, typer.Option(help="Frames of the video a second.")] = 15,
    scale: Annotated[
        int | None,
        typer.Option(min=1, help="How many times as wide and high pixels are.", show_default="large enough to see"),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="The part of Dict observations to show, if several can be shown.")
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="1 for grey pictures, 3 for colours.", show_default="found out")
    ] = None,
    unpickle: Unpickle = False,
    as_json: Json = False,
) -> None:
    """Show a stored episode as a video, a contact sheet, or both. It needs the extra "video"."""
    from sb3_compressed.datasets import trajectories, write_contact_sheet, write_video
    from sb3_compressed.datasets.episode_statistics import best_episode

    place = find(source)
    with opened(place, unpickle=unpickle) as buffer:
        episodes = [*trajectories(buffer)]
        number = best_episode(episodes) if episode is None else episode
        if number is None:
            raise ValueError(f"{place.path} holds no transitions yet")
        if not 0 <= number < len(episodes):
            raise ValueError(f"{place.path} holds the episodes 0 to {len(episodes) - 1}, got {number}")
        chosen = episodes[number]
        result: dict[str, Any] = {
            "path": place.path,
            "episode": number,
            "env": chosen.env,
            "steps": len(chosen),
            "return": chosen.total_reward,
            "has_begin": chosen.has_begin,
            "has_end": chosen.has_end,
        }
        lines = [f"episode {number} of {len(episodes)}: {len(chosen):,} steps, return {chosen.total_reward:g}"]
        how: dict[str, Any] = {"scale": scale, "key": key, "channels": channels}
        if out is None and sheet is None:
            out = Path(f"episode-{number}.mp4")
        if sheet is not None:  # first, as a video may take minutes, after which a wrong name would be told late
            steps = write_contact_sheet(chosen, sheet, n_images=pictures, **how)
            result |= {"sheet": sheet, "steps_shown": steps}
            lines.append(f"{sheet}: {len(steps)} pictures")
        if out is not None:
            with progress_bar() as bar:
                task = bar.add_task("writing frames", total=len(chosen) + 1)
                n_frames = write_video(chosen, out, fps=fps, progress=lambda n: bar.advance(task, n), **how)
            result |= {"video": out, "frames": n_frames, "fps": fps}
            lines.append(f"{out}: {n_frames:,} frames")
    show(result, *lines, as_json=as_json)
