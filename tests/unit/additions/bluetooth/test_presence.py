"""Which parts are missing, and that each comes with how to get it."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

from retexo_fl.additions.bluetooth import presence
from retexo_fl.additions.bluetooth.hci import local_adapters
from retexo_fl.additions.bluetooth.presence import (
    MissingPart,
    missing_for_discovery,
    missing_for_sockets,
    missing_parts,
)
from retexo_fl.additions.bluetooth.sockets import rfcomm_sockets
from retexo_fl.errors import ChannelUnavailable
from tests.support.without_bluetooth import take_bluetooth_away


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    take_bluetooth_away(monkeypatch, tmp_path)
    return tmp_path


def _names(parts: tuple[MissingPart, ...]) -> list[str]:
    return [part.name for part in parts]


@pytest.mark.usefixtures("nothing")
def test_without_bluetooth_all_parts_are_missing_deepest_first() -> None:
    missing = missing_parts()
    # What adapters there are only the kernel's part could tell.
    assert _names(missing)[:2] == ["kernel", "python"]
    assert "bluetoothd" in _names(missing)
    assert "adapter" not in _names(missing)
    assert all(part.seen and part.remedy for part in missing)
    assert local_adapters() == ()
    assert re.match(r"the kernel .*Bluetooth \(.*modprobe -a bluetooth rfcomm", str(missing[0]))


def test_a_family_forbidden_by_unit_is_told_from_a_missing_one(
    nothing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_BLUETOOTH_CLASS", nothing)
    assert "RestrictAddressFamilies" in missing_for_sockets()[0].remedy


@pytest.mark.usefixtures("nothing")
def test_a_python_without_sockets_says_how_to_get_them() -> None:
    with pytest.raises(ChannelUnavailable, match=r"built without .*platypush-pybluez"):
        rfcomm_sockets()


@pytest.mark.usefixtures("nothing")
def test_the_sockets_of_python_come_before_those_of_pybluez(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "AF_BLUETOOTH", 31, raising=False)
    assert rfcomm_sockets().library == "standard library"
    assert _names(missing_for_sockets()) == ["kernel"]


def _process(folder: Path, number: int, name: str) -> None:
    (folder / str(number)).mkdir(parents=True)
    (folder / str(number) / "comm").write_text(f"{name}\n")


def test_a_daemon_that_does_not_run_is_named(
    nothing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, processes = nothing / "bus", nothing / "proc"
    monkeypatch.setattr(presence, "_BUS", bus)
    monkeypatch.setattr(presence, "_PROCESSES", processes)
    _process(processes, 1, "systemd")
    (bus_part,) = missing_for_discovery()
    assert "D-Bus system bus" in bus_part.seen
    bus.touch()
    assert [part.seen for part in missing_for_discovery()] == ["bluetoothd does not run"]
    _process(processes, 612, "bluetoothd")
    assert missing_for_discovery() == ()


def test_processes_that_are_hidden_are_not_missed(
    nothing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nothing / "bus").touch()
    monkeypatch.setattr(presence, "_BUS", nothing / "bus")
    assert missing_for_discovery() == ()


def test_without_a_library_for_the_bus_its_extra_is_named(
    nothing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nothing / "bus").touch()
    monkeypatch.setattr(presence, "_BUS", nothing / "bus")
    monkeypatch.setitem(sys.modules, "dbus_fast", None)
    (missing,) = missing_for_discovery()
    assert (missing.name, missing.remedy) == ("dbus-fast", "pip install dbus-fast")
