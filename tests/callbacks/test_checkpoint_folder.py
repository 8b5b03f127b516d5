"""A folder of checkpoints belongs to one run, and damage affects only the damaged checkpoint."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from programs import start
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env

from callbacks.failing import FailingCallback
from sb3_compressed import (
    BufferCheckpointCallback,
    CheckpointNotFound,
    CompressedReplayBuffer,
    CorruptStorage,
    StorageError,
    latest_checkpoint,
)
from sb3_compressed.storage.files import UNFINISHED


def dqn() -> DQN:
    return DQN(
        "MlpPolicy", "CartPole-v1", buffer_size=100, learning_starts=1000, device="cpu",
        policy_kwargs={"net_arch": [4]}, replay_buffer_class=CompressedReplayBuffer,
    )  # fmt: skip


def train(path: Path, n_steps: int = 12, save_freq: int = 4, **options: Any) -> BufferCheckpointCallback:
    """Train up to a number of steps; with ``resume=True``, continue the model of the latest checkpoint."""
    callback = BufferCheckpointCallback(save_freq, path, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # damaged checkpoints, of which the callback warns again
        newest = latest_checkpoint(path, missing_ok=True) if options.get("resume") and path.exists() else None
    model = loaded(newest) if newest else dqn()
    model.learn(n_steps - model.num_timesteps, callback=callback, reset_num_timesteps=False)
    return callback


def loaded(checkpoint: Path) -> DQN:
    model = DQN.load(checkpoint / "model", env=make_vec_env("CartPole-v1"), device="cpu")
    model.replay_buffer = CompressedReplayBuffer.from_checkpoint(checkpoint / "buffer", device="cpu")
    return model


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.glob("step_*"))


def contents(path: Path) -> dict[str, bytes]:
    """Return every file of a folder except the lock, which names the last process."""
    files = [each for each in path.rglob("*") if each.is_file() and each.name != "lock"]
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three checkpoints of one run."""
    folder = tmp_path_factory.mktemp("recorded")
    train(folder, keep=3)
    assert names(folder) == ["step_0000000004", "step_0000000008", "step_0000000012"]
    return folder


@pytest.fixture
def three(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "checkpoints"))


def test_a_new_run_in_the_folder_of_another_raises_without_resume_or_overwrite(three: Path) -> None:
    before = contents(three)
    with pytest.raises(StorageError, match=r"of another run: pass resume=True .*, overwrite=True"):
        train(three, keep=1)
    assert contents(three) == before


