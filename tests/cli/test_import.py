"""``sb3-compressed import`` reads Dopamine's checkpoints into a folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from commands import error_of, run
from dopamine_ring import Ring

from sb3_compressed import load_checkpoint


def written_ring(folder: Path, n_checkpoints: int, n_steps: int) -> Ring:
    """Return a ring of which there are some checkpoints in a folder, the last of them with all of its steps."""
    ring, rng = Ring(200), np.random.default_rng(0)
    for number in range(n_checkpoints):
        ring.play(n_steps, rng)
        ring.save(folder, number)
    return ring


def test_imported_folder_contains_all_transitions(tmp_path: Path) -> None:
    ring = written_ring(tmp_path / "files", 3, 60)
    done = run("import", tmp_path / "files", tmp_path / "buffer", "--n-actions", 9, "--json")
    assert (done.returncode, done.stderr) == (0, ""), "no progress bar, no warnings"
    result, expected = json.loads(done.stdout), ring.transitions()
    assert (result["steps"], result["n_actions"], result["observation_shape"]) == (len(expected), 9, [4, *ring.shape])
    assert result["nbytes"] == sum(path.stat().st_size for path in (tmp_path / "buffer").rglob("*") if path.is_file())
    buffer = load_checkpoint(tmp_path / "buffer", device="cpu")
    np.testing.assert_array_equal(buffer.observations[: len(expected)][:, 0], [step[0] for step in expected])
    assert run("verify", tmp_path / "buffer").returncode == 0


def test_options_select_checkpoints_frames_and_transitions(tmp_path: Path) -> None:
    ring = written_ring(tmp_path / "files", 2, 30)
    options = ["--checkpoint", 1, "--frame-stack", 2, "--padding", 3, "--steps", 35, "--codec", "zstd3"]
    done = run("import", tmp_path / "files", tmp_path / "buffer", *options)
    assert done.stdout.startswith(f"{tmp_path / 'buffer'}: 35 transitions of ")
    buffer = load_checkpoint(tmp_path / "buffer", device="cpu")
    expected = ring.transitions(stack=2)[:35]
    np.testing.assert_array_equal(buffer.next_observations[:35][:, 0], [step[1] for step in expected])


def test_errors_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "contains no checkpoints of Dopamine" in error_of("import", tmp_path / "empty", tmp_path / "buffer")
    written_ring(tmp_path / "files", 1, 30)
    (tmp_path / "files" / "$store$_reward_ckpt.0.gz").write_bytes(b"damaged")
    message = error_of("import", tmp_path / "files", tmp_path / "buffer")
    assert "$store$_reward_ckpt.0.gz is damaged, or not a gzip-compressed .npy file" in message
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "files"}, "nothing is left of either"
    assert error_of("import", tmp_path / "none", tmp_path / "buffer") == f"{tmp_path / 'none'} does not exist"


def test_the_folder_has_its_name_only_when_all_was_imported(tmp_path: Path) -> None:
    ring = written_ring(tmp_path / "files", 2, 60)
    content = (tmp_path / "files" / "$store$_action_ckpt.1.gz").read_bytes()
    (tmp_path / "files" / "$store$_action_ckpt.1.gz").write_bytes(content[: len(content) // 2])
    error_of("import", tmp_path / "files", tmp_path / "buffer")
    assert {path.name for path in tmp_path.iterdir()} == {"files"}
    (tmp_path / "files" / "$store$_action_ckpt.1.gz").write_bytes(content)
    assert run("import", tmp_path / "files", tmp_path / "buffer", "--steps", 20).returncode == 0
    (tmp_path / "buffer").rename(tmp_path / "buffer.unfinished")  # as a kill leaves it
    assert run("import", tmp_path / "files", tmp_path / "buffer").returncode == 0
    assert load_checkpoint(tmp_path / "buffer", device="cpu").size() == len(ring.transitions())
    assert {path.name for path in tmp_path.iterdir()} == {"files", "buffer"}
    message = error_of("import", tmp_path / "files", tmp_path / "buffer")
    assert message == f"{tmp_path / 'buffer'} exists already; pass a new folder"
