"""Bluetooth: what this machine has of it, and whether its agent can listen there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from retexo_fl.bluetooth.hci import local_adapters
from retexo_fl.bluetooth.presence import MissingPart, missing_for_discovery, missing_for_sockets
from retexo_fl.bluetooth.sockets import ANY_ADAPTER, FREE_CHANNEL, Security, rfcomm_sockets
from retexo_fl.channels.addresses import AUTOMATIC_BLUETOOTH, parse_bluetooth
from retexo_fl.channels.transports.bluetooth import check_can_listen
from retexo_fl.doctor.finding import Finding, absent, bad, doubtful, good
from retexo_fl.errors import ChannelUnavailable

_THING: Final = "bluetooth"


def examine_bluetooth(*, wanted: bool) -> Iterator[Finding]:
    """Look at the kernel, Python, the adapter and the services that Bluetooth takes.

    Args:
        wanted: The client listens at a Bluetooth address, or a peer has one.
    """
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


def _joined(missing: tuple[MissingPart, ...]) -> str:
    return "; ".join(part.seen for part in missing)


def _adapters() -> str:
    return ", ".join(
        f"{adapter.name} {adapter.address}{'' if adapter.is_up else ' (switched off)'}"
        for adapter in local_adapters()
    )


def _library() -> str:
    return "Python" if (library := rfcomm_sockets().library) == "standard library" else library
