"""Adapters and devices of BlueZ: list, scan, trust, remove."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from retexo_fl.additions.bluetooth import SERVICE_UUID
from retexo_fl.additions.bluetooth.bus import BLUEZ, Bus
from retexo_fl.errors import ChannelError, ChannelUnavailable

_ADAPTER: Final = "org.bluez.Adapter1"
_DEVICE: Final = "org.bluez.Device1"
_SET: Final = "org.freedesktop.DBus.Properties.Set"
_ADDRESS: Final = re.compile(r"(?:[0-9A-F]{2}:){5}[0-9A-F]{2}", re.ASCII)
#: How often a scan looks whether the device that it is for has been seen.
_LOOK_EVERY_S: Final = 0.2
_Objects = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One adapter of this machine.

    Attributes:
        name: ``hci0``.
        path: Its D-Bus object.
        address: ``AA:BB:CC:DD:EE:FF``.
        alias: What other devices see as its name.
        is_powered: Switched on.
        is_discoverable: Others find it when they scan.
        is_pairable: Others may pair with it.
        discoverable_limit_s: After so long it is discoverable no more; 0: never.
        pairable_limit_s: After so long it is pairable no more; 0: never.
    """

    name: str
    path: str
    address: str
    alias: str
    is_powered: bool
    is_discoverable: bool
    is_pairable: bool
    discoverable_limit_s: int
    pairable_limit_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that an adapter has seen.

    Attributes:
        adapter: The adapter's name.
        path: Its D-Bus object.
        address: ``AA:BB:CC:DD:EE:FF``.
        name: What it calls itself; its address where that is unknown.
        is_paired: Both have a key for the other.
        is_trusted: It may use this machine's services without confirmation.
        is_connected: There is a connection now.
        offers_service: Its records list an agent.
        rssi_dbm: Strength of its signal, while a scan runs.
    """

    adapter: str
    path: str
    address: str
    name: str
    is_paired: bool
    is_trusted: bool
    is_connected: bool
    offers_service: bool
    rssi_dbm: int | None


def parse_device(text: str) -> str:
    """Return a device's address in capitals, or nothing if it is none."""
    return text.upper() if _ADDRESS.fullmatch(text.upper()) else ""


