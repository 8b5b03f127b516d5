"""Every script in examples/ runs in its own process, with arguments that make it short."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
from programs import run_python
from terminal_output import read_terminal, words

EXAMPLES = Path(__file__).parents[2] / "examples"
#: See test_distributed_examples.py.
DISTRIBUTED = {"apex_dqn.py", "collect_dataset.py"}
SCRIPTS = sorted(
    path.name
    for path in EXAMPLES.glob("*.py")
    if "__main__" in path.read_text(encoding="utf-8") and path.name not in DISTRIBUTED
)

# Arguments of short runs of each script.
SHORT: dict[str, list[str]] = {
    "dqn_atari.py": ["--steps 400 --n-envs 2 --buffer-size 300", "--steps 250 --n-envs 1 --plain"],
    "demo.py": [],  # see test_demo.py
    "demo_kernels.py": [],  # and of these
    "demo_training.py": [],
    "her_goal.py": ["--steps 200 --n-bits 4"],
    "ppo_atari_subproc.py": ["--steps 256 --n-steps 128 --n-envs 2 --start-method spawn"],
    "resume_dqn.py": [],  # see test_a_killed_training_is_resumed
    "million.py": ["--size 600 --n-envs 2"],
    "offline.py": ["--experience 400 --epochs 20 --episodes 4 --folder {folder}"],
    "plain_loop.py": [],  # see test_a_loop_without_sb3_ends_with_the_weights_of_its_buffer
    "sequences.py": ["--steps 400 --updates 3 --length 6 --burn-in 3 --n-units 8 --batch-size 4 --n-envs 2"],
    "prioritized_dqn.py": ["--steps 400 --n-envs 2 --buffer-size 300"],
    "rainbow_lite.py": ["--steps 1200 --n-envs 2 --buffer-size 300 --n-quantiles 10"],
    "sac_pixels.py": ["--steps 60 --buffer-size 50 --size 36 --n-envs 2"],
    "recurrent_ppo_atari.py": ["--steps 256 --n-steps 128 --n-envs 2 --lstm-size 8"],
}
RUNS = [(script, options) for script in SCRIPTS for options in SHORT.get(script, ["missing"])]

# The output after the table of memory, by default the results of the last episodes.
SUMMARY = {
    "million.py": r"100 batches of 32 in [\d.]+ ms\.$",
    "sequences.py": r"3 updates with 4 sequences of 3 \+ 6 observations: [\d.]+ ms .* at last\.$",
    "offline.py": r"catch\S+: \d+ episodes, 400 steps\. .* Before: return .* After: return ",
}

TIMEOUT_S = 120  # a multiple of any run, to end one that hangs


def run(script: str, options: str) -> subprocess.CompletedProcess[str]:
    return run_python([EXAMPLES / script, *options.split()], os.environ, timeout=TIMEOUT_S)


def assert_summary(result: subprocess.CompletedProcess[str], summary: str = r"Episodes: .+\.$") -> None:
    """Assert that a run succeeded and printed the table of memory and a summary."""
    assert result.returncode == 0, result.stdout + result.stderr
    for line in (
        r"transitions stored [\d,]+ ",
        r"memory, counted by the buffer [\d,]+\.\d MB",
        r"memory in SB3's buffer [\d,]+\.\d MB",
        r"reduction [\d,]+\.\dx",
        summary,
    ):
        assert re.search(line, words(result.stdout)), f"{line!r} is not in:\n{result.stdout}"
    assert "Warning" not in result.stderr, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("script", "options"), RUNS)
def test_an_example_runs_and_prints_its_summary(script: str, options: str, tmp_path: Path) -> None:
    if script == "offline.py":
        pytest.importorskip("minari", reason="a Minari that stores images without loss needs Python 3.11")
    assert script in SHORT, f"add arguments for a short run of {script} to SHORT in {Path(__file__).name}"
    folder = os.path.relpath(tmp_path / "new" / "data")
    result = run(script, options.format(folder=folder))
    assert_summary(result, *filter(None, [SUMMARY.get(script)]))


@pytest.mark.slow
def test_the_offline_example_needs_a_new_folder(tmp_path: Path) -> None:
    (tmp_path / "other.txt").touch()
    result = run("offline.py", f"--experience 400 --epochs 1 --episodes 4 --folder {tmp_path}")
    assert result.returncode == 2
    assert "is not empty; pass a new folder" in words(result.stderr)


@pytest.mark.slow
def test_a_killed_training_is_resumed(tmp_path: Path) -> None:
    options = f"--steps 900 --n-envs 2 --save-freq 100 --folder {tmp_path}"
    crashed = run("resume_dqn.py", f"{options} --crash-at 650")
    assert crashed.returncode == 1, crashed.stderr
    assert "Traceback" not in crashed.stderr
    result = run("resume_dqn.py", options)
    assert_summary(result)
    resumed = re.search(r"Resuming from \S+ (\d+) steps", words(result.stdout).replace(":", "").replace(",", ""))
    assert resumed is not None, result.stdout
    assert 500 < int(resumed[1]) < 650
    assert len(list(tmp_path.glob("step_*"))) == 2


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(gym.vector, "AutoresetMode"), reason="this version of Gymnasium has no autoreset modes")
def test_a_loop_without_sb3_ends_with_the_weights_of_its_buffer() -> None:
    options = "--game Breakout --steps 600 --n-envs 2 --buffer-size 300"  # random play loses its first lives
    outputs = [run("plain_loop.py", options + more) for more in ("", " --uncompressed")]
    assert [output.returncode for output in outputs] == [0, 0], outputs
    digests = [re.findall(r"weights: (\w{16})", output.stdout) for output in outputs]
    assert len(digests[0]) == 1
    assert digests[0] == digests[1]
    assert re.search(r"\d bytes per transition instead of 56,\d+, with 300 transitions", outputs[0].stdout)


def test_short_lists_only_existing_scripts() -> None:
    assert set(SHORT) <= set(SCRIPTS)


def test_an_unknown_codec_is_explained() -> None:
    result = run("dqn_atari.py", "--method zip")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    for hint in ("unknown codec 'zip'", "zstd", "lz4-block", "auto"):
        assert hint in words(result.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal to see progress")
@pytest.mark.slow
def test_ctrl_c_ends_the_training_with_the_summary() -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, str(EXAMPLES / "dqn_atari.py"), "--steps", "10_000_000"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        printed, sent = "", False
        try:
            for text in read_terminal(ours):
                printed += text
                if not sent and re.search(r"\d it/s", printed):  # "? it/s" before the first steps
                    process.send_signal(signal.SIGINT)
                    sent = True
            assert process.wait(TIMEOUT_S) == 0, printed
        finally:
            process.kill()
            os.close(ours)
    assert "Ctrl-C: stopped after" in words(printed)
    assert "transitions stored" in words(printed)
    assert "Traceback" not in printed
