"""How peers find the channel that an agent listens at: a record that each publishes and reads.

The address may name the channel instead; then no record is read.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Protocol

from retexo_fl.additions.bluetooth.sockets import ANY_ADAPTER
from retexo_fl.errors import ChannelTimedOut, ChannelUnavailable


class Publication(Protocol):
    """A record that other devices can read, until it is closed or this process ends."""

    async def close(self) -> None:
        """Take the record back. Never raises, never hangs; again does nothing."""
        ...


class ServiceDirectory(Protocol):
    """Publishes the channel that this machine listens at, and finds that of another."""

    async def publish(self, channel: int, adapter: str = ANY_ADAPTER) -> Publication:
        """Publish which RFCOMM channel takes streams, at ``adapter`` (its address).

        Whoever calls this listens at the channel.

        Raises:
            ChannelUnavailable: Records cannot be published here.
        """
        ...

    async def find_channel(self, address: str, adapter: str = ANY_ADAPTER) -> int:
        """Ask the device at ``address``, through ``adapter``, which RFCOMM channel takes streams.

        Needs no pairing; takes a connection, so seconds where the device is far.

        Raises:
            ChannelUnavailable: It is not near, or publishes no such record.
        """
        ...


def service_directory() -> ServiceDirectory:
    """Return the directory that this machine has; what is missing shows when it is used."""
    return _Directory()


class _Directory:
    """Publishes through BlueZ's D-Bus interface, else through PyBluez; asks over a socket."""

    async def publish(self, channel: int, adapter: str = ANY_ADAPTER) -> Publication:
        from retexo_fl.additions.bluetooth import profile, pybluez
        from retexo_fl.additions.bluetooth.sdp import Offer

        offer = Offer(channel=channel, adapter="" if adapter == ANY_ADAPTER else adapter)
        has_only_pybluez = find_spec("dbus_fast") is None and find_spec("bluetooth") is not None
        try:
            if has_only_pybluez:
                return await pybluez.publish(offer)
            return await profile.publish(offer)
        except ChannelTimedOut as error:
            raise ChannelUnavailable(str(error)) from error

    async def find_channel(self, address: str, adapter: str = ANY_ADAPTER) -> int:
        from retexo_fl.additions.bluetooth.look_up import find_offers

        for offer in await find_offers(address, adapter):
            # A device offers all its records at each of its adapters.
            if offer.adapter in ("", address):
                return offer.channel
        raise ChannelUnavailable(f"{address}: no agent there publishes its channel (SDP)")
