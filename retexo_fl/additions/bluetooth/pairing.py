"""Pairing: two devices agree on a key for the air between them, once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from retexo_fl.additions.bluetooth.bluez import Adapter, Bluez, Device
from retexo_fl.errors import ChannelError, ChannelTimedOut, ChannelUnavailable, PeerRefused

if TYPE_CHECKING:
    from dbus_fast import Message

_PATH: Final = "/retexo/agent"
_AGENT: Final = "org.bluez.Agent1"
_MANAGER: Final = "org.bluez.AgentManager1"
_REFUSED: Final = "org.bluez.Error.Rejected"
#: For a person to compare digits, and for two devices to compute keys.
_AGREE_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.3

#: Shows digits of a device to a person, and returns whether the other device shows the same.
Comparison = Callable[[str, str], bool]


@dataclass(slots=True, kw_only=True)
class PairingAgent:
    """Answers for this machine when BlueZ asks whether to pair.

    Attributes:
        compare: Asks a person; None: no person is there, devices pair without comparing.
        only: The one device that may pair; empty: any.
        compared: Devices whose digits a person found equal.
    """

    compare: Comparison | None = None
    only: str = ""
    compared: set[str] = field(default_factory=set)

    @property
    def capability(self) -> str:
        """What this machine can do, for BlueZ."""
        return "NoInputNoOutput" if self.compare is None else "DisplayYesNo"

    async def allows(self, member: str, body: list[Any]) -> bool:
        """Answer one question of BlueZ's."""
        device = _address(body)
        if self.only not in ("", device):
            return False
        if member == "RequestAuthorization":
            self.compared.discard(device)
            # Pairing without digits, which a person who waits for digits has not agreed to.
            return self.compare is None
        if member != "RequestConfirmation" or self.compare is None:
            return False
        # Digits of an earlier, failed pairing with this device do not count.
        self.compared.discard(device)
        digits = f"{body[1]:06d}"
        if not await _in_thread(self.compare, device, digits):
            return False
        self.compared.add(device)
        return True


async def pair(
    bluez: Bluez, adapter: Adapter, address: str, agent: PairingAgent, seconds: float
) -> Device:
    """Pair with a device that waits for it, and trust it.

    A device that is paired already is trusted, no more.

    Args:
        bluez: BlueZ.
        adapter: Through which.
        address: The device.
        agent: Answers for this machine.
        seconds: How long to look for it.

    Raises:
        ChannelTimedOut: It was not found, or did not answer.
        ChannelUnavailable: A part of Bluetooth is missing here.
        PeerRefused: One of the two did not agree.
    """
    device = await bluez.find(adapter, address)
    if device is None or not device.is_paired:
        async with _registered(bluez, agent):
            device = await _heard(bluez, adapter, address, seconds)
            await _agree(bluez, device)
            device = await bluez.known(adapter, address)
            await _check_compared(bluez, adapter, device, agent)
    await bluez.trust(device)
    return replace(device, is_trusted=True)


async def accept(bluez: Bluez, adapter: Adapter, agent: PairingAgent, seconds: float) -> Device:
    """Let one device find this machine and pair with it, and trust it.

    Afterwards the machine can be found and paired with as before; if this process is killed,
    ``seconds`` after it began. A device that ``agent`` does not allow is forgotten again.

    Raises:
        ChannelTimedOut: None has paired in time.
        ChannelUnavailable: A part of Bluetooth is missing here.
    """
    known = {item.address for item in await bluez.devices(adapter) if item.is_paired}
    if agent.only in known:
        device = await bluez.known(adapter, agent.only)
    else:
        async with (
            _registered(bluez, agent, for_others=True),
            _open_for(bluez, adapter, seconds),
        ):
            device = await _newcomer(bluez, adapter, agent, known, seconds)
    await bluez.trust(device)
    return replace(device, is_trusted=True)


async def _heard(bluez: Bluez, adapter: Adapter, address: str, seconds: float) -> Device:
    """Return the device as soon as it is found now: one that BlueZ remembers may be away."""
    for device in await bluez.scan(adapter, seconds, until=address):
        if device.address == address:
            return device
    raise ChannelTimedOut(
        f"{address}: not heard within {seconds:g} s; expected it in range and waiting: "
        "retexo bluetooth pair --accept"
    )


async def _agree(bluez: Bluez, device: Device) -> None:
    try:
        reply = await bluez.bus.ask(device.path, "org.bluez.Device1.Pair", timeout_s=_AGREE_S)
    except ChannelTimedOut:
        await bluez.bus.ask(device.path, "org.bluez.Device1.CancelPairing")
        raise
    kind = reply.error.removeprefix("org.bluez.Error.")
    match kind:
        case "" | "AlreadyExists":
            return
        case "AuthenticationFailed" | "AuthenticationRejected" | "AuthenticationCanceled":
            raise PeerRefused(
                f"{device.address}: pairing failed ({reply.text}); if one of the two is "
                "still paired with the other, remove it there: retexo bluetooth remove"
            )
        case "ConnectionAttemptFailed" | "AuthenticationTimeout":
            raise ChannelTimedOut(f"{device.address}: did not answer ({reply.text})")
        case _:
            raise ChannelUnavailable(f"{device.address}: {reply.sentence()}")


