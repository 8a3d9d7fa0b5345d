"""Bluetooth: what this machine has of it, and whether its agent can listen there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Final

from retexo_fl.addition import BLUETOOTH
from retexo_fl.additions.bluetooth.agent import own_adapter
from retexo_fl.additions.bluetooth.hci import local_adapters
from retexo_fl.additions.bluetooth.presence import (
    MissingPart,
    missing_for_discovery,
    missing_for_sockets,
)
from retexo_fl.additions.bluetooth.sockets import (
    ANY_ADAPTER,
    FREE_CHANNEL,
    Security,
    rfcomm_sockets,
)
from retexo_fl.additions.bluetooth.transport import BluetoothTransport, check_can_listen
from retexo_fl.channels.addresses import AUTOMATIC_BLUETOOTH, parse_bluetooth
from retexo_fl.channels.limits import LinkLimits
from retexo_fl.doctor.finding import Finding, absent, bad, doubtful, good
from retexo_fl.errors import ChannelUnavailable, IdentityError

_THING: Final = "bluetooth"


def examine(listen: Iterable[str], known: Iterable[str]) -> Iterator[Finding]:
    """Look at the kernel, Python, the adapter and the services that Bluetooth takes.

    Args:
        listen: Addresses that the client listens at.
        known: Addresses in its roster.
    """
    wanted = any(map(BLUETOOTH.serves, chain(listen, known)))
    missing = missing_for_sockets()
    if missing and not wanted:
        yield absent(_THING, _joined(missing), "; ".join(part.remedy for part in missing))
        return
    for part in missing:
        yield doubtful(f"{_THING} {part.name}", part.seen, part.remedy)
    if not missing:
        yield good(_THING, f"{_adapters()}; sockets of {_library()}")
    for part in missing_for_discovery():
        seen = f"{part.seen}; needed to pair, and to be found without a channel in the roster"
        judge = doubtful if wanted else absent
        yield judge(f"{_THING} {part.name}", seen, part.remedy)


def judge_listening(address: str) -> Finding:
    """Return whether an agent that does not run yet could listen at a Bluetooth address.

    Raises:
        IdentityError: It is none.
    """
    wanted = parse_bluetooth(address, to_listen=True)
    try:
        check_can_listen(wanted)
    except ChannelUnavailable as error:
        if address == AUTOMATIC_BLUETOOTH:
            seen = "not yet: the agent goes on without Bluetooth until it is available"
            return doubtful(address, seen, "see the lines on bluetooth above")
        seen = str(error).removeprefix(f"{wanted}: ")
        return bad(address, seen, f"repair it, or listen at {AUTOMATIC_BLUETOOTH}")
    try:
        rfcomm_sockets().listen(
            wanted.adapter or ANY_ADAPTER,
            wanted.channel or FREE_CHANNEL,
            security=Security.MEDIUM,
        ).close()
    except OSError as error:
        return bad(address, error.strerror or str(error), "choose another channel, 1 to 30")
    return good(address, "free")


def connected(address: str, listen: Iterable[str]) -> socket.socket:
    """Connect to a peer as an agent would that listens at some addresses.

    Returns:
        A socket that does not block.

    Raises:
        ChannelUnavailable: Nobody answers there, or a part is missing here.
        TimeoutError: It takes too long.
    """
    adapter = ""
    with suppress(IdentityError):  # which is reported with the ports
        adapter = own_adapter(listen)

    async def connect() -> socket.socket:
        async with asyncio.timeout(LinkLimits().on("bluetooth").connect_s):
            return await BluetoothTransport(adapter=adapter).open(address)

    return asyncio.run(connect())


def _joined(missing: tuple[MissingPart, ...]) -> str:
    return "; ".join(part.seen for part in missing)


def _adapters() -> str:
    return ", ".join(
        f"{adapter.name} {adapter.address}{'' if adapter.is_up else ' (switched off)'}"
        for adapter in local_adapters()
    )


def _library() -> str:
    return "Python" if (library := rfcomm_sockets().library) == "standard library" else library
