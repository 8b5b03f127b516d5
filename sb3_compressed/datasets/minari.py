"""Export replay buffers to Minari datasets and import them: https://minari.farama.org."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_compressed.buffers.replay import CompressedDictReplayBuffer, CompressedReplayBuffer
from sb3_compressed.common.action_scaling import unscale_actions as unscale
from sb3_compressed.common.extras import import_extra
from sb3_compressed.common.progress import progress_bar as shown_progress
from sb3_compressed.common.tree_map import tree_map
from sb3_compressed.datasets.import_target import import_target
from sb3_compressed.datasets.trajectory import Trajectory, add_steps, trajectories
from sb3_compressed.errors import StorageError

if TYPE_CHECKING:
    from minari import MinariDataset

__all__ = ["export_minari", "import_minari"]

#: Steps that are decoded at a time.
CHUNK_SIZE = 512


def export_minari(
    buffer: ReplayBuffer,
    dataset_id: str,
    *,
    unscale_actions: bool = False,
    progress_bar: bool = True,
    **metadata: Any,
) -> MinariDataset:
    """Write the episodes of a replay buffer to a new Minari dataset (HDF5), bit for bit and in bounded memory.

    Each trajectory becomes an episode with the metadata ``env``, ``has_begin`` and ``has_end`` of
    :class:`~sb3_compressed.datasets.Trajectory`. ``minari.load_dataset(dataset_id)`` reads the dataset.

    :param buffer: the buffer; SB3's own buffers work, too
    :param dataset_id: name of the dataset in Minari's format, for example ``"pong/dqn-v0"``
    :param unscale_actions: whether to map actions of a Box space from [-1, 1], to which SB3's off-policy algorithms
        scale them, to the range of the space
    :param progress_bar: whether to show a progress bar
    :param metadata: further arguments of ``minari.create_dataset_from_buffers``, for example ``env``,
        ``algorithm_name`` and ``author``
    :return: the dataset
    :raises ImportError: if Minari is not installed: ``pip install '.[minari]'``
    :raises ValueError: if the dataset exists already, its name is malformed, the buffer is empty, or
        ``MINARI_DATASETS_PATH`` is a relative path. After any error, nothing is left of the dataset
    """
    minari = _import_minari()
    if not buffer.size():
        raise ValueError("cannot export an empty buffer; add transitions first")
    _validate_dataset_id(dataset_id)
    _validate_folder()
    episodes: list[Trajectory] = []
    space = buffer.action_space

    def parts() -> Iterator[Any]:
        """Yield the steps of episodes as Minari's ``EpisodeBuffer``; consecutive ones of one id are one episode."""
        with shown_progress(buffer.size() * buffer.n_envs, "exporting", is_shown=progress_bar) as advance:
            for number, trajectory in enumerate(trajectories(buffer)):
                episodes.append(trajectory)
                for part, is_last in trajectory.parts(CHUNK_SIZE):
                    # The last observation of a part is also the first one of the next part.
                    stop = None if is_last else -1
                    actions = unscale(part.actions, space) if unscale_actions else part.actions
                    yield minari.data_collector.EpisodeBuffer(
                        id=number,
                        observations=tree_map(lambda values, stop=stop: values[:stop], part.observations),
                        actions=actions,
                        rewards=part.rewards,
                        terminations=part.terminations,
                        truncations=part.truncations,
                    )
                    advance(len(part.rewards))

    folder = Path(minari.storage.datasets_root_dir.get_dataset_path(dataset_id))
    with _without_advice_on_metadata(), _removed_on_failure(folder):
        dataset = minari.create_dataset_from_buffers(
            dataset_id,
            parts(),
            action_space=space,
            observation_space=buffer.observation_space,
            jpeg_encoding=False,  # which is lossy
            **metadata,
        )
        episode_metadata = [
            # Minari counts the steps of the last part only.
            {"total_steps": len(each), "env": each.env, "has_begin": each.has_begin, "has_end": each.has_end}
            for each in episodes
        ]
        dataset.storage.update_episode_metadata(episode_metadata, range(len(episodes)))
    return minari.load_dataset(dataset_id)


def _validate_dataset_id(dataset_id: str) -> None:
    """Raise if a name is malformed, before anything is written: Minari itself validates it at the end.

    :raises ValueError: with the name, and the format
    """
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(dataset_id)
    except (TypeError, ValueError):  # TypeError: without a version
        raise ValueError(
            f"malformed dataset ID {dataset_id!r}: use name-v0 or namespace/name-v0, for example 'pong/dqn-v0'. Names "
            "consist of letters, digits, - and _, and a namespace has at least two of these"
        ) from None


def _validate_folder() -> None:
    folder = os.environ.get("MINARI_DATASETS_PATH", "")
    if folder and not Path(folder).is_absolute():
        raise ValueError(f"Minari cannot create data sets in a relative path: MINARI_DATASETS_PATH={folder}")


@contextmanager
def _removed_on_failure(folder: Path) -> Iterator[None]:
    """Remove the folder of a dataset if its export fails; one that existed before stays, since Minari refuses it."""
    existed = folder.exists()
    try:
        yield
    except BaseException:
        if not existed:
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def _without_advice_on_metadata() -> Iterator[None]:
    """Ignore Minari's warnings about each argument that is not passed; all of them are optional."""
    with warnings.catch_warnings():
        for advice in (r"`\w+` is set to None", "env_spec is None"):
            warnings.filterwarnings("ignore", advice, UserWarning, r"minari\b")
        yield


def import_minari(
    dataset: str | MinariDataset, buffer: ReplayBuffer | None = None, *, progress_bar: bool = True, **options: Any
) -> ReplayBuffer:
    """Add all episodes of a Minari dataset to a replay buffer.

    :param dataset: a dataset or its name
    :param buffer: a buffer of one environment; ``None`` for a new compressed buffer that has space for all episodes
    :param progress_bar: whether to show a progress bar
    :param options: further arguments of the new buffer
    :return: the buffer
    :raises ImportError: if Minari is not installed: ``pip install '.[minari]'``
    :raises ValueError: if the buffer has other spaces, or several environments
    :raises StorageError: if the metadata of the dataset declares another number of steps than its episodes have
    """
    minari = _import_minari()
    if isinstance(dataset, str):
        dataset = minari.load_dataset(dataset)
    observation_space, action_space = dataset.observation_space, dataset.action_space
    n_steps = int(dataset.total_steps)
    cls = CompressedDictReplayBuffer if isinstance(observation_space, spaces.Dict) else CompressedReplayBuffer
    with import_target(buffer, cls, n_steps, observation_space, action_space, **options) as target:
        with shown_progress(n_steps, "importing", is_shown=progress_bar) as advance:
            n_left = n_steps
            for episode in dataset.iterate_episodes():
                n_left -= len(episode.rewards)
                if n_left < 0:  # a new buffer would overwrite the first episodes
                    break
                add_steps(target, episode)
                advance(len(episode.rewards))
        if n_left:
            found = "more" if n_left < 0 else f"{n_steps - n_left:,}"
            raise StorageError(f"the metadata of the dataset declares {n_steps:,} steps, but its episodes have {found}")
    return target


def _import_minari() -> Any:
    hint = " (it needs Python 3.11 or newer)" if sys.version_info < (3, 11) else ""
    minari = import_extra("minari", "minari", "Minari datasets", hint)
    importlib.import_module("minari.data_collector")
    return minari
