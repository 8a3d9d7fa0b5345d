"""Rules for all tests: one thread, and in CI none is skipped but by a mark that permits it."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from retexo_fl.addition import DEVICES
from tests.support import cpu_account
from tests.support.data import real_graphs
from tests.support.each_choice import leave_to_the_night

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Take one process more than there are cores: a third of a test's time is spent in waiting."""
    return len(os.sched_getaffinity(0)) + 1


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


def _has_no_gpu() -> bool:
    # Imported once the number of its threads is set, and not to collect tests.
    import torch

    return not torch.cuda.is_available()


#: Marks by which CI divides tests.
OWN_MARKS: Final = frozenset(("system", "deployed", "virtual", "slow", "real_graphs", "gpu"))

#: What a machine, or a copy of the package, may lack, by the mark of tests that need it. With
#: CI=true no other skip passes.
LACKS: Final[Mapping[str, Callable[[], bool]]] = {
    "real_graphs": lambda: real_graphs() is None,
    "gpu": _has_no_gpu,
    "devices": lambda: not DEVICES.is_here,
}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without looking for garbage, and leave what that made out of later looks.

    A million objects stay until the end: each look at all of them takes half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse marks that do not stand in their test's file: CI looks for files by them.

    Then leave to the night what it may have, before tests are chosen by their marks.
    """
    texts: dict[Path, str] = {}
    for item in items:
        for mark in {mark.name for mark in item.iter_markers()} & OWN_MARKS:
            text = texts.get(item.path) or texts.setdefault(item.path, item.path.read_text())
            if f"mark.{mark}" not in text:
                raise pytest.UsageError(f"{item.nodeid}: mark.{mark} does not stand in its file")
    leave_to_the_night(items, OWN_MARKS | LACKS.keys())


def _lacking(item: pytest.Item) -> str | None:
    marks = (name for name in LACKS if item.get_closest_marker(name))
    return next((name for name in marks if LACKS[name]()), None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run."""
    if lacking := _lacking(item):
        pytest.skip(f"this machine lacks what the mark {lacking} stands for")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge the skip of a test."""
    report = yield
    # An expected failure is reported as skipped, too.
    if not hasattr(report, "wasxfail") and not _lacking(item):
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
    report.outcome = "failed"
    report.longrepr = f"skipped, which CI permits only by a mark: {reason}"
