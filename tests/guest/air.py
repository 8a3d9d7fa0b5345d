"""The guest's two virtual devices: paired, parted, switched off, taken away, as a test needs.

Through the kernel's management interface, so that no bluetoothd is needed; both devices answer for
themselves as two that have neither display nor keys.
Source: BlueZ, doc/mgmt-api.txt; linux, include/net/bluetooth/mgmt.h.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

#: The addresses that btvirt gives.
FIRST: Final = "00:AA:01:00:00:00"
SECOND: Final = "00:AA:01:01:00:01"
DEVICES: Final = (FIRST, SECOND)

_AF_BLUETOOTH, _BTPROTO_HCI = 31, 1
_NO_DEVICE, _CONTROL_CHANNEL = 0xFFFF, 3
_READ_INFO, _SET_POWERED, _SET_CONNECTABLE, _SET_BONDABLE = 0x0004, 0x0005, 0x0007, 0x0009
_SET_SECURE_PAIRING, _DISCONNECT, _PAIR = 0x000B, 0x0014, 0x0019
_COMPLETE, _STATUS = 0x0001, 0x0002
_ALREADY_PAIRED = 0x13
_NO_INPUT_NO_OUTPUT = 3
_HEADER = struct.Struct("<HHH")
_ANSWER_S = 30.0
_PID_FILE = Path("/run/btvirt.pid")


class Air:
    """The kernel's management interface, and btvirt behind it."""

    def __init__(self) -> None:
        self._control = socket.socket(
            _AF_BLUETOOTH, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _BTPROTO_HCI
        )
        # The socket module binds to no channel but that of plain commands.
        address = struct.pack("=HHH", _AF_BLUETOOTH, _NO_DEVICE, _CONTROL_CHANNEL)
        library = ctypes.CDLL(None, use_errno=True)
        if library.bind(self._control.fileno(), address, len(address)):
            raise OSError(ctypes.get_errno(), "no management interface")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._control.close()

    def pair(self) -> None:
        """Have both devices connectable and paired with each other."""
        for device in DEVICES:
            self._do(device, _SET_BONDABLE, b"\x01")
            self._do(device, _SET_SECURE_PAIRING, b"\x01")
            self._do(device, _SET_CONNECTABLE, b"\x01")
        status = self._status(SECOND, _PAIR, _address(FIRST) + bytes([_NO_INPUT_NO_OUTPUT]))
        assert status in (0, _ALREADY_PAIRED), f"not paired: status {status:#x}"

    def part(self) -> None:
        """End whatever connection the two have, as if they had lost each other."""
        self._do(SECOND, _DISCONNECT, _address(FIRST))

    def switch(self, device: str, *, on: bool) -> None:
        """Switch a device on or off."""
        self._do(device, _SET_POWERED, bytes([on]))

    def be_silent(self) -> None:
        """Carry nothing more, and tell nobody."""
        os.kill(_virtual_air(), signal.SIGSTOP)

    def be_heard(self) -> None:
        """Carry again."""
        os.kill(_virtual_air(), signal.SIGCONT)

    def take_away(self) -> None:
        """Unplug both devices."""
        os.kill(_virtual_air(), signal.SIGKILL)
        _until(lambda: not adapters())

    def plug_in(self) -> None:
        """Plug both devices in again, switched on, connectable and paired."""
        begin = f"btvirt -l2 >/run/btvirt-again.log 2>&1 & echo $! >{_PID_FILE}"
        subprocess.run(["sh", "-c", begin], check=True, timeout=_ANSWER_S)
        _until(lambda: len(adapters()) == len(DEVICES))
        for device in DEVICES:
            _until(partial(self._is_ready, device))
            self.switch(device, on=True)
        self.pair()

    def _is_ready(self, device: str) -> bool:
        """Say whether the kernel has finished to ask a new adapter what it is."""
        return self._status(device, _READ_INFO, b"") == 0

    def _do(self, device: str, command: int, parameters: bytes) -> None:
        """Have a command carried out."""
        status = self._status(device, command, parameters)
        assert status == 0, f"{device}: command {command:#x}: status {status:#x}"

    def _status(self, device: str, command: int, parameters: bytes) -> int:
        """Give a command and return how it ended."""
        index = adapters()[device]
        self._control.send(_HEADER.pack(command, index, len(parameters)) + parameters)
        until_s = time.monotonic() + _ANSWER_S
        while True:
            left_s = until_s - time.monotonic()
            ready, _, _ = select.select([self._control], [], [], max(0.0, left_s))
            assert ready, f"{device}: no answer to command {command:#x} within {_ANSWER_S:g} s"
            packet = self._control.recv(4096)
            event, about, _ = _HEADER.unpack_from(packet)
            if event not in (_COMPLETE, _STATUS) or about != index:
                continue
            answered, status = struct.unpack_from("<HB", packet, _HEADER.size)
            if answered == command:
                return int(status)


def adapters() -> dict[str, int]:
    """Return the numbers of the adapters that the kernel has, by address."""
    from retexo_fl.additions.bluetooth.hci import local_adapters

    return {adapter.address: int(adapter.name[3:]) for adapter in local_adapters()}


def _virtual_air() -> int:
    return int(_PID_FILE.read_text())


def _address(device: str) -> bytes:
    """Return an address and its kind, of a device that is not of the low-energy sort."""
    return bytes(int(part, 16) for part in reversed(device.split(":"))) + b"\0"


def _until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + _ANSWER_S
    while not holds():
        assert time.monotonic() < until_s, "in vain"
        time.sleep(0.05)
