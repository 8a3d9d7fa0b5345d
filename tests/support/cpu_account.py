"""What tests cost: CPU seconds by file, of a test's own process and of the programs it waited for.

Time on the clock says little where tests share two cores; CPU time says what to make cheaper.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator

import pytest

_KEY = "cpu_s"
_SHOWN = 25


_elsewhere_s: list[float] = []


def note_elsewhere(spent_s: float) -> None:
    """Count what a process took that another one has waited for."""
    _elsewhere_s.append(spent_s)


def _spent_s() -> float:
    # Of this process, and of its children that have ended and been waited for.
    return sum(os.times()[:4]) + sum(_elsewhere_s)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note what the fixtures and the body of a test cost."""
    item.stash[_BEGUN] = _spent_s()
    return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send the figure along with the last report, also from a process of pytest-xdist."""
    report = yield
    if call.when == "teardown":
        report.user_properties.append((_KEY, _spent_s() - item.stash[_BEGUN]))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the files that cost most, in CI."""
    if os.environ.get("CI") != "true":
        return
    files: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            for key, value in getattr(report, "user_properties", ()):
                if key == _KEY:
                    files[report.nodeid.partition("::")[0]] += value
    terminalreporter.section(f"CPU seconds by file: {sum(files.values()):.0f} in all")
    for name, spent_s in sorted(files.items(), key=lambda one: -one[1])[:_SHOWN]:
        terminalreporter.write_line(f"{spent_s:8.1f} {name}")


_BEGUN = pytest.StashKey[float]()
