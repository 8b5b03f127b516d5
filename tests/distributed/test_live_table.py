"""The table fits terminals, leaves them as they were, and is readable elsewhere."""

from __future__ import annotations

import gc
import math
import re
import signal
import sys
import threading
from importlib.metadata import version
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

import pyte
import pytest
from programs import Process, fresh_outcome
from rich.console import Console
from rich.live import Live

from sb3_compressed.distributed.live_table import CollectorRow, LiveTable, ShardRow, Totals

pytest.importorskip("pty", reason="pseudo-terminals are needed to see tables, which Windows does not have")
from pseudo_terminal import Outcome, run_in_terminal  # imports pty

needs_several_displays = pytest.mark.skipif(
    tuple(map(int, version("rich").split(".")[:2])) < (14, 1), reason="Rich shows several live displays since 14.1"
)
PROGRESS_BAR = [False, pytest.param(True, marks=needs_several_displays)]

SHARDS = [ShardRow(f"shard-{i}", 1_000_000_000, 45 * 1000**i, 123456.7, 99999.1, 3) for i in range(4)]
COLLECTORS = [
    CollectorRow(f"collector-{i}", 12345.6, 1_000_000, -12345.6 if i else None, 100, 0.4 ** (1 + i), 12)
    for i in range(30)
]
TOTALS = Totals(10**9, 7.98, 12.34, "collectors", 1234)
LINE = (
    "1,000,000,000 steps; collectors: 30, 370,368 steps/s, 30,000,000 episodes, mean return 12.3; shards: 4, "
    "4,000,000,000 transitions in 45 GB, 493,827 inserts/s, 399,996 samples/s; 8.0 samples per insert, 372 restarts, "
    "1,234 transitions lost, collectors wait"
)
#: Start of programs that show two shards and two collectors.
PROGRAM = """
from sb3_compressed.distributed.live_table import CollectorRow, LiveTable, ShardRow, Totals
def update(table, n):
    shards = [ShardRow(f"shard-{i}", 1000 + n, 2_500_000, 10.0, 80.0) for i in range(2)]
    collectors = [CollectorRow(f"collector-{i}", 5.0, n, 3.5, 1, 0.4) for i in range(2)]
    table.update(shards, collectors, Totals(n, 8.0, 3.5))
"""


def terminal(width: int, height: int, **options: Any) -> Console:
    settings = {"color_system": None, "legacy_windows": False, "_environ": {"TERM": "xterm"}, **options}
    return Console(file=StringIO(), force_terminal=True, width=width, height=height, **settings)


def written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def frames(console: Console) -> list[str]:
    """Return what was shown, without control sequences, one string for each time."""
    parts = written(console).replace("\x1b[2K", "").replace("\x1b[1A", "").split("\r")
    return [re.sub(r"\x1b\[\?25[lh]", "", part) for part in parts]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 60), (120, 24), (200, 100)])
def test_table_fits_the_terminal(width: int, height: int) -> None:
    console = terminal(width, height)
    with LiveTable(console=console, interval=0) as table:
        table.update(SHARDS, COLLECTORS, TOTALS)
    shown = frames(console)[0].splitlines()
    assert max(map(len, shown)) <= width
    assert len(shown) < height - 1, "a line is left for the cursor, another one for SB3's progress bar"
    text = "\n".join(shown)
    for expected in (
        r"shard +transitions +memory +inserts/s +samples/s +restarts",
        r"shard-0 +1,000,000,000 +45 B +123,457 +99,999 +3",
        r"total of 4 +4,000,000,000 +45 GB +493,827 +399,996 +12",
        r"collector +steps/s +episodes +return +age +epsilon +restarts",
        r"collector-0 +12,346 +1,000,000 +- +100 +0.4 +12",
        r"collector-1 +12,346 +1,000,000 +-12,346 +100 +0.16 +12",
        r"total of 30 +370,368 +30,000,000 +12.3 +360",
        r"1,000,000,000 steps, 8.0 samples per insert, 1,234 transitions lost, collectors\s+wait",
    ):
        assert re.search(expected, text), f"{expected} not in\n{text}"
    hidden = [int(n) for n in re.findall(r"^\.\.\. (\d+) more", text, re.MULTILINE)]
    n_rows = len(re.findall(r"^(?:shard|collector)-\d+", text, re.MULTILINE))
    assert n_rows + sum(hidden) == len(SHARDS) + len(COLLECTORS)


