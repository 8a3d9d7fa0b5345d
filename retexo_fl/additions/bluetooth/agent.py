"""Bluetooth as an agent's settings want it: demanded, tried, or only to connect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from retexo_fl.addition import BLUETOOTH
from retexo_fl.additions.bluetooth.hci import local_adapters
from retexo_fl.additions.bluetooth.transport import BluetoothTransport, check_can_listen
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels.addresses import AUTOMATIC_BLUETOOTH, BluetoothAddress, parse_bluetooth
from retexo_fl.errors import ChannelUnavailable, ConfigurationError


def bluetooth_transport(settings: AgentSettings) -> BluetoothTransport:
    """Return what connects and listens over Bluetooth.

    It connects from the adapter that ``listen`` names first, else from the one that the kernel
    chooses. On a machine without Bluetooth it is returned as well, and names what is missing when
    it is used.

    Raises:
        ConfigurationError: ``listen`` demands Bluetooth, and this machine cannot give it.
        IdentityError: An address of ``listen`` is none.
    """
    for wanted in _demanded(settings.listen):
        try:
            check_can_listen(wanted)
        except ChannelUnavailable as error:
            raise ConfigurationError(
                f"listen: {error}; expected Bluetooth, or {AUTOMATIC_BLUETOOTH} to start without it"
            ) from error
    return BluetoothTransport(adapter=own_adapter(settings.listen))


def own_adapter(listen: Iterable[str]) -> str:
    """Return the adapter that an agent connects from; empty if the kernel chooses.

    Raises:
        IdentityError: An address of ``listen`` is none.
    """
    return next((wanted.adapter for wanted in _demanded(listen) if wanted.adapter), "")


def reachable_at(address: str) -> tuple[str, ...]:
    """Return the address for the rosters of others, of one at which an agent listens.

    Where no adapter is named, it is that of the first adapter that is switched on; without one, and
    without Bluetooth, there is no address.
    """
    wanted = parse_bluetooth(address, to_listen=True)
    named = wanted if wanted.adapter else _of_first_adapter(wanted)
    return () if named is None else (str(named),)


def _of_first_adapter(wanted: BluetoothAddress) -> BluetoothAddress | None:
    for adapter in local_adapters():
        if adapter.is_up:
            return replace(wanted, adapter=adapter.address)
    return None


def _demanded(listen: Iterable[str]) -> list[BluetoothAddress]:
    return [
        parse_bluetooth(address, to_listen=True)
        for address in listen
        if BLUETOOTH.serves(address) and address != AUTOMATIC_BLUETOOTH
    ]
