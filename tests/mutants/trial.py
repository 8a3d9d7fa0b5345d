"""Tests of a changed copy of this checkout, in a process of their own that begins warm."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

_DATA: Final = Path(__file__).resolve().parents[3] / "shared" / "data"
#: A mutant that computes without end is killed by its limit.
_MAX_CPU_S: Final = 240
_MAX_WALL_S: Final = 480.0
_OPTIONS: Final = (
    "-x",
    "-q",
    "-n0",
    "--assert=plain",
    "-p",
    "no:randomly",
    "-p",
    "no:cacheprovider",
)


def passes(copy: Path, tests: Sequence[Path]) -> bool:
    """Say whether tests of a copy pass, in a process that has only large libraries loaded before.

    Args:
        copy: A checkout; its package and its tests are imported, not this one's.
        tests: Files of it.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "numpy", "scipy.sparse", "flwr", "pytest"])
    process = context.Process(target=_test, args=(str(copy), [str(test) for test in tests]))
    process.start()
    process.join(_MAX_WALL_S)
    _end(process)
    return process.exitcode == 0


def _end(process: BaseProcess) -> None:
    """End whatever the tests left running: they have a process group of their own."""
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def _test(copy: str, tests: list[str]) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (_MAX_CPU_S, _MAX_CPU_S))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.chdir(copy)
    # What tests start must find the copy, too; files are never taken for older ones of their name.
    data = os.environ.get("RETEXO_TEST_DATA", str(_DATA))
    os.environ |= {"PYTHONPATH": copy, "PYTHONDONTWRITEBYTECODE": "1", "RETEXO_TEST_DATA": data}
    sys.dont_write_bytecode = True
    sys.path.insert(0, copy)
    for name in list(sys.modules):
        if name.partition(".")[0] in {"tests", "retexo_fl"}:
            del sys.modules[name]
    import pytest

    os._exit(pytest.main([*_OPTIONS, *tests]))
