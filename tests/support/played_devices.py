"""Trainings on several devices without a process for each."""

from __future__ import annotations

from importlib import import_module

import pytest

from retexo_fl.addition import DEVICES


def play_devices(patch: pytest.MonkeyPatch) -> None:
    """Have this process play two devices in trainings that ask for some (:class:`.DevicesHere`).

    For tests of what is added up over devices; that processes compute it alike is tested with them.
    Without the addition nothing is changed.
    """
    if DEVICES.is_here:
        # By name: who imports it goes with the addition.
        here = import_module("tests.support.devices_here")
        # Nodes of small graphs are divided, too.
        task = import_module("retexo_fl.additions.devices.training.stage_task")
        patch.setattr(task, "LEAST_NODES", 8)
        patch.setattr(here.ClientDevices, "of", staticmethod(lambda _: here.DevicesHere([1.0] * 2)))
