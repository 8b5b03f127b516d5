"""A folder of checkpoints belongs to one run, and damage in it costs only what is damaged."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import outcome, start
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env

from sb3_compressed import (
    BufferCheckpointCallback,
    CheckpointNotFound,
    CompressedReplayBuffer,
    CorruptStorage,
    StorageError,
    latest_checkpoint,
)
from sb3_compressed.callbacks.checkpoint_callback import FRAMES_ARE_VISIBLE


def dqn() -> DQN:
    return DQN(
        "MlpPolicy", "CartPole-v1", buffer_size=100, learning_starts=1000, device="cpu",
        policy_kwargs={"net_arch": [4]}, replay_buffer_class=CompressedReplayBuffer,
    )  # fmt: skip


def train(path: Path, n_steps: int = 12, save_freq: int = 4, **options: Any) -> BufferCheckpointCallback:
    """Train up to a number of steps, with ``resume=True`` a model that is loaded from the newest checkpoint."""
    callback = BufferCheckpointCallback(save_freq, path, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of damaged checkpoints; the callback warns of them again
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
    """Return every file of a folder but the lock's, which names the last process."""
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


def test_another_run_needs_to_say_what_becomes_of_the_first(three: Path) -> None:
    before = contents(three)
    with pytest.raises(StorageError, match=r"of another run: pass resume=True .* or overwrite=True"):
        train(three, keep=1)
    assert contents(three) == before


def test_resume_continues_the_run_and_deletes_only_what_is_not_kept(three: Path) -> None:
    run = (three / "run.json").read_bytes()
    train(three, n_steps=20, save_freq=20, keep=3, resume=True)
    assert names(three) == ["step_0000000008", "step_0000000012", "step_0000000020"]
    assert (three / "run.json").read_bytes() == run


def test_overwrite_keeps_the_other_run_until_a_checkpoint_of_the_new_one_is_complete(three: Path) -> None:
    model, seen = dqn(), []

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            seen.append((names(three), latest_checkpoint(three, missing_ok=True)))
            return True

    model.learn(8, callback=[BufferCheckpointCallback(4, three, keep=9, overwrite=True), Look()])
    assert seen[0] == (["step_0000000004", "step_0000000008", "step_0000000012"], None), "those of another run"
    assert names(three) == ["step_0000000004", "step_0000000008"]
    assert latest_checkpoint(three).name == "step_0000000008"


def test_a_callback_that_is_used_again_continues_its_run(tmp_path: Path) -> None:
    model, callback = dqn(), BufferCheckpointCallback(4, tmp_path, keep=9)
    model.learn(8, callback=callback)
    model.learn(8, callback=callback, reset_num_timesteps=False)
    assert names(tmp_path) == [f"step_{steps:010}" for steps in (4, 8, 12, 16)]
    model.learn(4, callback=callback, reset_num_timesteps=False)
    callback.save()  # also between two trainings
    assert latest_checkpoint(tmp_path) == tmp_path / "step_0000000020"


def test_a_missing_or_empty_folder_starts_a_run_whatever_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for option in ("resume", "overwrite"):
        for folder in ("empty", "a/new"):
            train(tmp_path / option / folder, **{option: True})
            assert names(tmp_path / option / folder) == ["step_0000000012"]
    with pytest.raises(ValueError, match="pass one of them"):
        BufferCheckpointCallback(4, tmp_path, resume=True, overwrite=True)


def test_two_callbacks_of_one_training_cannot_share_a_path(tmp_path: Path) -> None:
    both = CallbackList([BufferCheckpointCallback(4, tmp_path), BufferCheckpointCallback(4, tmp_path, resume=True)])
    with pytest.raises(StorageError, match="is locked by another training of this process; give each"):
        dqn().learn(8, callback=both)


