"""Our record through BlueZ's D-Bus profile interface."""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from retexo_fl.additions.bluetooth import SERVICE_NAME
from retexo_fl.additions.bluetooth.bus import BLUEZ, Bus, open_bus
from retexo_fl.additions.bluetooth.sdp import Offer, record_xml
from retexo_fl.errors import ChannelError

if TYPE_CHECKING:
    from dbus_fast import Message, Variant

logger = logging.getLogger(__name__)

_MANAGER: Final = "org.bluez.ProfileManager1"
_OWNER_CHANGED: Final = "NameOwnerChanged"
_RULE: Final = (
    "type='signal',sender='org.freedesktop.DBus',interface='org.freedesktop.DBus',"
    f"member='{_OWNER_CHANGED}',arg0='{BLUEZ}'"
)
_numbers = itertools.count()


class BluezPublication:
    """A record that BlueZ holds for this process; given anew when bluetoothd is started anew.

    BlueZ listens at no channel for us: the record has none of its own, only the one in its text.

    Args:
        bus: Connection for this alone; the record goes with it.
        offer: The record's content.
    """

    def __init__(self, bus: Bus, offer: Offer) -> None:
        self._bus = bus
        self._offer = offer
        self._path = f"/retexo/service{next(_numbers)}"
        # BlueZ takes a UUID once, and a machine may have an agent for each adapter: the record
        # holds the service's own, and BlueZ files it under a unique one.
        self._filed_under = str(uuid.uuid4())
        self._again: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def begin(self) -> None:
        """Give the record to BlueZ, and watch whether it needs it again.

        Raises:
            ChannelUnavailable: BlueZ does not run or refuses.
            ChannelTimedOut: It does not answer.
        """
        self._bus.on_message(self._hear)
        await self._bus.subscribe(_RULE)
        await self._register()

    async def close(self) -> None:
        """See :class:`~retexo_fl.additions.bluetooth.directory.Publication`."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._again:
            task.cancel()
        # BlueZ drops what a connection registered some time after the connection's end; asked to,
        # it does so before it answers.
        with suppress(ChannelError):
            await self._bus.ask(
                "/org/bluez", f"{_MANAGER}.UnregisterProfile", self._path, signature="o"
            )
        await self._bus.close()

    async def _register(self) -> None:
        await self._bus.call(
            "/org/bluez",
            f"{_MANAGER}.RegisterProfile",
            self._path,
            self._filed_under,
            _options(self._offer),
            signature="osa{sv}",
        )

    async def _register_again(self) -> None:
        try:
            await self._register()
        except ChannelError as error:
            logger.warning("bluetooth: the record was lost when bluetoothd restarted: %s", error)

    def _hear(self, message: Message) -> bool:
        if message.member == _OWNER_CHANGED and _new_owner(message.body):
            task = asyncio.ensure_future(self._register_again())
            self._again.add(task)
            task.add_done_callback(self._again.discard)
        return False


async def publish(offer: Offer) -> BluezPublication:
    """Publish a record on every adapter of this machine.

    Raises:
        ChannelUnavailable: BlueZ or a part of it is missing; the message says which.
        ChannelTimedOut: BlueZ does not answer.
    """
    bus = await open_bus()
    publication = BluezPublication(bus, offer)
    try:
        await publication.begin()
    except BaseException:
        await bus.close()
        raise
    return publication


def _new_owner(body: list[Any]) -> bool:
    return len(body) == 3 and body[0] == BLUEZ and bool(body[2])


def _options(offer: Offer) -> dict[str, Variant]:
    from dbus_fast import Variant

    return {
        "Name": Variant("s", SERVICE_NAME),
        "Role": Variant("s", "server"),
        "ServiceRecord": Variant("s", record_xml(offer)),
    }
