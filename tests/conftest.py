"""Rules for all tests: one thread, and in CI no test is skipped without a permitted reason."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.support import cpu_account

# Tests compare bits and share cores with each other's processes. PyTorch reads this when it is
# imported, the programs that tests start when they begin; a value set by the caller wins.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadline: on a shared machine an example's time says nothing. CI draws the same examples in
# every run, so that a change is judged by what it changed; elsewhere they are new each time.
settings.register_profile("retexo", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("retexo")


def pytest_configure(config: pytest.Config) -> None:
    """Have a SIGTERM end tests as Ctrl-C does, so that what they started ends; account for CPU."""
    config.pluginmanager.register(cpu_account)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A shell's background job ignores SIGINT, and so would every program that a test stops with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_downloads(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Keep tests away from the public data sets, and from those that this user has got."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETEXO_DATASETS_URL", "http://127.0.0.1:9/nothing-listens-here")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waits_for_the_disk() -> Generator[None]:
    """Have this process not wait for the disk a dozen times in each training: no power is cut here.

    Whether and when files are forced is tested where it matters, and programs really do it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


#: With CI=true a skip fails unless its reason begins with one of these: what the machine cannot
#: have. What could have been installed is not among them.
PERMITTED_SKIPS = (
    "needs a GPU",
    # Said by tests.support.data.data_dir() only when the folder is absent.
    "real graphs are not at ",
)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge the skip of a test."""
    report = yield
    # An expected failure is reported as skipped, too.
    if not hasattr(report, "wasxfail"):
        _judge_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge the skip of a whole module."""
    report = yield
    _judge_skip(report)
    return report


def _judge_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") != "true" or report.outcome != "skipped":
        return
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = said.removeprefix("Skipped: ")
    if not reason.startswith(PERMITTED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not permit: {reason}"
