"""Bluetooth as a transport: RFCOMM between two devices; TLS and links come above it.

Three things differ from TCP. The kernel keeps one connection for each pair of adapters and channel:
a new one is refused while the last one ends. The end of a stream shows as a reset. And a single
large write that waits stops for ever, so bytes go in small pieces, and nothing ever waits in the
kernel.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Final

from retexo_fl.additions.bluetooth.hci import local_adapters
from retexo_fl.additions.bluetooth.presence import missing_for_sockets, missing_parts
from retexo_fl.additions.bluetooth.rfcomm import PublishedListener, RfcommListener, RfcommStream
from retexo_fl.additions.bluetooth.sockets import (
    ANY_ADAPTER,
    FREE_CHANNEL,
    Security,
    rfcomm_sockets,
)
from retexo_fl.channels.addresses import AUTOMATIC_BLUETOOTH, BluetoothAddress, parse_bluetooth
from retexo_fl.channels.streams import ByteStream, Listener
from retexo_fl.errors import ChannelUnavailable

#: A connection that was closed ends at once; one whose device vanished takes longer.
_BUSY_S: Final = 5.0
_BUSY_PAUSE_S: Final = 0.1
#: How often a machine without Bluetooth is looked at again.
_LOOK_AGAIN_S: Final = 60.0
#: Words for a person in place of the system's.
_REASONS: Final = {
    errno.EHOSTDOWN: "the device does not answer: it is far, switched off or not connectable",
    errno.EHOSTUNREACH: "the adapter that would connect is switched off",
    errno.ECONNREFUSED: "the device answers, but no agent listens at this channel",
    errno.EBUSY: "the last connection to it has not ended yet",
    errno.EACCES: "the two are not paired, or one has lost its key: retexo bluetooth pair",
}


class BluetoothTransport:
    """Makes RFCOMM streams for addresses ``bluetooth://DEVICE/CHANNEL``.

    Args:
        adapter: Address of the adapter that connects; empty: the kernel chooses.
        security: What links must have.
    """

    def __init__(self, *, adapter: str = "", security: Security = Security.MEDIUM) -> None:
        self._adapter = adapter or ANY_ADAPTER
        self._security = security

    async def connect(self, address: str, peer: int) -> ByteStream:
        """See :class:`~retexo_fl.channels.streams.Transport`."""
        del peer
        return RfcommStream(await self.open(address), address)

    async def open(self, address: str) -> socket.socket:
        """Return a connected socket that does not block.

        Raises:
            ChannelUnavailable: Nobody answers there, or a part is missing here.
        """
        device = parse_bluetooth(address)
        _check_parts(address)
        channel = device.channel
        if channel is None:
            from retexo_fl.additions.bluetooth.directory import service_directory

            channel = await service_directory().find_channel(device.adapter, self._adapter)
        try:
            return await self._connect(device.adapter, channel)
        except OSError as error:
            raise ChannelUnavailable(f"{address}: {_reason(error)}") from error

    async def listen(self, address: str) -> Listener:
        """See :class:`~retexo_fl.channels.streams.Transport`.

        ``bluetooth:`` never fails: where a part is missing, ``accept`` of the listener names it,
        and the machine is looked at again now and then.
        """
        if address == AUTOMATIC_BLUETOOTH:
            return _WillingListener(self)
        wanted = parse_bluetooth(address, to_listen=True)
        return await self.open_listener(wanted)

    async def open_listener(self, wanted: BluetoothAddress) -> Listener:
        """Listen now; with no channel given, at a free one that is published.

        Raises:
            ChannelUnavailable: It cannot be listened at; a missing part is named.
        """
        check_can_listen(wanted)
        adapter = wanted.adapter or ANY_ADAPTER
        try:
            listening = rfcomm_sockets().listen(
                adapter, wanted.channel or FREE_CHANNEL, security=self._security
            )
        except OSError as error:
            raise ChannelUnavailable(f"{wanted}: {error.strerror or error}") from error
        listener = RfcommListener(listening)
        if wanted.channel is not None:
            return listener
        return await _published(listener, listening.channel, adapter)

    async def _connect(self, device: str, channel: int) -> socket.socket:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _BUSY_S
        while True:
            try:
                return await rfcomm_sockets().connect(
                    device, channel, adapter=self._adapter, security=self._security
                )
            except OSError as error:
                if error.errno != errno.EBUSY or loop.time() >= until_s:
                    raise
            await asyncio.sleep(_BUSY_PAUSE_S)


def check_can_listen(wanted: BluetoothAddress) -> None:
    """Check that this machine has what it takes to listen at an address.

    Raises:
        ChannelUnavailable: It has not; what is missing is named, and how to get it.
    """
    # A free channel is of use where others can look it up.
    _check_parts(str(wanted), to_publish=wanted.channel is None)
    own = [adapter.address for adapter in local_adapters()]
    if wanted.adapter and wanted.adapter not in own:
        # The kernel would listen there, and no connection would come.
        raise ChannelUnavailable(
            f"{wanted}: no adapter has this address, this machine has {', '.join(own)}"
        )


def _check_parts(address: str, *, to_publish: bool = False) -> None:
    missing = missing_parts() if to_publish else missing_for_sockets()
    if missing:
        raise ChannelUnavailable(f"{address}: {'; '.join(map(str, missing))}")


async def _published(listener: RfcommListener, channel: int, adapter: str) -> Listener:
    from retexo_fl.additions.bluetooth.directory import service_directory

    try:
        publication = await service_directory().publish(channel, adapter)
    except BaseException:
        await listener.close()
        raise
    return PublishedListener(listener, publication)


class _WillingListener:
    """Listens as soon as this machine has what it takes."""

    def __init__(self, transport: BluetoothTransport) -> None:
        self._transport = transport
        self._listener: Listener | None = None
        self._said = ""

    @property
    def address(self) -> str:
        return AUTOMATIC_BLUETOOTH if self._listener is None else self._listener.address

    async def accept(self) -> ByteStream:
        """Raise what is missing once, and again only when it is something else."""
        wanted = parse_bluetooth(AUTOMATIC_BLUETOOTH, to_listen=True)
        while self._listener is None:
            if self._said:
                await asyncio.sleep(_LOOK_AGAIN_S)
            try:
                self._listener = await self._transport.open_listener(wanted)
            except ChannelUnavailable as error:
                said = str(error).removeprefix(f"{wanted}: ")
                if said != self._said:
                    self._said = said
                    raise ChannelUnavailable(f"the agent goes on without it: {said}") from error
        return await self._listener.accept()

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()


def _reason(error: OSError) -> str:
    if error.errno is None:
        return str(error)
    return _REASONS.get(error.errno) or os.strerror(error.errno)