@pytest.mark.parametrize(("width", "height"), [(1, 1000), (20, 100), (40, 100), (70, 100), (80, 18), (80, 10)])
def test_small_terminals_show_a_paragraph(width: int, height: int) -> None:
    console = terminal(width, height)
    with LiveTable(console=console, interval=0) as table:
        table.update(SHARDS, COLLECTORS, TOTALS)
    shown = frames(console)[0].splitlines()
    assert max(map(len, shown)) <= width
    assert "".join(shown).replace(" ", "") == LINE.replace(" ", "")


def test_colors_are_used_only_for_emphasis() -> None:
    console = terminal(80, 24, color_system="256")
    with LiveTable(console=console, interval=0) as table:
        table.update(SHARDS, COLLECTORS, TOTALS)
    codes = {int(code) for codes in re.findall(r"\x1b\[([\d;]+)m", written(console)) for code in codes.split(";")}
    assert codes == {0, 1}, "bold"


def test_ascii_terminals_get_ascii() -> None:
    buffer = BytesIO()
    console = Console(
        file=TextIOWrapper(buffer, encoding="ascii", write_through=True),
        force_terminal=True,
        width=80,
        height=30,
        _environ={"TERM": "xterm"},
    )
    with LiveTable(console=console, interval=0) as table:
        table.update([ShardRow("größer", 1)], [CollectorRow("→" * 30)], Totals(1))
    assert b"gr??er" in buffer.getvalue()
    assert 17 * b"?" + b"..." in buffer.getvalue()


def test_names_cannot_move_the_cursor_or_be_markup() -> None:
    console = terminal(80, 30)
    with LiveTable(console=console, interval=0) as table:
        table.update([ShardRow("a\x1b[2Jb\nc\rd", 1)], [CollectorRow("[red]x[/]")], Totals(1))
    assert "a?[2Jb?c?d" in frames(console)[0]
    assert "[red]x[/]" in frames(console)[0]


def test_unknown_values_are_dashes() -> None:
    console = terminal(80, 30)
    with LiveTable(console=console, interval=0) as table:
        table.update(
            [ShardRow("shard-0", 0, None), ShardRow("shard-1", 5, 100)],
            [CollectorRow("collector-0", math.nan, 0, math.nan, None, math.nan)],
            Totals(0, None, None, "learner"),
        )
    text = frames(console)[0]
    assert re.search(r"shard-0 +0 +- +0.0 +0.0 +0\s", text)
    assert re.search(r"total of 2 +5 +- ", text), "a sum of unknown numbers is unknown"
    assert re.search(r"collector-0 +- +0 +- +- +- +0\s", text)
    assert "0 steps, - samples per insert, learner waits" in text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (4.5e9, "4.5 GB"), (1e15, "1,000 TB")],
)
def test_memory_has_units(n_bytes: float, text: str) -> None:
    console = terminal(80, 30)
    with LiveTable(console=console, interval=0) as table:
        table.update([ShardRow("shard", 1, int(n_bytes))], [], Totals(1))
    assert re.search(rf"shard +1 +{text} +0.0", frames(console)[0])


def test_empty_tables_are_shown() -> None:
    console = terminal(80, 24)
    with LiveTable(console=console, interval=0) as table:
        table.update([], [], Totals(0))
    assert re.search(r"total of 0 +0 +0 B ", frames(console)[0])


