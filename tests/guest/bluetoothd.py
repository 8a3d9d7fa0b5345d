"""The virtual machine's bluetoothd, ended and started anew."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

from retexo_fl.additions.bluetooth.bluez import Bluez
from retexo_fl.additions.bluetooth.bus import system_bus
from retexo_fl.errors import ChannelUnavailable

_PID_FILE = Path("/run/bluetoothd.pid")
_LOG = Path("/run/bluetoothd-again.log")
#: They run as long as the machine does.
_STARTED: list[subprocess.Popen[bytes]] = []


async def restart_bluetoothd(*options: str) -> None:
    """End bluetoothd, start it with options, and wait until it has switched both adapters on."""
    await asyncio.to_thread(_restart, options)
    while not await _has_adapters():
        await asyncio.sleep(0.1)


def _restart(options: tuple[str, ...]) -> None:
    number = int(_PID_FILE.read_text())
    program = Path(f"/proc/{number}/exe").readlink()
    os.kill(number, signal.SIGTERM)
    while _runs(number):
        time.sleep(0.05)
    with _LOG.open("ab") as log:
        _STARTED.append(subprocess.Popen([program, "-n", *options], stdout=log, stderr=log))
    _PID_FILE.write_text(str(_STARTED[-1].pid))


def _runs(number: int) -> bool:
    for started in _STARTED:
        started.poll()
    try:
        state = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False
    # A process that its parent, which is not ours, has not asked about yet.
    return state.rpartition(")")[2].split()[0] != "Z"


async def _has_adapters() -> bool:
    try:
        async with system_bus() as bus:
            adapters = await Bluez(bus).adapters()
    except ChannelUnavailable:
        return False
    return [adapter.is_powered for adapter in adapters] == [True, True]