def test_two_trainings_of_one_process_cannot_share_a_path(tmp_path: Path) -> None:
    class Second(BaseCallback):
        """Trains another model, in another thread, while the first trains."""

        def _on_step(self) -> bool:
            def second() -> None:
                with pytest.raises(
                    StorageError, match="is locked by another training of this process; give each"
                ) as error:
                    train(tmp_path, overwrite=True)
                errors.append(error.value)

            thread = threading.Thread(target=second)
            thread.start()
            thread.join()
            return True

    errors: list[StorageError] = []
    dqn().learn(8, callback=[BufferCheckpointCallback(4, tmp_path, keep=2), Second()])
    assert len(errors) == 8
    assert names(tmp_path) == ["step_0000000004", "step_0000000008"]


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

dqn().learn(8, callback=[BufferCheckpointCallback(4, sys.argv[1], keep=9), Wait()])
print("trained", flush=True)
sys.stdin.readline()
"""


def test_trainings_of_two_processes_cannot_share_a_path_and_its_end_or_death_releases_it(tmp_path: Path) -> None:
    for ends in (True, False):
        with start(TRAINING, folder := tmp_path / str(ends)) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "training\n"
                for option in ({}, {"resume": True}, {"overwrite": True}):
                    with pytest.raises(
                        StorageError, match=rf"is locked by process {process.pid}; .*callback\.close\(\)"
                    ):
                        train(folder, **option)
                assert latest_checkpoint(folder).name == "step_0000000004"  # readers need no lock
                if ends:
                    process.stdin.write("\n")
                    process.stdin.flush()
                    assert process.stdout.readline() == "trained\n"
                    train(folder, resume=True)  # while the process is alive
            finally:
                process.kill()
        train(folder, resume=True)
        assert "step_0000000012" in names(folder)


class Failure(BaseCallback):
    """Ends the training with an exception, of which SB3 notifies no callback."""

    def _on_step(self) -> bool:
        if self.num_timesteps == 6:
            raise RuntimeError("the environment broke")
        return True


@pytest.mark.skipif(not FRAMES_ARE_VISIBLE, reason="this interpreter does not show whether a training is running")
def test_a_training_that_failed_does_not_block_the_next_one_of_the_process(tmp_path: Path) -> None:
    model, callback = dqn(), BufferCheckpointCallback(4, tmp_path, keep=9)
    with pytest.raises(RuntimeError, match="broke") as error:  # which keeps learn's frame alive, as notebooks do
        model.learn(8, callback=[callback, Failure()])
    model.learn(2, callback=callback, reset_num_timesteps=False)
    second = loaded(tmp_path / "step_0000000004")
    callback = BufferCheckpointCallback(4, tmp_path, keep=9, resume=True)
    with pytest.raises(RuntimeError, match="broke"):
        second.learn(8, callback=[callback, Failure()], reset_num_timesteps=False)
    train(tmp_path, keep=9, resume=True)
    assert names(tmp_path) == [f"step_{steps:010}" for steps in (4, 10, 14)]
    assert error.value.__traceback__ is not None


def test_a_lock_that_is_not_a_file_is_not_taken_for_another_training(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(CorruptStorage, match="lock"):
        train(tmp_path)


def test_a_path_can_be_used_again_when_its_training_is_over(tmp_path: Path) -> None:
    first = train(tmp_path)
    second = train(tmp_path, overwrite=True)
    with pytest.raises(StorageError, match="of another run"):
        first.save()
    second.save()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked there")
def test_a_forked_child_neither_saves_nor_takes_the_lock_away(tmp_path: Path) -> None:
    class Fork(BaseCallback):
        def _on_step(self) -> bool:
            child = os.fork()
            if child == 0:
                try:
                    callback.save()
                except StorageError:
                    os._exit(7)
                os._exit(0)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            return True

    codes: list[int] = []
    callback = BufferCheckpointCallback(4, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks in a process with threads
        dqn().learn(4, callback=[callback, Fork()])
    assert codes == [7] * 4
    assert names(tmp_path) == ["step_0000000004"]


def test_a_callback_can_be_pickled_before_and_after_a_training(tmp_path: Path) -> None:
    before = pickle.loads(pickle.dumps(BufferCheckpointCallback(4, tmp_path, keep=9)))
    model = dqn()
    model.learn(4, callback=before)
    assert before.__getstate__()["_lock"] is None
    model.save(tmp_path / "model.zip")


def test_it_works_beside_an_eval_callback(tmp_path: Path) -> None:
    evaluation = EvalCallback(make_vec_env("CartPole-v1"), n_eval_episodes=1, eval_freq=4, verbose=0)
    dqn().learn(8, callback=CallbackList([evaluation, BufferCheckpointCallback(4, tmp_path, keep=9)]))
    assert names(tmp_path) == ["step_0000000004", "step_0000000008"]


@pytest.mark.parametrize("nesting", ["child", "list in child", "child in list", "new best", "list on new best"])
def test_a_callback_that_another_one_triggers_is_an_error_as_it_would_never_save(nesting: str, tmp_path: Path) -> None:
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
    train(tmp_path)  # the folder is free


def test_resume_with_a_model_that_was_not_loaded_is_an_error_that_keeps_the_checkpoints(three: Path) -> None:
    before = contents(three)
    message = r"holds step_0000000004, but this model has 0 steps .*latest_checkpoint\(.*reset_num_timesteps=False"
    with pytest.raises(StorageError, match=message):
        dqn().learn(8, callback=BufferCheckpointCallback(4, three, resume=True))
    with pytest.raises(StorageError, match=message):  # learn() sets the steps of a loaded model to 0 by default
        loaded(latest_checkpoint(three)).learn(8, callback=BufferCheckpointCallback(4, three, resume=True))
    assert contents(three) == before
    earlier = loaded(three / "step_0000000008")
    callback = BufferCheckpointCallback(4, three, keep=9, resume=True)
    earlier.learn(8, callback=callback, reset_num_timesteps=False)
    assert latest_checkpoint(three).name == "step_0000000016"


@pytest.mark.parametrize("ends", [True, False])
def test_a_callback_of_another_model_is_an_error_that_keeps_the_checkpoints(ends: bool, tmp_path: Path) -> None:
    for option in ({}, {"resume": True}, {"overwrite": True}):
        path = tmp_path / str(option)
        callback = BufferCheckpointCallback(4, path, **option)
        first = dqn()
        if ends:
            first.learn(8, callback=callback)
        else:
            with pytest.raises(RuntimeError, match="broke"):
                first.learn(8, callback=[callback, Failure()])
        before = contents(path)
        with pytest.raises(StorageError, match=r"of another model .*a BufferCheckpointCallback for each|has 0 steps"):
            dqn().learn(8, callback=callback)
        assert contents(path) == before
        first.learn(4, callback=callback, reset_num_timesteps=False)
        assert latest_checkpoint(path).name == f"step_{first.num_timesteps:010}"


# -- damage ----------------------------------------------------------------------------------------------------


def flips(file: Path) -> Iterator[int]:
    """Flip every bit of a file, one after the other."""
    content = file.read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        yield bit
    file.write_bytes(content)


@pytest.mark.parametrize("which", [0, 2])
def test_every_flipped_bit_of_a_manifest_is_a_warning_and_costs_that_checkpoint_only(which: int, three: Path) -> None:
    folders = [three / name for name in names(three)]
    left = [folder for folder in folders if folder != folders[which]]
    n_flips = 0
    for _ in flips(folders[which] / "checkpoint.json"):
        with pytest.warns(UserWarning, match=f"skipping the checkpoint {re.escape(str(folders[which]))}"):
            assert latest_checkpoint(three) == left[-1]
        n_flips += 1
    assert n_flips > 600
    assert latest_checkpoint(three) == folders[-1]


def test_every_flipped_bit_of_the_run_is_a_warning(three: Path) -> None:
    for _ in flips(three / "run.json"):
        with pytest.warns(UserWarning, match=r"ignoring .*run\.json, which is damaged"):
            assert latest_checkpoint(three).name == "step_0000000012"


def test_a_damaged_manifest_does_not_end_a_training_and_is_never_deleted(tmp_path: Path) -> None:
    class Damage(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 6:
                (tmp_path / "step_0000000004" / "checkpoint.json").write_text('{"number": 1, "num_timest')
            return True

    with pytest.warns(UserWarning, match="skipping the checkpoint"):
        dqn().learn(16, callback=[BufferCheckpointCallback(4, tmp_path, keep=2), Damage()])
    assert names(tmp_path) == ["step_0000000004", "step_0000000012", "step_0000000016"]
    with pytest.warns(UserWarning, match="skipping the checkpoint"):
        assert latest_checkpoint(tmp_path).name == "step_0000000016"


def test_a_damaged_run_is_taken_from_its_checkpoints_on_resume(three: Path) -> None:
    run = json.loads((three / "run.json").read_text())
    (three / "run.json").write_text("")
    with pytest.warns(UserWarning, match="ignoring"), pytest.raises(StorageError, match="of another run"):
        train(three)
    with pytest.warns(UserWarning, match="ignoring"):
        train(three, n_steps=16, save_freq=16, keep=2, resume=True)
    assert json.loads((three / "run.json").read_text()) == run
    assert names(three) == ["step_0000000012", "step_0000000016"]


FOREIGN = "step_0000000099"


@pytest.mark.parametrize(
    "kind", ["empty", "file", "no model", "other name", "fifo", "link", "large", "list", "deep", "huge number"]
)
def test_what_looks_like_a_checkpoint_and_is_none_is_skipped_and_kept(kind: str, three: Path) -> None:
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
        texts = {"large": " " * 5000 + "{}", "list": "[]", "deep": "[" * 4000, "huge number": '{"number": 1e999}'}
        if kind == "fifo":
            os.mkfifo(manifest)
        elif kind == "link":
            manifest.symlink_to(three / "step_0000000012" / "checkpoint.json")
        elif kind in texts:
            manifest.write_text(texts[kind])
    warning = f"skipping the checkpoint .*{FOREIGN}"
    with pytest.warns(UserWarning, match=warning):
        assert latest_checkpoint(three).name == "step_0000000012"
    with pytest.warns(UserWarning, match=warning):
        train(three, n_steps=20, save_freq=20, resume=True)
    with pytest.warns(UserWarning, match=warning):
        assert latest_checkpoint(three).name == "step_0000000020"
    assert names(three) == ["step_0000000020", FOREIGN]


def test_what_is_in_the_way_of_a_checkpoint_is_renamed(tmp_path: Path) -> None:
    (tmp_path / "step_0000000004").mkdir()
    (tmp_path / "step_0000000004" / "mine").write_text("precious")
    with pytest.warns(UserWarning, match="skipping the checkpoint"), pytest.raises(StorageError, match="another run"):
        train(tmp_path, n_steps=4)
    renamed = r"renamed .*step_0000000004, .* to step_0000000004\.other-1"
    with pytest.warns(UserWarning, match="skipping the checkpoint"), pytest.warns(UserWarning, match=renamed):
        dqn().learn(4, callback=BufferCheckpointCallback(4, tmp_path, resume=True))
    assert (tmp_path / "step_0000000004.other-1" / "mine").read_text() == "precious"
    assert latest_checkpoint(tmp_path).name == "step_0000000004"


def test_checkpoints_of_another_run_in_the_folder_are_neither_newest_nor_deleted(three: Path, tmp_path: Path) -> None:
    train(tmp_path / "other", n_steps=32, save_freq=32)
    shutil.copytree(tmp_path / "other" / "step_0000000032", three / "step_0000000032")
    assert latest_checkpoint(three).name == "step_0000000012"
    train(three, n_steps=16, save_freq=16, resume=True)
    assert names(three) == ["step_0000000016", "step_0000000032"]
    assert latest_checkpoint(three).name == "step_0000000016"


def test_checkpoints_of_version_0_1_still_load_and_are_continued(three: Path) -> None:
    (three / "run.json").unlink()
    for number, name in enumerate(names(three), 1):
        text = json.dumps({"number": number, "num_timesteps": int(name.removeprefix("step_"))}) + "\n"
        (three / name / "checkpoint.json").write_text(text)
    assert latest_checkpoint(three).name == "step_0000000012"
    with pytest.raises(StorageError, match="of another run"):
        train(three)
    train(three, n_steps=20, save_freq=20, keep=2, resume=True)
    assert names(three) == ["step_0000000012", "step_0000000020"]
    assert latest_checkpoint(three).name == "step_0000000020"


# -- where there is none ---------------------------------------------------------------------------------------


def test_a_missing_folder_is_an_error_that_names_similar_ones(three: Path) -> None:
    for error in (FileNotFoundError, StorageError, CheckpointNotFound):
        with pytest.raises(error, match=rf"there is no folder .*chekpoints; is it {re.escape(str(three))}\?"):
            latest_checkpoint(three.with_name("chekpoints"))
    assert latest_checkpoint(three.with_name("chekpoints"), missing_ok=True) is None
    with pytest.raises(CheckpointNotFound, match="nor"):
        latest_checkpoint(three / "missing" / "too")
    with pytest.raises(CheckpointNotFound, match="there is no folder"):
        latest_checkpoint(three / "run.json", missing_ok=True)  # a file: none is missing, it is wrong


def test_a_folder_without_checkpoints_is_an_error_unless_there_may_be_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"holds no complete checkpoint of its run; pass missing_ok=True"):
        latest_checkpoint(tmp_path)
    assert latest_checkpoint(tmp_path, missing_ok=True) is None


def test_damaged_checkpoints_only_are_not_taken_for_none(three: Path) -> None:
    for name in names(three):
        (three / name / "checkpoint.json").write_text("{")
    with (
        pytest.warns(UserWarning, match="skipping"),
        pytest.raises(CorruptStorage, match="no checkpoint that can be read, only step_0000000004, "),
    ):
        latest_checkpoint(three, missing_ok=True)


READER = """
import sys
from pathlib import Path
from sb3_compressed import latest_checkpoint
newest = 0
print("reading", flush=True)
while newest < 200:
    found = int(latest_checkpoint(sys.argv[1]).name.removeprefix("step_"))
    assert found >= newest, (found, newest)
    newest = found
"""


def test_a_reader_sees_complete_checkpoints_while_a_run_saves_and_deletes(tmp_path: Path) -> None:
    model, callback = dqn(), BufferCheckpointCallback(4, tmp_path)
    model.learn(4, callback=callback)
    with start(READER, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        model.learn(196, callback=callback, reset_num_timesteps=False)
        assert process.wait(60) == 0


@pytest.mark.slow
def test_a_checkpoint_of_a_run_of_another_process_can_be_continued(tmp_path: Path) -> None:
    code = TRAINING.replace("sys.stdin.readline()", "None")
    assert outcome(code, tmp_path).returncode == 0
    newest = latest_checkpoint(tmp_path)
    model = DQN.load(newest / "model", env=make_vec_env("CartPole-v1"), device="cpu")
    model.replay_buffer = CompressedReplayBuffer.from_checkpoint(newest / "buffer", device=model.device)
    callback = BufferCheckpointCallback(4, tmp_path, keep=2, resume=True)
    model.learn(4, callback=callback, reset_num_timesteps=False)
    assert names(tmp_path) == ["step_0000000008", "step_0000000012"]