def test_updates_are_limited_and_the_last_one_is_shown_at_the_end() -> None:
    console = terminal(80, 24)
    with LiveTable(console=console, interval=1e6) as table:
        assert table.is_due
        for n in range(5):
            table.update(SHARDS, COLLECTORS, Totals(100 + n))
            assert not table.is_due
        assert "100 steps" in written(console)
        assert "104 steps" not in written(console)
    assert "104 steps" in frames(console)[-1]
    assert not re.search("10[123] steps", written(console))


def test_without_a_terminal_there_is_one_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=80)
    with LiveTable(console=console, line_interval=1e6) as table:
        table.update(SHARDS, COLLECTORS, TOTALS)
        table.update(SHARDS, COLLECTORS, Totals(1))
        assert capsys.readouterr().out == LINE + "\n"
        table.update(SHARDS, COLLECTORS, TOTALS)
    assert capsys.readouterr().out == LINE + "\n", "the last values"
    with LiveTable(console=console, line_interval=0) as table:
        for _ in range(3):
            table.update(SHARDS, COLLECTORS, TOTALS)
    assert capsys.readouterr() == (3 * (LINE + "\n"), "")


def test_a_dumb_terminal_gets_lines() -> None:
    console = terminal(80, 24, _environ={"TERM": "dumb"})
    with LiveTable(console=console) as table:
        table.update(SHARDS, COLLECTORS, TOTALS)
    assert written(console) == LINE + "\n"


def test_nothing_is_printed_without_updates() -> None:
    console = terminal(80, 24)
    LiveTable(console=console).close()
    assert written(console) == ""


def test_updates_after_the_end_are_ignored() -> None:
    console = terminal(80, 24)
    table = LiveTable(console=console, interval=0)
    table.update(SHARDS, COLLECTORS, TOTALS)
    table.close()
    before = written(console)
    table.close()
    table.update(SHARDS, COLLECTORS, TOTALS)
    assert not table.is_due
    assert written(console) == before


def test_streams_and_cursor_are_restored_without_close() -> None:
    console, stdout = terminal(80, 24), sys.stdout
    table = LiveTable(console=console, interval=0)
    table.update(SHARDS, COLLECTORS, TOTALS)
    assert sys.stdout is not stdout, "prints are shown above the table"
    del table
    gc.collect()
    assert sys.stdout is stdout
    hidden, shown = (written(console).rfind(f"\x1b[?25{end}") for end in "lh")
    assert hidden < shown
    assert "1,000,000,000 steps" in written(console)[shown:]


def test_another_display_of_an_old_rich_leaves_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.errors import LiveError

    def start(self: Live, refresh: bool = False) -> None:  # as before Rich 14.1
        raise LiveError("Only one live display may be active at once")

    monkeypatch.setattr(Live, "start", start)
    console = terminal(80, 24)
    with LiveTable(console=console, interval=0, line_interval=0) as table:
        table.update(SHARDS, COLLECTORS, TOTALS)
    assert written(console) == LINE + "\n"