class Bluez:
    """What BlueZ is asked.

    All methods raise ChannelUnavailable where BlueZ or a part of it is missing, and
    ChannelTimedOut where it does not answer.

    Args:
        bus: Connection to the system bus.
    """

    def __init__(self, bus: Bus) -> None:
        self.bus = bus

    async def adapters(self) -> tuple[Adapter, ...]:
        """Return all adapters of this machine by name."""
        found = (_adapter(*item) for item in _having(await self._objects(), _ADAPTER))
        return tuple(sorted(found, key=lambda adapter: (len(adapter.name), adapter.name)))

    async def adapter(self, wanted: str = "") -> Adapter:
        """Return an adapter that is switched on, by name or address; else the first.

        Raises:
            ChannelUnavailable: There is none; the message says what to do.
        """
        known = await self.adapters()
        if not known:
            raise ChannelUnavailable(
                "BlueZ knows no adapter (plug one in, or enable the built-in one; "
                "see: dmesg | grep -i bluetooth)"
            )
        names = ", ".join(f"{adapter.name} {adapter.address}" for adapter in known)
        asked = [it for it in known if wanted.upper() in ("", it.name.upper(), it.address)]
        if not asked:
            raise ChannelUnavailable(f"adapter {wanted}: not found; expected one of {names}")
        for adapter in asked:
            if adapter.is_powered:
                return adapter
        raise ChannelUnavailable(
            f"{', '.join(adapter.name for adapter in asked)}: switched off "
            "(bluetoothctl power on; if that is refused: rfkill unblock bluetooth)"
        )

    async def devices(self, adapter: Adapter) -> tuple[Device, ...]:
        """Return the devices that an adapter has seen, by address.

        Raises:
            ChannelUnavailable: The adapter is no more there.
        """
        objects = await self._objects()
        if adapter.path not in objects:
            raise ChannelUnavailable(f"{adapter.name}: the adapter is no longer there (unplugged?)")
        found = (_device(*item, adapter) for item in _having(objects, _DEVICE))
        mine = [device for device in found if device.path.startswith(f"{adapter.path}/")]
        return tuple(sorted(mine, key=lambda device: device.address))

    async def find(self, adapter: Adapter, address: str) -> Device | None:
        """Return the device with this address, if the adapter has seen it."""
        for device in await self.devices(adapter):
            if device.address == address:
                return device
        return None

    async def known(self, adapter: Adapter, address: str) -> Device:
        """Return the device with this address.

        Raises:
            ChannelUnavailable: The adapter has not seen it.
        """
        device = await self.find(adapter, address)
        if device is None:
            raise ChannelUnavailable(
                f"{address}: {adapter.name} knows no such device; see retexo bluetooth list"
            )
        return device

    async def scan(
        self, adapter: Adapter, seconds: float, *, until: str = ""
    ) -> tuple[Device, ...]:
        """Look for devices that can be discovered, and return those found.

        Args:
            adapter: Through which.
            seconds: For how long.
            until: Address of a device that ends the scan as soon as it is found.
        """
        await self._start_scan(adapter)
        heard: dict[str, Device] = {}
        try:
            async with asyncio.timeout(seconds):
                while until not in heard:
                    await asyncio.sleep(_LOOK_EVERY_S)
                    seen = await self.devices(adapter)
                    heard |= {item.address: item for item in seen if item.rssi_dbm is not None}
        except TimeoutError:
            pass
        finally:
            # Without an answer BlueZ ends the scan with our connection.
            with suppress(ChannelError):
                await self.bus.ask(adapter.path, f"{_ADAPTER}.StopDiscovery")
        return tuple(heard[address] for address in sorted(heard))

    async def trust(self, device: Device, *, is_trusted: bool = True) -> None:
        """Let a device use this machine's services without confirmation, or not."""
        await self.set(device.path, _DEVICE, "Trusted", is_trusted, signature="b")

    async def remove(self, adapter: Adapter, device: Device) -> None:
        """Forget a device and the key for it."""
        await self.bus.call(adapter.path, f"{_ADAPTER}.RemoveDevice", device.path, signature="o")

    async def set_adapter(self, adapter: Adapter, name: str, value: bool | int) -> None:
        """Set a property of an adapter: ``Discoverable``, ``PairableTimeout``."""
        signature = "b" if isinstance(value, bool) else "u"
        await self.set(adapter.path, _ADAPTER, name, value, signature=signature)

    async def set(
        self, path: str, interface: str, name: str, value: bool | int, *, signature: str
    ) -> None:
        """Set a property of an object, of the D-Bus type ``signature``."""
        from dbus_fast import Variant

        variant = Variant(signature, value)
        await self.bus.call(path, _SET, interface, name, variant, signature="ssv")

    async def _start_scan(self, adapter: Adapter) -> None:
        from dbus_fast import Variant

        bredr = {"Transport": Variant("s", "bredr")}
        await self.bus.call(
            adapter.path, f"{_ADAPTER}.SetDiscoveryFilter", bredr, signature="a{sv}"
        )
        await self.bus.call(adapter.path, f"{_ADAPTER}.StartDiscovery")

    async def _objects(self) -> _Objects:
        (objects,) = await self.bus.call(
            "/", "org.freedesktop.DBus.ObjectManager.GetManagedObjects", destination=BLUEZ
        )
        found: _Objects = objects
        return found


def _having(objects: _Objects, interface: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield path and properties of the objects with an interface."""
    for path, interfaces in objects.items():
        if interface in interfaces:
            yield path, {name: it.value for name, it in interfaces[interface].items()}


def _adapter(path: str, facts: Mapping[str, Any]) -> Adapter:
    return Adapter(
        name=path.rpartition("/")[2],
        path=path,
        address=facts["Address"],
        alias=facts.get("Alias", ""),
        is_powered=facts.get("Powered", False),
        is_discoverable=facts.get("Discoverable", False),
        is_pairable=facts.get("Pairable", False),
        discoverable_limit_s=facts.get("DiscoverableTimeout", 0),
        pairable_limit_s=facts.get("PairableTimeout", 0),
    )


def _device(path: str, facts: Mapping[str, Any], adapter: Adapter) -> Device:
    address = facts["Address"]
    return Device(
        adapter=adapter.name,
        path=path,
        address=address,
        name=facts.get("Name", address),
        is_paired=facts.get("Paired", False),
        is_trusted=facts.get("Trusted", False),
        is_connected=facts.get("Connected", False),
        offers_service=SERVICE_UUID in facts.get("UUIDs", ()),
        rssi_dbm=facts.get("RSSI"),
    )
