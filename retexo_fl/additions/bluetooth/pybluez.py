"""PyBluez: its records and inquiry where dbus-fast is missing, else its packets for questions.

Its own way to ask for records is not used: it has no timeout for a device that is not there.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from retexo_fl.additions.bluetooth import SERVICE_NAME, SERVICE_UUID
from retexo_fl.additions.bluetooth.sdp import Offer
from retexo_fl.additions.bluetooth.sockets import AF_BLUETOOTH, ANY_ADAPTER
from retexo_fl.errors import ChannelTimedOut, ChannelUnavailable

_T = TypeVar("_T")
#: PyBluez waits inside its library, which ends by itself, but late.
_WAIT_S: Final = 30.0
#: An inquiry's length is counted in these.
_INQUIRY_UNIT_S: Final = 1.28
_MOST_INQUIRY_UNITS: Final = 48
#: An address that no adapter has: no connection reaches a socket there.
_NOWHERE: Final = "FF:FF:FF:FF:FF:FE"
#: Socket of ``bluetoothd --compat``.
_OLD_INTERFACE: Final = Path("/run/sdp")
_ADAPTER: Final = re.compile(r"hci(\d+)", re.ASCII)


class PybluezPublication:
    """A record that goes when its socket is closed.

    Args:
        carrier: PyBluez's socket that carries the record.
    """

    def __init__(self, carrier: Any) -> None:
        self._carrier = carrier

    async def close(self) -> None:
        """See :class:`~retexo_fl.additions.bluetooth.directory.Publication`."""
        with suppress(OSError):
            self._carrier.close()


async def publish(offer: Offer) -> PybluezPublication:
    """Publish a record through bluetoothd's old interface (``bluetoothd --compat``).

    Raises:
        ChannelUnavailable: It does not have that interface, or refuses.
        ChannelTimedOut: It does not answer.
    """
    if not _OLD_INTERFACE.exists():
        raise ChannelUnavailable(
            f"bluetoothd offers no {_OLD_INTERFACE} (pip install dbus-fast, which "
            "needs none, or start it as bluetoothd --compat)"
        )
    return PybluezPublication(await _bounded(lambda: _advertised(offer), "publishing a record"))


async def connect(address: str, psm: int, adapter: str) -> socket.socket:
    """Connect packets to a device; they pass with every Python.

    Whoever calls this bounds it.

    Args:
        address: The device.
        psm: Its L2CAP port.
        adapter: Address of the adapter here, or
            :data:`~retexo_fl.additions.bluetooth.sockets.ANY_ADAPTER`.

    Raises:
        OSError: The system's reason.
    """
    import bluetooth

    raw = bluetooth.BluetoothSocket(bluetooth.L2CAP)
    try:
        raw.setblocking(False)
        if adapter != ANY_ADAPTER:
            raw.bind((adapter, 0))
        number = raw.connect_ex((address, psm))
        if number == errno.EINPROGRESS:
            await _until_writable(raw.fileno())
            number = raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number))
        descriptor = os.dup(raw.fileno())
    finally:
        raw.close()
    connected = socket.socket(AF_BLUETOOTH, socket.SOCK_SEQPACKET, fileno=descriptor)
    connected.setblocking(False)
    return connected


async def discover(adapter: str, seconds: float) -> tuple[tuple[str, str], ...]:
    """Return addresses and names of devices that can be discovered.

    Args:
        adapter: ``hci0``; empty: the first.
        seconds: For how long to look; names take longer.

    Raises:
        ChannelUnavailable: The adapter is named otherwise, or PyBluez fails.
        ChannelTimedOut: It does not end.
    """
    match = _ADAPTER.fullmatch(adapter.lower())
    if adapter and match is None:
        raise ChannelUnavailable(f"adapter {adapter}: PyBluez expects a name, as hci0")
    import bluetooth

    units = min(_MOST_INQUIRY_UNITS, max(1, round(seconds / _INQUIRY_UNIT_S)))
    number = int(match[1]) if match else -1

    def inquire() -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = bluetooth.discover_devices(
            duration=units, lookup_names=True, device_id=number
        )
        return found

    found = await _bounded(inquire, "inquiry", timeout_s=units * _INQUIRY_UNIT_S + _WAIT_S)
    return tuple(sorted(found))


def _advertised(offer: Offer) -> Any:
    import bluetooth

    carrier = bluetooth.BluetoothSocket(bluetooth.RFCOMM)
    try:
        # PyBluez reads the channel from a socket that listens; the caller's own socket is
        # another, so this one has the channel's number and takes no connections.
        carrier.bind((_NOWHERE, offer.channel))
        carrier.listen(1)
        bluetooth.advertise_service(
            carrier,
            SERVICE_NAME,
            service_classes=[SERVICE_UUID],
            description=offer.adapter,
        )
    except BaseException:
        carrier.close()
        raise
    return carrier


async def _until_writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)


async def _bounded(work: Callable[[], _T], what: str, *, timeout_s: float = _WAIT_S) -> _T:
    """Do what waits in a thread that does not keep the process, and wait only so long."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: OSError | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except OSError as error:
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, daemon=True).start()
    try:
        async with asyncio.timeout(timeout_s):
            return await done
    except TimeoutError as error:
        raise ChannelTimedOut(f"{what}: no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise ChannelUnavailable(f"{what}: {error}") from error
