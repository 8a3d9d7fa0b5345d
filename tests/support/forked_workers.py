"""Workers of devices as forks of one process that has imported what they need.

A start takes no two CPU seconds. What forks has no threads and has computed nothing. That workers
start anew, as they do for users, and end with their host: unit/additions/devices/workers/
test_worker_process.py and tests of the mark ``system``.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import forkserver, process
from types import SimpleNamespace
from typing import Any

import pytest

from retexo_fl.additions.devices.workers import worker_process

_IMPORTED = [
    "retexo_fl.additions.devices.workers.worker",
    "retexo_fl.additions.devices.training.sampled_task",
    "retexo_fl.additions.devices.training.stage_task",
]


@functools.cache
def _forks() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    # Before a test counts what is open.
    forkserver.ensure_running()

    def born(
        *, target: Callable[..., None], args: tuple[Any, Any], **named: Any
    ) -> process.BaseProcess:
        pipe, settings = args
        # Its parent is the one that forks.
        alone = replace(settings, parent=0)
        return context.Process(target=target, args=(pipe, alone), **named)

    return SimpleNamespace(Pipe=context.Pipe, Process=born)


@pytest.fixture
def forked_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the workers that a test starts, unless it is one of the mark ``system``."""
    if request.node.get_closest_marker("system") is None:
        forking = SimpleNamespace(get_context=lambda _method: _forks())
        monkeypatch.setattr(worker_process, "multiprocessing", forking)
