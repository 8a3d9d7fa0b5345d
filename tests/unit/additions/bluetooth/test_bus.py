"""The way to BlueZ: what is not there, or does not answer, has a name and a remedy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.additions.bluetooth import bus, look_up
from retexo_fl.additions.bluetooth.bus import Reply, system_bus
from retexo_fl.additions.bluetooth.directory import service_directory
from retexo_fl.errors import ChannelUnavailable

DEVICE = "00:AA:01:00:00:00"


def run(work: Coroutine[Any, Any, object]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20.0):
            await work

    asyncio.run(bounded())


@pytest.fixture
def bus_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Say where the system bus is: a socket that is not there yet."""
    path = tmp_path / "bus"
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={path}")
    return path


@pytest.mark.parametrize("says", [b"", b"REJECTED EXTERNAL\r\n", None])
def test_a_bus_that_says_nothing_useful_is_given_up(
    monkeypatch: pytest.MonkeyPatch, bus_path: Path, says: bytes | None
) -> None:
    monkeypatch.setattr(bus, "CALL_S", 0.2)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if says is None:
            # It reads, and never answers.
            await reader.read(-1)
        else:
            writer.write(says)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()

    async def work() -> None:
        async with await asyncio.start_unix_server(serve, bus_path):
            with pytest.raises(ChannelUnavailable, match="D-Bus system bus .*: .+apt install"):
                async with system_bus():
                    pass
            await ended.wait()

    run(work())


@pytest.mark.usefixtures("bus_path")
def test_without_a_bus_no_record_is_published() -> None:
    with pytest.raises(ChannelUnavailable, match="apt install dbus bluez"):
        run(service_directory().publish(7))


def test_without_sockets_no_record_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("socket.AF_BLUETOOTH", raising=False)
    monkeypatch.setattr(look_up, "find_spec", lambda _name: None)
    with pytest.raises(ChannelUnavailable, match=r"pip install platypush-pybluez"):
        run(service_directory().find_channel(DEVICE))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("org.freedesktop.DBus.Error.ServiceUnknown", r"bluetoothd .*\(apt install bluez "),
        ("org.freedesktop.DBus.Error.Spawn.ChildExited", r"bluetoothd .*\(apt install bluez "),
        ("org.freedesktop.DBus.Error.AccessDenied", r"D-Bus .*user .*\(.*group bluetooth"),
        ("org.bluez.Error.NotReady", r".*adapter .*off \(bluetoothctl power on\)"),
        ("org.bluez.Error.Failed", r"BlueZ .*org\.bluez\.Error\.Failed: why$"),
    ],
)
def test_errors_come_with_what_helps(error: str, expected: str) -> None:
    assert re.match(expected, Reply(error=error, text="why", values=()).sentence())