@pytest.mark.parametrize("name", ["interval", "line_interval"])
@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_wrong_intervals_are_errors(name: str, seconds: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be at least 0 seconds"):
        LiveTable(**{name: seconds})  # type: ignore[arg-type]


def test_without_rich_the_error_names_the_extra() -> None:
    done = fresh_outcome("""
import sys
sys.modules["rich"] = None  # as if it were not installed
from sb3_compressed.distributed.live_table import LiveTable, ShardRow
try:
    LiveTable()
except ModuleNotFoundError as error:
    print(error)
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("LiveTable needs rich: pip install 'sb3-compressed[ray]'")


def test_a_notebook_without_ipywidgets_gets_lines() -> None:
    done = fresh_outcome(
        """
import builtins, sys
class ZMQInteractiveShell:  # the name by which Rich recognizes notebooks
    pass
builtins.get_ipython = ZMQInteractiveShell
sys.modules["ipywidgets"] = None
"""
        + PROGRAM
        + """
with LiveTable(line_interval=0) as table:
    update(table, 1)
    update(table, 2)
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(";")[0] for line in done.stdout.splitlines()] == ["1 steps", "2 steps"]


def assert_restored(outcome: Outcome) -> None:
    assert outcome.is_cursor_visible
    assert outcome.is_mode_unchanged


def count(outcome: Outcome, text: str) -> int:
    return sum(text in line for line in outcome.lines)


def test_prints_are_shown_above_the_table() -> None:
    outcome = run_in_terminal(
        PROGRAM
        + """
with LiveTable(interval=0) as table:
    for n in range(50):
        update(table, n)
        print("printed", n)
print("afterwards")
"""
    )
    assert outcome.returncode == 0, outcome.lines
    assert_restored(outcome)
    assert count(outcome, "transitions") == 1, "one table"
    assert count(outcome, "49 steps, 8.0 samples per insert") == 1
    assert [line for line in outcome.lines if "printed" in line] == [f"printed {n}" for n in range(50)]
    assert outcome.lines.index("printed 49") < outcome.lines.index("49 steps, 8.0 samples per insert")
    assert outcome.lines.index("afterwards") > outcome.lines.index("49 steps, 8.0 samples per insert")


#: A training with SB3's progress bar and log, and the table.
TRAINING = (
    PROGRAM
    + """
import sys
import warnings
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
warnings.simplefilter("ignore")  # tqdm's of its experimental bar
stdout = sys.stdout
class Table(BaseCallback):
    def _on_training_start(self):
        self.table = LiveTable(interval=0)
    def _on_step(self):
        if self.num_timesteps % 20 == 0:
            update(self.table, self.num_timesteps)
            on_update(self)
        return True
    def _on_training_end(self):
        self.table.close()
model = DQN("MlpPolicy", "CartPole-v1", learning_starts=10_000, buffer_size=1000, verbose=1, device="cpu")
"""
)


@needs_several_displays
def test_sb3s_progress_bar_and_log_remain_intact() -> None:
    outcome = run_in_terminal(
        TRAINING
        + """
on_update = lambda callback: None
model.learn(1000, log_interval=4, callback=Table(), progress_bar=True)
assert sys.stdout is stdout
print("afterwards", model._episode_num)
"""
    )
    assert outcome.returncode == 0, outcome.lines
    assert_restored(outcome)
    assert count(outcome, "inserts/s") == 1, "one table"
    assert count(outcome, "1,000 steps, 8.0 samples per insert") == 1
    (bar,) = (line for line in outcome.lines if "100%" in line)
    assert "1,000/1,000" in bar
    (last,) = (line for line in outcome.lines if "afterwards" in line)
    n_logs = int(last.split()[1]) // 4
    assert n_logs > 5
    assert count(outcome, "| rollout/") == count(outcome, "exploration_rate") == n_logs


@pytest.mark.parametrize("progress_bar", PROGRESS_BAR)
def test_after_ctrl_c_the_terminal_is_as_before(progress_bar: bool) -> None:
    interrupted: list[bool] = []

    def interrupt(screen: Any, process: Process) -> None:
        if not interrupted and any("inserts/s" in line for line in screen.display):
            interrupted.append(True)
            process.send_signal(signal.SIGINT)

    outcome = run_in_terminal(
        TRAINING
        + f"""
on_update = lambda callback: None
callback = Table()
try:
    model.learn(10**9, callback=callback, progress_bar={progress_bar})
except KeyboardInterrupt:
    print("interrupted")
    callback.table.close()
print("afterwards")
""",
        on_output=interrupt,
    )
    assert outcome.returncode == 0, outcome.lines
    assert interrupted
    assert_restored(outcome)
    assert count(outcome, "inserts/s") == 1
    assert count(outcome, "interrupted") == count(outcome, "afterwards") == 1


@pytest.mark.parametrize("progress_bar", PROGRESS_BAR)
@pytest.mark.parametrize("ending", ["raise RuntimeError('failed in training')", "raise KeyboardInterrupt"])
def test_an_exception_that_nobody_handles_is_readable(ending: str, progress_bar: bool) -> None:
    outcome = run_in_terminal(
        TRAINING
        + f"""
def on_update(callback):
    if callback.num_timesteps > 500:
        {ending}
model.learn(10**9, callback=Table(), progress_bar={progress_bar})
""",
        fresh=True,  # what the interpreter does at its end matters
    )
    assert outcome.returncode != 0
    assert_restored(outcome)
    text = "\n".join(outcome.lines)
    assert "Traceback (most recent call last)" in text
    assert ending.split()[-1].strip("')") in text
    assert count(outcome, "collector-0") >= 1


@pytest.mark.parametrize("n_outputs", [1, 2, 3, 5, 20, pytest.param(50, marks=pytest.mark.slow)])
def test_interrupts_at_any_time_restore_the_terminal(n_outputs: int) -> None:
    """SIGINT arrives after some outputs, which are written at the start and within updates."""
    seen: list[bool] = []

    def interrupt(screen: Any, process: Process) -> None:
        seen.append(True)
        if len(seen) == n_outputs:
            process.send_signal(signal.SIGINT)

    outcome = run_in_terminal(
        PROGRAM
        + """
import itertools, sys
stdout = sys.stdout
try:
    print("start", flush=True)
    with LiveTable(interval=0) as table:
        for n in itertools.count():
            update(table, n)
except KeyboardInterrupt:
    assert sys.stdout is stdout
    print("interrupted")
""",
        on_output=interrupt,
    )
    assert outcome.returncode == 0, outcome.lines
    assert_restored(outcome)
    assert count(outcome, "interrupted") == 1
    assert count(outcome, "inserts/s") <= 1


def test_interrupts_are_deferred_and_the_handler_remains() -> None:
    received: list[int] = []

    def handler(number: int, frame: Any) -> None:
        received.append(number)

    class InterruptingConsole(Console):
        """Receives SIGINT whenever the cursor is hidden or shown."""

        def show_cursor(self, show: bool = True) -> bool:
            signal.raise_signal(signal.SIGINT)
            assert len(received) == int(show), "this one is handled afterwards"
            return super().show_cursor(show)

    before = signal.signal(signal.SIGINT, handler)
    try:
        console = InterruptingConsole(
            file=StringIO(), force_terminal=True, width=80, height=24, _environ={"TERM": "xterm"}
        )
        with LiveTable(console=console, interval=0) as table:
            table.update(SHARDS, COLLECTORS, TOTALS)
            assert received == [signal.SIGINT]
            assert signal.getsignal(signal.SIGINT) is handler
        assert received == [signal.SIGINT] * 2
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


@needs_several_displays
def test_tables_may_be_closed_before_or_after_another_display() -> None:
    for is_closed_first in (True, False):
        console = terminal(80, 40)
        other = Live("other", console=console, auto_refresh=False)
        other.start(refresh=True)
        table = LiveTable(console=console, interval=0)
        table.update(SHARDS, COLLECTORS, TOTALS)
        for end in (table.close, other.stop) if is_closed_first else (other.stop, table.close):
            end()
        console.print("afterwards")
        text = written(console)
        assert text.endswith("afterwards\n")
        assert text.count("\x1b[?25h") == 1
        assert not console._live_stack
        assert not console._render_hooks


@needs_several_displays
def test_another_display_does_not_draw_a_closed_table() -> None:
    console = terminal(80, 40)
    screen = pyte.Screen(80, 100)
    with Live("other", console=console, auto_refresh=False):
        table = LiveTable(console=console, interval=0)
        table.update(SHARDS, COLLECTORS, TOTALS)
        table.close()
        pyte.Stream(screen).feed(written(console).replace("\n", "\r\n"))
    lines = [line.strip() for line in screen.display]
    assert lines.count("other") == 1
    assert sum("inserts/s" in line for line in lines) == 1


def test_tables_work_in_other_threads() -> None:
    console = terminal(80, 40)

    def show() -> None:
        with LiveTable(console=console, interval=0) as table:
            table.update(SHARDS, COLLECTORS, TOTALS)

    thread = threading.Thread(target=show)
    thread.start()
    thread.join()
    assert "1,000,000,000 steps" in written(console)
