"""The package as a stranger meets it: what importing it does, what it exports, what is missing without extras."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from importlib import metadata
from pathlib import Path

import grimp
import pytest
from programs import fresh_outcome, outcome

import sb3_compressed
import sb3_compressed.contrib

PACKAGE = Path(sb3_compressed.__file__).parent


def test_import_is_silent_and_imports_nothing_heavy_or_optional() -> None:
    """Neither do samplers, nor arrays and codecs, which work without torch."""
    done = fresh_outcome(
        """
import sys, sb3_compressed, sb3_compressed.samplers as samplers
heavy = {"torch", "stable_baselines3", "gymnasium", "numba", "sb3_contrib", "ale_py", "cv2", "lz4", "zstandard", "isal"}
assert not heavy & {*sys.modules}
bound = [samplers.get_sampler(name) for name in samplers.available_samplers() if name != "uniform"]
assert not heavy & {*sys.modules}
for sampler in bound:
    sampler.bind(3, 2)
assert not {"torch", "stable_baselines3", "gymnasium"} & {*sys.modules}
sys.modules["torch"] = None  # as if it were not installed
import numpy as np
array = sb3_compressed.CompressedArray((3, 2, 8), np.uint8, "rle-jit")
array[1] = 7
assert array[1].sum() == 112
""",
        PYTHONWARNINGS="error",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_using_every_name_imports_nothing_optional() -> None:
    """A buffer that does not compress does not import numba, which takes more memory than many small buffers."""
    done = fresh_outcome("""
import sys, stable_baselines3.common.buffers  # which imports some of them where it finds them
import numpy as np
from gymnasium import spaces
already = set(sys.modules)
import sb3_compressed.buffers, sb3_compressed.callbacks, sb3_compressed.datasets
assert sb3_compressed.buffers.replay.CompressedReplayBuffer is sb3_compressed.buffers.CompressedReplayBuffer
sb3_compressed.buffers.CompressedReplayBuffer(8, spaces.Box(-1, 1, (17,), np.float32), spaces.Discrete(2), "cpu")
assert "numba" not in sys.modules
for name in sb3_compressed.__all__:
    getattr(sb3_compressed, name)
assert not {"sb3_contrib", "ale_py", "typer", "cv2", "rich", "tqdm"} & (set(sys.modules) - already)
print(sb3_compressed.callbacks.stats_callback.__name__, sb3_compressed.datasets.minari.__name__)
""")
    expected = "sb3_compressed.callbacks.stats_callback sb3_compressed.datasets.minari\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_no_imports_form_a_circle() -> None:
    """Neither do those for annotations and within functions, nor those of packages, which import-linter leaves out."""
    graph = grimp.build_graph("sb3_compressed", cache_dir=None)
    for name in ("buffer_from_store", "extend", "sequences"):  # which name the class in annotations alone
        graph.remove_import(importer=f"sb3_compressed.buffers.{name}", imported="sb3_compressed.buffers.replay")
    assert "sb3_compressed.buffers" in graph.find_modules_directly_imported_by("sb3_compressed")
    TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules}).prepare()


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("contrib", "sb3_contrib", "contrib"),
        ("contrib", "stable_baselines3", None),
        ("distributed", "ray", "ray"),
        ("distributed.writer", "ray", "ray"),
    ],
)
def test_modules_of_extras_say_what_to_install(module: str, missing: str, extra: str | None) -> None:
    done = outcome(f"""
import sys
for name in [*sys.modules]:
    if name.startswith(("sb3_compressed", "{missing}")):
        del sys.modules[name]
sys.modules["{missing}"] = None
import sb3_compressed.{module}
""")
    assert done.returncode != 0
    assert missing in done.stderr
    assert ((f"pip install '.[{extra}]'" if extra else "pip install") in done.stderr) == bool(extra)


@pytest.mark.parametrize("module", [sb3_compressed, sb3_compressed.contrib])
def test_every_exported_name_exists_and_is_documented(module: object) -> None:
    for name in module.__all__:  # type: ignore[attr-defined]
        assert getattr(module, name).__doc__, name
    assert set(module.__all__) <= set(dir(module))  # type: ignore[attr-defined]


def test_every_module_says_in_its_first_line_what_it_is_for() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        sentence, _, rest = docstring.partition("\n")
        assert sentence.endswith("."), path
        assert len(sentence) <= 120, path
        assert rest.startswith("\n") or not rest, path


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'CompressedBufer'"):
        sb3_compressed.CompressedBufer  # noqa: B018


def test_version_is_that_of_the_installed_package() -> None:
    assert metadata.version("sb3-compressed") == sb3_compressed.__version__


def test_warnings_at_the_end_of_a_program_are_printed() -> None:
    done = outcome("""
import atexit
from sb3_compressed.common.warning import warn_user
atexit.register(warn_user, "too late")  # there is no caller outside of the package
""")
    assert (done.returncode, done.stdout) == (0, "")
    assert "UserWarning: too late" in done.stderr
