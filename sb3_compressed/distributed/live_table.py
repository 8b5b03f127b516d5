"""``LiveTable``: a table of shards, collectors and rates in the terminal, updated while it runs."""

from __future__ import annotations

import atexit
import math
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Literal, TypeVar

from sb3_compressed.errors import install_command

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

__all__ = ["CollectorRow", "LiveTable", "ShardRow", "Totals"]

#: What a value is that is not known.
UNKNOWN = "-"
MAX_NAME_LENGTH = 20
#: Lines of the terminal that rows leave to headers, totals and SB3's progress bar.
RESERVED_LINES = 17

Row = TypeVar("Row")
#: A column of a table: its name, the cell of a row, and the total.
Column = tuple[str, Callable[[Row], str], str]


@dataclass(frozen=True)
class ShardRow:
    """What the table shows of a shard.

    :param name: its name
    :param n_transitions: transitions that it holds
    :param n_bytes: its memory in bytes, ``None`` if unknown
    :param insert_rate: transitions inserted per second
    :param sample_rate: transitions sampled per second
    :param n_restarts: how often it was restarted
    """

    name: str
    n_transitions: int
    n_bytes: int | None = None
    insert_rate: float = 0.0
    sample_rate: float = 0.0
    n_restarts: int = 0


@dataclass(frozen=True)
class CollectorRow:
    """What the table shows of a collector.

    :param name: its name
    :param step_rate: steps of its environments per second
    :param n_episodes: episodes that have ended
    :param mean_return: mean return of recent episodes, ``None`` without any
    :param policy_age: how many versions its policy is behind that of the learner, ``None`` if unknown
    :param epsilon: probability of random actions, the mean over its environments; ``None`` without
    :param n_restarts: how often it was restarted
    """

    name: str
    step_rate: float = 0.0
    n_episodes: int = 0
    mean_return: float | None = None
    policy_age: int | None = None
    epsilon: float | None = None
    n_restarts: int = 0


@dataclass(frozen=True)
class Totals:
    """What the table shows besides sums of its rows.

    :param num_timesteps: steps of all environments in this training
    :param samples_per_insert: how many times a transition was sampled on average, ``None`` if unknown
    :param mean_return: mean return of recent episodes of all collectors, ``None`` without any
    :param waiting: who waits for the other, if anyone: the rate limiter delays it
    :param n_lost: transitions lost with processes
    """

    num_timesteps: int
    samples_per_insert: float | None = None
    mean_return: float | None = None
    waiting: Literal["learner", "collectors"] | None = None
    n_lost: int = 0


