"""Calls to BlueZ over the D-Bus system bus: each within a time, each failure with a name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from retexo_fl.errors import ChannelTimedOut, ChannelUnavailable

if TYPE_CHECKING:
    from dbus_fast import Message
    from dbus_fast.aio import MessageBus

BLUEZ: Final = "org.bluez"
#: For calls that only ask or set something on this machine.
CALL_S: Final = 10.0
_DAEMON: Final = "org.freedesktop.DBus"
#: Errors that begin so: the bus has not found bluetoothd, or could not start it.
_NO_DAEMON: Final = (
    "org.freedesktop.DBus.Error.ServiceUnknown",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
    "org.freedesktop.DBus.Error.Spawn.",
    "org.freedesktop.systemd1.",
)
#: What BlueZ and the bus call errors, and what to do about them.
_REMEDIES: Final = {
    "org.freedesktop.DBus.Error.NoReply": "bluetoothd ended (see journalctl -u bluetooth)",
    "org.freedesktop.DBus.Error.AccessDenied": (
        "D-Bus refuses this user (add the user to the group bluetooth, or run it as root)"
    ),
    "org.bluez.Error.NotReady": "the adapter is switched off (bluetoothctl power on)",
    "org.bluez.Error.Blocked": "the adapter is blocked (rfkill unblock bluetooth)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a call came back with.

    Attributes:
        error: Name of the error, as ``org.bluez.Error.AlreadyExists``; empty: none.
        text: The error's message.
        values: The results.
    """

    error: str
    text: str
    values: tuple[Any, ...]

    def sentence(self) -> str:
        """Return what is wrong and what helps."""
        if self.error.startswith(_NO_DAEMON):
            return "bluetoothd does not run (apt install bluez && systemctl enable --now bluetooth)"
        known = _REMEDIES.get(self.error)
        return known or f"BlueZ answers {self.error}: {self.text}"


class Bus:
    """A connection to the system bus. Made by :func:`system_bus` or :func:`open_bus`."""

    def __init__(self, connection: MessageBus) -> None:
        self._connection = connection

    async def ask(
        self,
        path: str,
        member: str,
        *arguments: Any,
        signature: str = "",
        timeout_s: float = CALL_S,
        destination: str = BLUEZ,
    ) -> Reply:
        """Call a method, ``INTERFACE.NAME``, of the object at ``path``.

        Raises:
            ChannelTimedOut: No answer came in time.
            ChannelUnavailable: The bus has closed.
        """
        from dbus_fast import Message, MessageType

        interface, _, name = member.rpartition(".")
        message = Message(
            destination=destination,
            path=path,
            interface=interface,
            member=name,
            signature=signature,
            body=list(arguments),
        )
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._connection.call(message)
        except TimeoutError as error:
            raise ChannelTimedOut(f"{path}: no answer to {name} within {timeout_s:g} s") from error
        except (OSError, EOFError) as error:
            raise ChannelUnavailable(f"lost the D-Bus system bus ({error})") from error
        if answer is None:
            raise ChannelUnavailable("lost the D-Bus system bus")
        if answer.message_type is MessageType.ERROR:
            text = str(answer.body[0]) if answer.body else "no reason"
            return Reply(error=answer.error_name or "an error", text=text, values=())
        return Reply(error="", text="", values=tuple(answer.body))

    async def call(
        self,
        path: str,
        member: str,
        *arguments: Any,
        signature: str = "",
        timeout_s: float = CALL_S,
        destination: str = BLUEZ,
    ) -> tuple[Any, ...]:
        """Call a method that is expected to succeed, and return its results.

        Raises:
            ChannelTimedOut: No answer came in time.
            ChannelUnavailable: It failed; the message says what helps.
        """
        reply = await self.ask(
            path,
            member,
            *arguments,
            signature=signature,
            timeout_s=timeout_s,
            destination=destination,
        )
        if reply.error:
            raise ChannelUnavailable(reply.sentence())
        return reply.values

    def on_message(self, handler: Callable[[Message], Message | bool | None]) -> None:
        """Have ``handler`` see every message; what it returns is sent as the answer."""
        self._connection.add_message_handler(handler)

    def forget(self, handler: Callable[[Message], Message | bool | None]) -> None:
        """End what :meth:`on_message` began."""
        self._connection.remove_message_handler(handler)

    def send(self, message: Message) -> None:
        """Send a message that expects no answer."""
        if self._connection.connected:
            self._connection.send(message)

    async def subscribe(self, rule: str) -> None:
        """Have signals that match ``rule`` sent here.

        Raises:
            ChannelTimedOut: No answer came in time.
            ChannelUnavailable: The bus refuses.
        """
        await self.call(
            "/org/freedesktop/DBus",
            f"{_DAEMON}.AddMatch",
            rule,
            signature="s",
            destination=_DAEMON,
        )

    async def close(self) -> None:
        """End the connection. Never raises; again does nothing."""
        self._connection.disconnect()
        with suppress(TimeoutError, OSError, EOFError):
            async with asyncio.timeout(CALL_S):
                await self._connection.wait_for_disconnect()  # type: ignore[no-untyped-call]


async def open_bus() -> Bus:
    """Connect to the system bus.

    Raises:
        ChannelUnavailable: There is none, or dbus-fast is missing; the message says how to get it.
    """
    try:
        from dbus_fast import AuthError, BusType, InvalidAddressError
        from dbus_fast.aio import MessageBus
    except ImportError as error:
        raise ChannelUnavailable(
            "the package dbus-fast is not installed (pip install dbus-fast)"
        ) from error
    try:
        async with asyncio.timeout(CALL_S):
            connection = await MessageBus(bus_type=BusType.SYSTEM).connect()
    except (OSError, EOFError, AuthError, InvalidAddressError) as error:
        reason = getattr(error, "strerror", None) or str(error) or f"timeout after {CALL_S:g} s"
        raise ChannelUnavailable(
            f"the D-Bus system bus does not answer: {reason} "
            "(apt install dbus bluez; in a container, mount the host's /run/dbus)"
        ) from error
    return Bus(connection)


@asynccontextmanager
async def system_bus() -> AsyncIterator[Bus]:
    """Have a connection to the system bus for the body.

    Raises:
        ChannelUnavailable: As :func:`open_bus`.
    """
    bus = await open_bus()
    try:
        yield bus
    finally:
        await bus.close()
