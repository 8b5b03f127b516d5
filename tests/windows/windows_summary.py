"""A plugin of pytest for runs with the rules of Windows: failures, counted by rule and by line of the package."""

from __future__ import annotations

import re
from collections import Counter

import pytest

__all__ = ["pytest_terminal_summary"]

RULE = re.compile(r"\[rule of Windows: (\w+)\]")
LINE = re.compile(r'(?:File "\S*?)?(sb3_compressed/\S+?\.py)(?:", line |:)(\d+)')
ERROR = re.compile(r"^E\s+(.+)$", re.MULTILINE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a table of failures: how many, the rules, the innermost line of the package, the error."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for report in [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]:
        text = report.longreprtext
        lines, errors = LINE.findall(text), ERROR.findall(text)
        line = ":".join(lines[-1]) if lines else "-"
        error = RULE.sub("", errors[0] if errors else text[-200:]).partition(": '/")[0]
        counts[",".join(dict.fromkeys(RULE.findall(text))) or "-", line, error[:110]] += 1
    if counts:
        terminalreporter.section("failures by rule of Windows, line of the package, and error")
    for (rules, line, error), count in counts.most_common():
        terminalreporter.write_line(f"{count:4} {rules:18} {line:45} {error}")