class LiveTable:
    """Shows shards, collectors and totals: a table on a terminal or in a notebook, otherwise one line now and then.

    It has the console of SB3's progress bar, which is Rich's global one. Rich 14.1 and newer show several live displays
    of a console below each other, and expect that the one that started last stops first. So the table starts with its
    first update: after the progress bar, which starts with the training. With older versions of Rich, and in notebooks
    without ipywidgets, which Rich needs there, lines are printed. SB3 prints its log above the table if tqdm is
    installed, as with its progress bar.

    Close it, or use it as a context manager, so that an exception or Ctrl-C leaves the table as it was last, and the
    cursor and the standard streams as they were before. That also happens when it is garbage collected, or at exit.
    Where a table was shown, SB3's progress bar is stopped at exit, too: SB3 does not close it after exceptions.

    :param interval: seconds between updates of the table; updates in between are not shown
    :param line_interval: seconds between lines where there is no table
    :param console: where it is shown
    :raises ModuleNotFoundError: without Rich, which is in the extra ``sb3-compressed[ray]``
    :raises ValueError: if an interval is negative
    """

    def __init__(self, *, interval: float = 1.0, line_interval: float = 30.0, console: Console | None = None) -> None:
        for name, seconds in (("interval", interval), ("line_interval", line_interval)):
            if not seconds >= 0:
                raise ValueError(f"{name} must be at least 0 seconds, got {seconds!r}")
        try:
            from rich import get_console
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"LiveTable needs rich: {install_command('ray')}", name=error.name) from error
        self._console = get_console() if console is None else console
        self._live: Live | None = None
        self._stop: Callable[[], object] | None = None  # ends the live display, at most once
        self._intervals = interval, line_interval
        self._next_time = -math.inf  # of time.monotonic()
        self._rows: tuple[Sequence[ShardRow], Sequence[CollectorRow], Totals] | None = None  # that are not shown yet
        self._is_started = self._is_closed = False

    @property
    def is_due(self) -> bool:
        """Whether the next update is shown at once; until then, statistics need not be gathered."""
        return not self._is_closed and time.monotonic() >= self._next_time

    def update(self, shards: Sequence[ShardRow], collectors: Sequence[CollectorRow], totals: Totals) -> None:
        """Show new values, if it is due; otherwise they are shown at the end, unless others follow.

        Updates of a closed table are ignored.
        """
        if self._is_closed:
            return
        self._rows = tuple(shards), tuple(collectors), totals
        if not self.is_due:
            return
        with _deferred_interrupts():
            if not self._is_started:
                self._is_started = True
                self._start()
            self._show()
        self._next_time = time.monotonic() + self._intervals[0 if self._live is not None else 1]

    def close(self) -> None:
        """Show the last values and end the display. Later calls do nothing."""
        if self._is_closed:
            return
        with _deferred_interrupts():
            self._is_closed = True
            try:
                if self._rows is not None and self._is_started:
                    self._show()
            finally:
                if self._stop is not None:
                    self._stop()

    def __enter__(self) -> LiveTable:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self) -> None:
        """Start a live display, if one can be shown."""
        from rich.errors import LiveError
        from rich.live import Live

        if not _can_show_tables(self._console):
            return
        live = Live(console=self._console, auto_refresh=False, transient=True)
        self._stop = weakref.finalize(self, _stop, live)  # before it starts, so that it is stopped in any case
        try:
            live.start()
        except LiveError:  # Rich is older than 14.1, and there is another display
            self._stop.detach()
            self._stop = None
        else:
            self._live = live
            _stop_displays_at_exit(self._console)

    def _show(self) -> None:
        from rich.text import Text

        assert self._rows is not None
        shards, collectors, totals = self._rows
        self._rows = None
        console = self._console
        if self._live is not None:
            self._live.update(_tables(console, shards, collectors, totals), refresh=True)
        elif console.is_jupyter:
            print(_line(shards, collectors, totals), flush=True)
        else:
            console.print(Text(_line(shards, collectors, totals)), soft_wrap=True)


def _stop(live: Live) -> None:
    """Stop a live display and print what it showed.

    Rich would print that in between if there is another display. The thread of that one might draw it at the same time,
    and both would erase the lines of both displays, and with them what was printed before, such as a traceback.
    """
    live.stop()
    if not live.console.is_jupyter:
        live.refresh()  # of another display: it takes its lock, and draws its own lines only
    if shown := live.get_renderable():
        live.console.print(shown)


@contextmanager
def _deferred_interrupts() -> Iterator[None]:
    """Handle Ctrl-C after the block: one within Rich's code would leave a display that cannot be stopped."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[-1])


@cache
def _stop_displays_at_exit(console: Console) -> None:
    """Stop all live displays of a console at exit.

    After an exception, SB3 leaves its progress bar as it is, with a hidden cursor. The interpreter freezes the thread
    that draws it, perhaps within a lock. Whoever prints afterwards waits for it forever, and the more there is to draw,
    such as this table, the likelier that is.
    """
    atexit.register(_stop_displays, console)


def _stop_displays(console: Console) -> None:
    displays: list[Live] = getattr(console, "_live_stack", [])  # since Rich 14.1, which has no public name for it
    for display in reversed(list(displays)):
        display.stop()


def _can_show_tables(console: Console) -> bool:
    if console.is_jupyter:
        return find_spec("ipywidgets") is not None
    return console.is_terminal and console.is_interactive  # the latter is not so for TERM=dumb


def _tables(
    console: Console, shards: Sequence[ShardRow], collectors: Sequence[CollectorRow], totals: Totals
) -> RenderableType:
    """Return tables with as many rows as fit the terminal, or a paragraph if it is too small for them."""
    from rich.console import Group
    from rich.measure import Measurement
    from rich.text import Text

    n_rows = console.size.height - RESERVED_LINES
    if n_rows < 2:
        return Text(_line(shards, collectors, totals))
    n_shards = min(len(shards), max(1, n_rows - len(collectors), n_rows // 3))
    shard_columns: list[Column[ShardRow]] = [
        ("transitions", lambda row: _whole(row.n_transitions), _whole(sum(row.n_transitions for row in shards))),
        ("memory", lambda row: _bytes(row.n_bytes), _bytes(_total_bytes(shards))),
        ("inserts/s", lambda row: _decimal(row.insert_rate), _decimal(sum(row.insert_rate for row in shards))),
        ("samples/s", lambda row: _decimal(row.sample_rate), _decimal(sum(row.sample_rate for row in shards))),
        ("restarts", lambda row: _whole(row.n_restarts), _whole(sum(row.n_restarts for row in shards))),
    ]
    collector_columns: list[Column[CollectorRow]] = [
        ("steps/s", lambda row: _decimal(row.step_rate), _decimal(sum(row.step_rate for row in collectors))),
        ("episodes", lambda row: _whole(row.n_episodes), _whole(sum(row.n_episodes for row in collectors))),
        ("mean return", lambda row: _decimal(row.mean_return), _decimal(totals.mean_return)),
        ("policy age", lambda row: _whole(row.policy_age), ""),
        ("epsilon", lambda row: _significant(row.epsilon), ""),
        ("restarts", lambda row: _whole(row.n_restarts), _whole(sum(row.n_restarts for row in collectors))),
    ]
    tables = (
        _table("shard", _names(console, shards), shards, n_shards, shard_columns),
        _table("collector", _names(console, collectors), collectors, max(1, n_rows - n_shards), collector_columns),
    )
    unlimited = console.options.update(width=1000)  # measurements are limited to the width
    if any(Measurement.get(console, unlimited, table).maximum > console.width for table in tables):
        return Text(_line(shards, collectors, totals))
    summary = f"{_whole(totals.num_timesteps)} steps, {_decimal(totals.samples_per_insert)} samples per insert"
    return Group(tables[0], Text(), tables[1], Text(), Text(summary + _incidents(totals)))


def _table(kind: str, names: Sequence[str], rows: Sequence[Row], n_shown: int, columns: Sequence[Column[Row]]) -> Table:
    """Return a table of the first rows."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, show_footer=True, footer_style="bold")
    table.add_column(kind, footer=f"total of {len(rows)}", no_wrap=True)
    for name, _, total in columns:
        table.add_column(name.replace(" ", "\n"), footer=total, justify="right", no_wrap=True)
    for name, row in zip(names[:n_shown], rows):
        table.add_row(Text(name), *(Text(cell(row)) for _, cell, _ in columns))
    if len(rows) > n_shown:
        table.add_row(f"... {len(rows) - n_shown} more")
    return table