def test_resume_continues_the_run_and_deletes_old_checkpoints(three: Path) -> None:
    train(three, n_steps=20, save_freq=20, keep=3, resume=True)
    assert names(three) == ["step_0000000008", "step_0000000012", "step_0000000020"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need privileges")
def test_what_killed_processes_left_unfinished_is_deleted(three: Path, tmp_path: Path) -> None:
    kept = Path(shutil.copytree(three / "step_0000000004", tmp_path / "kept"))
    before = contents(kept)
    (three / f"step_0000000016.{UNFINISHED}").mkdir()
    (three / f"step_0000000020.{UNFINISHED}").symlink_to(kept)
    train(three, n_steps=16, save_freq=16, keep=9, resume=True)
    assert names(three) == [f"step_{steps:010}" for steps in (4, 8, 12, 16)]
    assert contents(kept) == before


def test_a_checkpoint_that_a_killed_process_was_replacing_can_be_replaced_again(three: Path) -> None:
    shutil.copytree(three / "step_0000000012", three / "step_0000000012.replaced")
    model = loaded(three / "step_0000000008")
    model.learn(4, callback=BufferCheckpointCallback(4, three, keep=9, resume=True), reset_num_timesteps=False)
    assert names(three) == [f"step_{steps:010}" for steps in (4, 8, 12)]
    assert latest_checkpoint(three) == three / "step_0000000012"


def test_overwrite_keeps_the_other_run_until_a_checkpoint_of_the_new_one_is_complete(three: Path) -> None:
    model, seen = dqn(), []

    class Observe(BaseCallback):
        def _on_step(self) -> bool:
            seen.append((names(three), latest_checkpoint(three, missing_ok=True)))
            return True

    model.learn(8, callback=[BufferCheckpointCallback(4, three, keep=9, overwrite=True), Observe()])
    assert seen[0] == (["step_0000000004", "step_0000000008", "step_0000000012"], three / "step_0000000012")
    assert names(three) == ["step_0000000004", "step_0000000008"]
    assert latest_checkpoint(three).name == "step_0000000008"


def test_a_reused_callback_continues_its_run(tmp_path: Path) -> None:
    model, callback = dqn(), BufferCheckpointCallback(4, tmp_path, keep=9)
    model.learn(8, callback=callback)
    model.learn(8, callback=callback, reset_num_timesteps=False)
    assert names(tmp_path) == [f"step_{steps:010}" for steps in (4, 8, 12, 16)]
    model.learn(4, callback=callback, reset_num_timesteps=False)
    callback.save()  # also between two trainings
    assert latest_checkpoint(tmp_path) == tmp_path / "step_0000000020"


def test_a_missing_or_empty_folder_starts_a_run_with_resume_and_overwrite(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for option in ("resume", "overwrite"):
        for folder in ("empty", "a/new"):
            train(tmp_path / option / folder, **{option: True})
            assert names(tmp_path / option / folder) == ["step_0000000012"]
    with pytest.raises(ValueError, match="pass one of them"):
        BufferCheckpointCallback(4, tmp_path, resume=True, overwrite=True)


TRAINING = """
import sys
from callbacks.test_checkpoint_folder import dqn
from sb3_compressed import BufferCheckpointCallback
from stable_baselines3.common.callbacks import BaseCallback

class Wait(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 6:
            print("training", flush=True)
            sys.stdin.readline()
        return True

for folder in sys.argv[1:]:
    dqn().learn(8, callback=[BufferCheckpointCallback(4, folder, keep=9), Wait()])
    print("trained", flush=True)
"""


@pytest.mark.slow
def test_a_folder_is_locked_until_the_training_ends_or_its_process_is_killed(tmp_path: Path) -> None:
    folders = [tmp_path / "ended", tmp_path / "killed"]
    with start(TRAINING, *folders) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for folder in folders:
                assert process.stdout.readline() == "training\n"
                for option in ({}, {"resume": True}, {"overwrite": True}):
                    with pytest.raises(StorageError, match=rf"process {process.pid}; .*callback\.close\(\)"):
                        train(folder, **option)
                assert latest_checkpoint(folder).name == "step_0000000004"  # readers need no lock
                if folder == folders[0]:
                    process.stdin.write("\n")
                    process.stdin.flush()
                    assert process.stdout.readline() == "trained\n"
                    train(folder, keep=2, resume=True)  # while the process is alive
                    assert names(folder) == ["step_0000000008", "step_0000000012"]
        finally:
            process.kill()
    train(folders[1], keep=2, resume=True)
    assert names(folders[1]) == ["step_0000000008", "step_0000000012"]


@pytest.mark.parametrize("closes", [True, False])
def test_a_failed_training_locks_its_folder_until_close_and_its_callback_goes_on(closes: bool, tmp_path: Path) -> None:
    model, callback = dqn(), BufferCheckpointCallback(4, tmp_path, keep=9)
    with pytest.raises(RuntimeError, match="failed") as error:  # keeps the frame of learn() alive, like notebooks
        model.learn(8, callback=[callback, FailingCallback(6, RuntimeError("the environment failed"))])
    for option in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(StorageError, match=r"process \d+; .*callback\.close\(\)"):
            train(tmp_path, keep=9, **option)
    if closes:
        callback.close()
    else:
        model.learn(2, callback=callback, reset_num_timesteps=False)
    train(tmp_path, n_steps=20, keep=9, resume=True)
    assert names(tmp_path) == [f"step_{steps:010}" for steps in ((4, 8, 12, 16, 20) if closes else (4, 10, 14, 18, 22))]
    assert error.value.__traceback__ is not None


def test_a_lock_that_is_not_a_file_is_reported_as_damage(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(CorruptStorage, match="lock"):
        train(tmp_path)


def test_a_callback_can_be_pickled_before_and_after_a_training(tmp_path: Path) -> None:
    before = pickle.loads(pickle.dumps(BufferCheckpointCallback(4, tmp_path, keep=9)))
    model = dqn()
    model.learn(4, callback=before)
    assert before.__getstate__()["_lock"] is None
    model.save(tmp_path / "model.zip")


@pytest.mark.parametrize("nesting", ["child", "list in child", "child in list", "new best", "list on new best"])
def test_a_callback_that_is_triggered_by_another_one_raises(nesting: str, tmp_path: Path) -> None:
    callback: BaseCallback = BufferCheckpointCallback(4, tmp_path)
    if "list in" in nesting or "list on" in nesting:
        callback = CallbackList([callback])
    if "best" in nesting:
        env = make_vec_env("CartPole-v1")
        callback = EvalCallback(env, callback_on_new_best=callback, n_eval_episodes=1, eval_freq=2, verbose=0)
    else:
        callback = EveryNTimesteps(2, callback)
    with pytest.raises(StorageError, match=r"would never save as a child of E\w+, .* to learn\(\) alone or in a list"):
        dqn().learn(8, callback=[callback] if "in list" in nesting else callback)
    train(tmp_path)  # the folder is not locked


def test_resume_with_a_new_model_raises_and_keeps_the_checkpoints(three: Path) -> None:
    before = contents(three)
    message = r"contains step_0000000004, but this model has 0 steps .*latest_checkpoint\(.*reset_num_timesteps=False"
    with pytest.raises(StorageError, match=message):
        dqn().learn(8, callback=BufferCheckpointCallback(4, three, resume=True))
    with pytest.raises(StorageError, match=message):  # learn() sets the steps of a loaded model to 0 by default
        loaded(latest_checkpoint(three)).learn(8, callback=BufferCheckpointCallback(4, three, resume=True))
    assert contents(three) == before
    earlier = loaded(three / "step_0000000008")
    callback = BufferCheckpointCallback(4, three, keep=9, resume=True)
    earlier.learn(8, callback=callback, reset_num_timesteps=False)
    assert latest_checkpoint(three).name == "step_0000000016"


def test_resume_without_the_buffer_raises_and_keeps_the_checkpoints(three: Path) -> None:
    """Its checkpoints would replace those that contain the transitions so far."""
    before = contents(three)
    model = DQN.load(latest_checkpoint(three) / "model", env=make_vec_env("CartPole-v1"), device="cpu")
    with pytest.raises(StorageError, match=r"replay buffer of this model is empty.* model\.replay_buffer = load_check"):
        model.learn(8, callback=BufferCheckpointCallback(4, three, resume=True), reset_num_timesteps=False)
    assert contents(three) == before


# -- damage ----------------------------------------------------------------------------------------------------


FOREIGN = "step_0000000099"
NEEDS_FIFOS = pytest.param("fifo", marks=pytest.mark.skipif(sys.platform == "win32", reason="there are no FIFOs"))


@pytest.mark.parametrize("kind", ["empty", "file", "no model", "other name", NEEDS_FIFOS, "list"])
def test_other_folders_with_the_name_of_a_checkpoint_are_skipped_and_kept(kind: str, three: Path) -> None:
    folder = three / FOREIGN
    manifest = folder / "checkpoint.json"
    if kind == "file":
        folder.write_text("mine")
    elif kind in ("no model", "other name"):
        shutil.copytree(three / "step_0000000012", folder)
        if kind == "no model":
            manifest.write_text('{"number": 9, "num_timesteps": 99}')
            (folder / "model.zip").unlink()
    else:
        folder.mkdir()
        if kind == "fifo":
            os.mkfifo(manifest)
        elif kind == "list":
            manifest.write_text("[]")
    warning = f"skipping .*{FOREIGN}"
    with pytest.warns(UserWarning, match=warning):
        assert latest_checkpoint(three).name == "step_0000000012"
    with pytest.warns(UserWarning, match=warning):
        train(three, n_steps=20, save_freq=20, resume=True)
    with pytest.warns(UserWarning, match=warning):
        assert latest_checkpoint(three).name == "step_0000000020"
    assert names(three) == ["step_0000000020", FOREIGN]


def test_another_folder_with_the_name_of_a_new_checkpoint_is_renamed(tmp_path: Path) -> None:
    (tmp_path / "step_0000000004").mkdir()
    (tmp_path / "step_0000000004" / "mine").write_text("precious")
    with pytest.warns(UserWarning, match="skipping"), pytest.raises(StorageError, match="another run"):
        train(tmp_path, n_steps=4)
    renamed = r"renamed .*step_0000000004, .* to step_0000000004\.other-\w{8}"
    with pytest.warns(UserWarning, match="skipping"), pytest.warns(UserWarning, match=renamed):
        dqn().learn(4, callback=BufferCheckpointCallback(4, tmp_path, resume=True))
    [other] = tmp_path.glob("step_0000000004.other-*")
    assert (other / "mine").read_text() == "precious"
    assert latest_checkpoint(tmp_path).name == "step_0000000004"


# -- missing checkpoints -------------------------------------------------------------------------------------


def test_a_missing_folder_raises_without_missing_ok(three: Path) -> None:
    for error in (CheckpointNotFound, FileNotFoundError, StorageError):
        with pytest.raises(error, match=r"there is no folder .*chekpoints"):
            latest_checkpoint(three.with_name("chekpoints"))
    assert latest_checkpoint(three.with_name("chekpoints"), missing_ok=True) is None
    with pytest.raises(CheckpointNotFound, match="there is no folder"):
        latest_checkpoint(
            three / "step_0000000012" / "model.zip", missing_ok=True
        )  # missing_ok does not apply: it is a file


def test_a_folder_without_checkpoints_raises_without_missing_ok(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"contains no complete checkpoint; pass missing_ok=True"):
        latest_checkpoint(tmp_path)
    assert latest_checkpoint(tmp_path, missing_ok=True) is None


def test_only_damaged_checkpoints_raise_even_with_missing_ok(three: Path) -> None:
    for name in names(three):
        (three / name / "checkpoint.json").write_text("{")
    with (
        pytest.warns(UserWarning, match="skipping"),
        pytest.raises(CorruptStorage, match=r"all checkpoints in .* are damaged: step_0000000004, "),
    ):
        latest_checkpoint(three, missing_ok=True)


READER = """
import sys
from pathlib import Path
from sb3_compressed import latest_checkpoint
newest = 0
print("reading", flush=True)
while newest < 80:
    found = int(latest_checkpoint(sys.argv[1]).name.removeprefix("step_"))
    assert found >= newest, (found, newest)
    newest = found
"""


@pytest.mark.slow
def test_a_reader_sees_only_complete_checkpoints_while_a_run_saves_and_deletes(tmp_path: Path) -> None:
    model, callback = dqn(), BufferCheckpointCallback(4, tmp_path)
    model.learn(4, callback=callback)
    with start(READER, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        model.learn(76, callback=callback, reset_num_timesteps=False)
        assert process.wait(60) == 0
