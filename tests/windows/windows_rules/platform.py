"""Rules about the platform: what ``sys``, ``os`` and ``signal`` contain for code that is in no library."""

from __future__ import annotations

import builtins
import os
import signal
import sys
import types
from typing import Any

from windows_rules.open_files import msvcrt
from windows_rules.state import is_library, real, rules

__all__ = ["install"]

POSIX_MODULES = {
    "fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "syslog", "crypt", "nis", "spwd", "readline",
    "curses", "_posixsubprocess", "_curses",
}  # fmt: skip
MISSING_IN_OS = """
    fork forkpty register_at_fork sched_getaffinity sched_setaffinity sched_yield sched_getscheduler pread pwrite
    preadv pwritev readv writev mkfifo mknod uname getuid geteuid getgid getegid getgroups setuid setgid seteuid
    setegid getpgid getpgrp getsid setsid setpgid killpg statvfs fstatvfs pathconf fpathconf confstr posix_fallocate
    posix_fadvise posix_spawn posix_spawnp sendfile copy_file_range splice memfd_create eventfd wait3 wait4 waitid
    nice getpriority setpriority getloadavg fchdir fchmod fchown lchown chown chroot ttyname openpty tcgetpgrp
    tcsetpgrp lockf sync fdatasync sysconf getrandom makedev major minor wait WNOHANG getxattr setxattr listxattr
    removexattr pipe2 get_blocking set_blocking O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_NOCTTY O_SYNC O_DSYNC
    O_RSYNC O_DIRECT O_PATH O_NOATIME O_TMPFILE O_ASYNC O_NDELAY O_LARGEFILE
""".split()  # noqa: SIM905  # a list would be four times as long
MISSING_IN_SIGNAL = """
    SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGSTOP SIGCONT SIGCHLD SIGCLD SIGPIPE SIGQUIT SIGTSTP SIGTTIN SIGTTOU
    SIGBUS SIGXCPU SIGXFSZ SIGVTALRM SIGPROF SIGWINCH SIGIO SIGPOLL SIGPWR SIGSYS SIGTRAP SIGURG setitimer getitimer
    alarm pause pthread_kill pthread_sigmask sigwait sigpending sigtimedwait sigwaitinfo siginterrupt ITIMER_REAL
    ITIMER_VIRTUAL ITIMER_PROF
""".split()  # noqa: SIM905  # a list would be four times as long


class OnWindows(types.ModuleType):
    """A module as it is on Windows: some attributes differ, all others are those of the module.

    :param module: the module
    :param different: the attributes that differ
    """

    def __init__(self, module: types.ModuleType, **different: object) -> None:
        super().__init__(module.__name__)
        object.__setattr__(self, "_module", module)
        object.__setattr__(self, "_different", different)

    def __getattribute__(self, name: str) -> Any:
        different, module = (object.__getattribute__(self, each) for each in ("_different", "_module"))
        if name in different:
            return different[name]
        if name in module.__dict__:
            return module.__dict__[name]
        if name == "__class__":
            return type(module)
        raise _missing(module, name)

    def __setattr__(self, name: str, value: object) -> None:
        different, module = (object.__getattribute__(self, each) for each in ("_different", "_module"))
        if name in different:
            different[name] = value
        else:
            setattr(module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(object.__getattribute__(self, "_module"), name)

    def __dir__(self) -> list[str]:
        return dir(object.__getattribute__(self, "_module"))


def _missing(module: types.ModuleType, name: str) -> AttributeError:
    return AttributeError(f"module {module.__name__!r} has no attribute {name!r} [rule of Windows: missing]", name=name)


ON_WINDOWS = {"sys": OnWindows(sys, platform="win32"), "os": OnWindows(os, name="nt", linesep="\r\n")}


def _import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    root = name.partition(".")[0]
    is_other = root in POSIX_MODULES or root in ON_WINDOWS or root == "msvcrt"
    if is_other and level == 0 and globals is not None and not is_library(globals.get("__file__") or "<string>"):
        if root in ON_WINDOWS and (name == root or not fromlist):
            return ON_WINDOWS[root]
        if root == "msvcrt":
            return msvcrt
        if root in POSIX_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r} [rule of Windows: platform]", name=name)
    return real["import"](name, globals, locals, fromlist, level)


def _hide(module: Any, names: list[str]) -> None:
    """Remove names from a module, but not for libraries, which expect them on Linux."""
    hidden = {name: module.__dict__.pop(name) for name in names if hasattr(module, name)}

    def find(name: str) -> object:
        if name in hidden and is_library(sys._getframe(1).f_code.co_filename):
            return hidden[name]
        raise _missing(module, name)

    module.__getattr__ = find


def install() -> None:
    """Replace the import of modules, and hide what they lack on Windows."""
    if "platform" in rules:
        real["import"] = builtins.__import__
        builtins.__import__ = _import
    if "missing" in rules:
        _hide(os, MISSING_IN_OS)
        _hide(signal, MISSING_IN_SIGNAL)