def _names(console: Console, rows: Sequence[ShardRow] | Sequence[CollectorRow]) -> list[str]:
    """Return names of limited length, without what the terminal cannot show or what moves its cursor."""
    names = []
    for row in rows:
        name = row.name.encode(console.encoding, "replace").decode(console.encoding)
        name = "".join(character if character.isprintable() else "?" for character in name)
        names.append(name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 3]}...")
    return names


def _line(shards: Sequence[ShardRow], collectors: Sequence[CollectorRow], totals: Totals) -> str:
    """Return everything in one line."""
    n_restarts = sum(shard.n_restarts for shard in shards) + sum(collector.n_restarts for collector in collectors)
    n_transitions = sum(row.n_transitions for row in shards)
    return (
        f"{_whole(totals.num_timesteps)} steps; collectors: {len(collectors)}, "
        f"{_decimal(sum(row.step_rate for row in collectors))} steps/s, "
        f"{_whole(sum(row.n_episodes for row in collectors))} episodes, mean return {_decimal(totals.mean_return)}; "
        f"shards: {len(shards)}, {_whole(n_transitions)} transitions in {_bytes(_total_bytes(shards))}, "
        f"{_decimal(sum(row.insert_rate for row in shards))} inserts/s, "
        f"{_decimal(sum(row.sample_rate for row in shards))} samples/s; "
        f"{_decimal(totals.samples_per_insert)} samples per insert, {n_restarts} restarts{_incidents(totals)}"
    )


def _incidents(totals: Totals) -> str:
    lost = f", {_whole(totals.n_lost)} transitions lost" if totals.n_lost else ""
    verb = "waits" if totals.waiting == "learner" else "wait"
    return lost + (f", {totals.waiting} {verb}" if totals.waiting else "")


def _total_bytes(shards: Sequence[ShardRow]) -> int | None:
    known = [row.n_bytes for row in shards if row.n_bytes is not None]
    return sum(known) if len(known) == len(shards) else None


def _whole(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def _decimal(number: float | None) -> str:
    if number is None or math.isnan(number):
        return UNKNOWN
    return f"{number:,.1f}" if abs(number) < 99.95 else f"{number:,.0f}"


def _significant(number: float | None) -> str:
    return UNKNOWN if number is None or math.isnan(number) else f"{number:.2g}"


def _bytes(number: int | None) -> str:
    if number is None:
        return UNKNOWN
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{number} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB" if value < 999.5 else f"{value:,.0f} TB"
