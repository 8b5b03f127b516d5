"""Windows' rules for files, locks and processes, for CPython on Linux: what would fail on Windows fails here.

Python programs follow them with this folder's parent on ``PYTHONPATH``, whose ``sitecustomize.py`` installs them, and
``WINDOWS_RULES=all``; so do the Python programs that they start. ``WINDOWS_RULES`` selects some of :data:`RULES`:
``deleting,locks``, or ``all,-locks``. What a rule raises ends with ``[rule of Windows: <its name>]``. Most rules apply
to every program, those about the platform and texts only to code that is neither of the standard library nor installed:
libraries run as on Linux.
"""

from __future__ import annotations

import os
import sys

__all__ = ["RULES", "install", "is_supported"]

#: What each rule is about; ``tests/windows/under_rules/test_rules.py`` shows that each fails what it should, and only
#: that.
RULES = {
    "platform": 'sys.platform is "win32", os.name "nt", os.linesep CRLF; no fcntl, resource, ..., but msvcrt',
    "missing": "os and signal lack what Windows' have not; os.kill ends the process",
    "spawn": "multiprocessing has only the start method spawn",
    "folders": "folders cannot be opened",
    "deleting": "a file that any process has open or mapped is not deleted or replaced, by none of its hard links, and "
    "neither is the current folder of a process",
    "moving": "such a file is not renamed",
    "renaming": "a folder in which a file is open, by that path, is not renamed",
    "existing": "os.rename replaces nothing, os.replace no folder, os.unlink deletes no folder",
    "names": "names have no reserved characters, and are not those of devices",
    "truncate": "a file does not become shorter than what is mapped of it",
    "fsync": "os.fsync needs a file that is open for writing",
    "locks": "bytes that are locked with msvcrt.locking cannot be read or written through another handle",
    "text": "texts, and standard streams that are pipes, have cp1252 and CRLF; the package names an encoding",
    "readonly": "files without permission to write are not deleted or opened for writing; folders have no permissions",
    "symlinks": "os.symlink needs a privilege that users usually lack",
    "long": "np.random.randint, permutation and choice draw int32, the C type long of Windows",
}


def is_supported() -> bool:
    """Return whether the rules can be installed: on Linux with ``/proc``, and from Python 3.11 on.

    In Python 3.10, ``pathlib`` keeps functions of ``os`` of its own.
    """
    return sys.platform == "linux" and sys.version_info >= (3, 11) and os.path.isdir("/proc/self/fd")


def install(selection: str) -> None:
    """Install the rules in this process.

    :param selection: the value of ``WINDOWS_RULES``
    :raises ValueError: if there is no such rule
    """
    from windows_rules import integers, open_files, opening, paths, platform, processes
    from windows_rules.state import rules, share

    parts = {part.strip() for part in selection.split(",")} - {""}
    excluded = {part[1:] for part in parts if part.startswith("-")}
    chosen = parts - {f"-{each}" for each in excluded}
    if unknown := (chosen | excluded) - {"all", *RULES}:
        raise ValueError(f"there is no rule {unknown}; choose all or some of {', '.join(RULES)}")
    rules.update((set(RULES) if "all" in chosen or not chosen else chosen) - excluded)
    share()
    for module in (paths, opening, open_files, processes, integers, platform):  # the last one hides names
        module.install()
