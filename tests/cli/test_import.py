"""``sb3-compressed import`` reads Dopamine's checkpoints into a folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from commands import error_of, run
from dopamine_ring import Ring

from sb3_compressed import load_checkpoint


def test_imported_folder_contains_all_transitions(tmp_path: Path) -> None:
    ring, rng = Ring(200), np.random.default_rng(0)
    for number in range(3):
        ring.play(60, rng)
        ring.save(tmp_path / "files", number)
    done = run("import", tmp_path / "files", tmp_path / "buffer", "--n-actions", 9, "--json")
    assert (done.returncode, done.stderr) == (0, ""), "no progress bar, no warnings"
    result, expected = json.loads(done.stdout), ring.transitions()
    assert (result["steps"], result["n_actions"], result["observation_shape"]) == (len(expected), 9, [4, *ring.shape])
    assert result["nbytes"] == sum(path.stat().st_size for path in (tmp_path / "buffer").rglob("*") if path.is_file())
    buffer = load_checkpoint(tmp_path / "buffer", device="cpu")
    np.testing.assert_array_equal(buffer.observations[: len(expected)][:, 0], [step[0] for step in expected])
    assert run("verify", tmp_path / "buffer").returncode == 0


def test_options_select_checkpoints_frames_and_transitions(tmp_path: Path) -> None:
    ring, rng = Ring(200), np.random.default_rng(0)
    for number in range(2):
        ring.play(30, rng)
        ring.save(tmp_path / "files", number)
    options = ["--checkpoint", 1, "--frame-stack", 2, "--padding", 3, "--steps", 35, "--codec", "zstd3"]
    done = run("import", tmp_path / "files", tmp_path / "buffer", *options)
    assert done.stdout.startswith(f"{tmp_path / 'buffer'}: 35 transitions of ")
    buffer = load_checkpoint(tmp_path / "buffer", device="cpu")
    expected = ring.transitions(stack=2)[:35]
    np.testing.assert_array_equal(buffer.next_observations[:35][:, 0], [step[1] for step in expected])


def test_errors_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "contains no checkpoints of Dopamine" in error_of("import", tmp_path / "empty", tmp_path / "buffer")
    ring = Ring(200)
    ring.play(30, np.random.default_rng(0))
    ring.save(tmp_path / "files", 0)
    (tmp_path / "files" / "$store$_reward_ckpt.0.gz").write_bytes(b"damaged")
    message = error_of("import", tmp_path / "files", tmp_path / "buffer")
    assert "$store$_reward_ckpt.0.gz is damaged, or not a gzip-compressed .npy file" in message
    assert not (tmp_path / "buffer").exists()
