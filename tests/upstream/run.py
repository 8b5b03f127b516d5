"""Run the tests of SB3 and sb3-contrib that use buffers against the compressed buffers.

    python tests/upstream/run.py                   # downloads the sources of the installed versions with pip
    python tests/upstream/run.py --sb3 ~/sb3       # or of a checkout; likewise --contrib
    python tests/upstream/run.py --only contrib -- -k dict -x

Arguments after ``--`` go to pytest. Nothing of these tests is kept: they run in a temporary copy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

TESTS = Path(__file__).parent.parent

#: The test files that make buffers, or train with them, by the distribution that has them.
FILES = {
    "stable-baselines3": [
        "test_buffers.py", "test_callbacks.py", "test_cnn.py", "test_deterministic.py", "test_dict_env.py",
        "test_gae.py", "test_her.py", "test_identity.py", "test_n_step_replay.py", "test_predict.py", "test_run.py",
        "test_save_load.py", "test_sde.py", "test_spaces.py", "test_train_eval_mode.py", "test_utils.py",
        "test_vec_normalize.py",
    ],
    "sb3-contrib": [
        "test_cnn.py", "test_deterministic.py", "test_dict_env.py", "test_identity.py", "test_invalid_actions.py",
        "test_lstm.py", "test_run.py", "test_save_load.py", "test_train_eval_mode.py", "test_utils.py",
    ],
}  # fmt: skip


def download(distribution: str, folder: Path) -> Path:
    """Download the sources of the installed version of a distribution, which contain its tests; return their folder."""
    wanted = f"{distribution}=={metadata.version(distribution)}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--no-binary", ":all:", "--dest", str(folder), wanted], check=True)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(folder, filter="data")
    [checkout] = [path for path in folder.iterdir() if path.is_dir()]
    return checkout


def run(distribution: str, checkout: Path, *arguments: str) -> int:
    """Run the test files of a distribution in a temporary copy, in which they may write; return pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder, "tests")
        shutil.copytree(checkout / "tests", copied)
        files = [name for name in FILES[distribution] if (copied / name).exists()]  # older versions have fewer
        path = [str(TESTS.parent), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "pytest", "-p", "upstream.plugin", "-p", "no:cacheprovider"]
        return subprocess.run(
            [*command, "-c", os.devnull, "--rootdir", ".", "-q", *files, *arguments],
            cwd=copied,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            check=False,
        ).returncode


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sb3", type=Path, help="a checkout of SB3, of the installed version")
    parser.add_argument("--contrib", type=Path, help="a checkout of sb3-contrib, of the installed version")
    parser.add_argument("--only", choices=["sb3", "contrib"], help="run the tests of one of them")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args()
    checkouts = {"stable-baselines3": options.sb3, "sb3-contrib": options.contrib}
    if options.only is not None:
        kept = "stable-baselines3" if options.only == "sb3" else "sb3-contrib"
        checkouts = {kept: checkouts[kept]}
    codes = []
    for distribution, checkout in checkouts.items():
        with tempfile.TemporaryDirectory() as folder:
            codes.append(run(distribution, checkout or download(distribution, Path(folder)), *options.pytest))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