async def _check_compared(
    bluez: Bluez, adapter: Adapter, device: Device, agent: PairingAgent
) -> None:
    """Undo a pairing without digits where a person waits for digits."""
    if agent.compare is None or device.address in agent.compared:
        return
    await bluez.remove(adapter, device)
    raise PeerRefused(
        f"{device.address}: paired without comparing digits, so the pairing was removed; "
        "expected --confirm on both devices"
    )


async def _newcomer(
    bluez: Bluez, adapter: Adapter, agent: PairingAgent, known: set[str], seconds: float
) -> Device:
    """Wait for a device to pair that was not paired before."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                for device in await bluez.devices(adapter):
                    if not device.is_paired or device.address in known:
                        continue
                    if agent.only in ("", device.address):
                        await _check_compared(bluez, adapter, device, agent)
                        return device
                    # Where no digits are compared the kernel agrees with anyone.
                    await bluez.remove(adapter, device)
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError as error:
        who = agent.only or "a device"
        raise ChannelTimedOut(
            f"{adapter.name}: expected {who} to pair within {seconds:g} s; there: "
            f"retexo bluetooth pair {adapter.address}"
        ) from error


@asynccontextmanager
async def _open_for(bluez: Bluez, adapter: Adapter, seconds: float) -> AsyncIterator[None]:
    """Have the adapter discoverable and pairable for the body, and at most so long."""
    # BlueZ keeps the time itself, in case this process is killed.
    limit_s = max(1, round(seconds))
    opened: dict[str, bool | int] = {
        "DiscoverableTimeout": limit_s,
        "PairableTimeout": limit_s,
        "Pairable": True,
        "Discoverable": True,
    }
    before: dict[str, bool | int] = {
        "Discoverable": adapter.is_discoverable,
        "Pairable": adapter.is_pairable,
        "DiscoverableTimeout": adapter.discoverable_limit_s,
        "PairableTimeout": adapter.pairable_limit_s,
    }
    try:
        for name, value in opened.items():
            await bluez.set_adapter(adapter, name, value)
        yield
    finally:
        for name, value in before.items():
            # Where BlueZ does not answer, its own time ends what was opened.
            with suppress(ChannelError):
                await bluez.set_adapter(adapter, name, value)


@asynccontextmanager
async def _registered(
    bluez: Bluez, agent: PairingAgent, *, for_others: bool = False
) -> AsyncIterator[None]:
    """Have BlueZ ask ``agent`` about pairings that this process begins, or those of others too."""
    answering: set[asyncio.Task[None]] = set()

    def hear(message: Message) -> bool:
        if message.path != _PATH or message.interface != _AGENT:
            return False
        task = asyncio.ensure_future(_answer(bluez, agent, message))
        answering.add(task)
        task.add_done_callback(answering.discard)
        return True

    bluez.bus.on_message(hear)
    await bluez.bus.call(
        "/org/bluez", f"{_MANAGER}.RegisterAgent", _PATH, agent.capability, signature="os"
    )
    try:
        if for_others:
            default = f"{_MANAGER}.RequestDefaultAgent"
            await bluez.bus.call("/org/bluez", default, _PATH, signature="o")
        yield
    finally:
        # Without an answer BlueZ forgets the agent with our connection.
        with suppress(ChannelError):
            await bluez.bus.ask("/org/bluez", f"{_MANAGER}.UnregisterAgent", _PATH, signature="o")
        bluez.bus.forget(hear)
        for task in answering:
            task.cancel()


async def _answer(bluez: Bluez, agent: PairingAgent, message: Message) -> None:
    from dbus_fast import Message as Made

    if message.member in ("Release", "Cancel") or await agent.allows(
        str(message.member), message.body
    ):
        answer = Made.new_method_return(message)
    else:
        answer = Made.new_error(message, _REFUSED, "not agreed to")
    bluez.bus.send(answer)


def _address(body: list[Any]) -> str:
    """Return the address of the device that a question is about: the end of its path."""
    path = str(body[0]) if body else ""
    return path.rpartition("/dev_")[2].replace("_", ":")


async def _in_thread(compare: Comparison, device: str, digits: str) -> bool:
    """Ask a person, who may never answer: the thread does not keep the process."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bool] = loop.create_future()

    def settle(answer: bool) -> None:
        if not answered.done():
            answered.set_result(answer)

    def ask() -> None:
        answer = compare(device, digits)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, answer)

    threading.Thread(target=ask, daemon=True).start()
    return await answered
