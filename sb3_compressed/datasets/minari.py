"""Replay buffers to Minari datasets and back: https://minari.farama.org."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed.buffers.replay import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_compressed.datasets.episodes import Trajectory, trajectories
from sb3_compressed.datasets.transitions import transitions
from sb3_compressed.progress import progress_bar as shown_progress

if TYPE_CHECKING:
    from minari import MinariDataset

__all__ = ["export_minari", "import_minari"]

#: Steps that are in memory at a time, of however long episodes.
STEPS = 512


def export_minari(
    buffer: ReplayBuffer,
    dataset_id: str,
    *,
    unscale_actions: bool = False,
    progress_bar: bool = True,
    **metadata: Any,
) -> MinariDataset:
    """Write what a replay buffer holds to a new Minari dataset (HDF5), bit for bit, a part of an episode at a time.

    Each trajectory is an episode of the dataset; its metadata tells ``env``, ``has_begin`` and ``has_end``, as
    :class:`~sb3_compressed.datasets.Trajectory` does. ``minari.load_dataset(dataset_id)`` reads it.

    :param buffer: the buffer, which may be one of SB3's own
    :param dataset_id: as Minari names datasets: ``"pong/dqn-v0"``
    :param unscale_actions: whether actions of a Box space are brought back to its range from -1 to 1, to which SB3's
        off-policy algorithms scale them
    :param progress_bar: whether a progress bar is shown
    :param metadata: further arguments of ``minari.create_dataset_from_buffers``, as ``env``, ``algorithm_name``,
        ``author``
    :return: the dataset
    :raises ImportError: if Minari is not installed: ``pip install 'sb3-compressed[minari]'``
    :raises ValueError: if there is such a dataset already, its name is malformed, or the buffer is empty
    """
    minari = _minari()
    if not buffer.size():
        raise ValueError("there is nothing in the buffer that could be exported")
    minari.dataset.minari_dataset.parse_dataset_id(dataset_id)  # raises; Minari itself looks when all is written
    lengths: list[tuple[Trajectory, int]] = []

    def parts() -> Iterator[Any]:
        with shown_progress(buffer.size() * buffer.n_envs, "exporting", is_shown=progress_bar) as advance:
            for number, trajectory in enumerate(trajectories(buffer)):
                lengths.append((trajectory, number))
                for first in range(0, len(trajectory), STEPS):
                    yield _episode_part(minari, trajectory, first, number, unscale_actions=unscale_actions)
                    advance(min(STEPS, len(trajectory) - first))

    dataset = minari.create_dataset_from_buffers(
        dataset_id,
        parts(),
        action_space=buffer.action_space,
        observation_space=buffer.observation_space,
        jpeg_encoding=False,  # which would not be what was stored
        **metadata,
    )
    told = [
        # Minari counts the steps of the last part only.
        {"total_steps": len(each), "env": each.env, "has_begin": each.has_begin, "has_end": each.has_end}
        for each, _ in lengths
    ]
    dataset.storage.update_episode_metadata(told, [number for _, number in lengths])
    return minari.load_dataset(dataset_id)


def _episode_part(minari: Any, trajectory: Trajectory, first: int, number: int, *, unscale_actions: bool) -> Any:
    """Return some steps of an episode as Minari takes them: parts of one episode have its number, one by one."""
    last = min(first + STEPS, len(trajectory))
    part = trajectory.part(first, last)
    # The observation after the last step of a part is the first one of the next part.
    kept = slice(None) if last == len(trajectory) else slice(-1)
    observations = part.observations
    observations = (
        {key: value[kept] for key, value in observations.items()}
        if isinstance(observations, dict)
        else observations[kept]
    )
    return minari.data_collector.EpisodeBuffer(
        id=number,
        observations=observations,
        actions=_unscaled(part.actions, trajectory.action_space) if unscale_actions else part.actions,
        rewards=part.rewards,
        terminations=part.terminations,
        truncations=part.truncations,
    )


def _unscaled(actions: NDArray[Any], space: spaces.Space[Any]) -> NDArray[Any]:
    """Return actions in the range of their space, as SB3's policies do it."""
    if not isinstance(space, spaces.Box):
        return actions
    unscaled: NDArray[Any] = (space.low + 0.5 * (actions + 1.0) * (space.high - space.low)).astype(actions.dtype)
    return unscaled


def import_minari(
    dataset: str | MinariDataset, buffer: ReplayBuffer | None = None, *, progress_bar: bool = True, **options: Any
) -> ReplayBuffer:
    """Add all episodes of a Minari dataset to a replay buffer, one after the other.

    :param dataset: a dataset, or the name of one
    :param buffer: where to add them, a buffer of one environment; ``None`` for a new compressed one, with room for all
    :param progress_bar: whether a progress bar is shown
    :param options: further arguments of the new buffer
    :return: the buffer
    :raises ImportError: if Minari is not installed: ``pip install 'sb3-compressed[minari]'``
    :raises ValueError: if the buffer is of other spaces, or of several environments
    """
    minari = _minari()
    if isinstance(dataset, str):
        dataset = minari.load_dataset(dataset)
    observation_space, action_space = dataset.observation_space, dataset.action_space
    n_steps = int(dataset.total_steps)
    if buffer is None:
        cls = CompressedDictReplayBuffer if isinstance(observation_space, spaces.Dict) else CompressedReplayBuffer
        buffer = cls(options.pop("buffer_size", n_steps), observation_space, action_space, **options)
    if buffer.n_envs != 1 or (buffer.observation_space, buffer.action_space) != (observation_space, action_space):
        raise ValueError(
            f"the dataset is of one environment with observations {observation_space} and actions {action_space}, the "
            f"buffer of {buffer.n_envs} with {buffer.observation_space} and {buffer.action_space}"
        )
    with shown_progress(n_steps, "importing", is_shown=progress_bar) as advance:
        for episode in dataset.iterate_episodes():
            for transition in transitions(episode):
                buffer.add(*transition)
            advance(len(episode.rewards))
    return buffer


def _minari() -> Any:
    try:
        import minari
        import minari.data_collector
        import minari.dataset.minari_dataset
    except ImportError:
        older = " (it needs Python 3.11 or newer)" if sys.version_info < (3, 11) else ""
        raise ImportError(f"Minari is not installed: pip install 'sb3-compressed[minari]'{older}") from None
    return minari
