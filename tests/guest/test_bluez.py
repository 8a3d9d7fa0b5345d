"""BlueZ as it is: two adapters of one machine pair, reach each other and read each other's record.

Runs in the virtual machine, with D-Bus and bluetoothd (``tests/support/bluetooth_vm``).
"""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from retexo_fl.additions.bluetooth.bluez import Adapter, Bluez, Device
from retexo_fl.additions.bluetooth.bus import system_bus
from retexo_fl.additions.bluetooth.directory import service_directory
from retexo_fl.additions.bluetooth.pairing import PairingAgent, accept, pair
from retexo_fl.additions.bluetooth.sockets import Security, rfcomm_sockets
from retexo_fl.errors import ChannelTimedOut, ChannelUnavailable, PeerRefused
from tests.guest.bluetoothd import restart_bluetoothd

FIRST, SECOND = "00:AA:01:00:00:00", "00:AA:01:01:00:01"
ABSENT = "00:AA:01:77:00:00"
NOTICE_S = 20.0
CHANNEL = 11
_SOL_RFCOMM, _RFCOMM_LM, _AUTHENTICATED_ENCRYPTED = 18, 3, 0x2 | 0x4


class _Ends:
    """The two devices: an adapter each, and a connection to BlueZ of its own."""

    def __init__(self, first: Bluez, second: Bluez) -> None:
        self.first, self.second = first, second

    async def adapters(self) -> tuple[Adapter, Adapter]:
        return await self.first.adapter(FIRST), await self.second.adapter(SECOND)

    async def pair(self, waiting: PairingAgent, calling: PairingAgent) -> tuple[Any, Any]:
        """Have the second pair with the first, and return what each ended with."""
        own, other = await self.adapters()
        accepting = asyncio.create_task(accept(self.first, own, waiting, NOTICE_S))
        await until(self._is_open)
        called = await _outcome(pair(self.second, other, FIRST, calling, NOTICE_S))
        if isinstance(called, BaseException):
            accepting.cancel()
        return await _outcome(accepting), called

    async def _is_open(self) -> bool:
        own, _ = await self.adapters()
        return own.is_discoverable and own.is_pairable

    async def are_paired(self) -> bool:
        own, other = await self.adapters()
        there = await self.first.devices(own) + await self.second.devices(other)
        return any(device.is_paired for device in there)

    async def part(self) -> None:
        """Have both forget each other."""
        for bluez, wanted in ((self.first, FIRST), (self.second, SECOND)):
            adapter = await bluez.adapter(wanted)
            for device in await bluez.devices(adapter):
                await bluez.remove(adapter, device)
        # The kernel keeps a link for seconds, with what its last pairing could do.
        await until(_no_link)


async def _no_link() -> bool:
    shown = await asyncio.to_thread(subprocess.check_output, ["hcitool", "con"], text=True)
    return "ACL" not in shown


async def _outcome(work: Awaitable[Device]) -> Any:
    return (await asyncio.gather(work, return_exceptions=True))[0]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(NOTICE_S):
        while not await condition():
            await asyncio.sleep(0.1)


@asynccontextmanager
async def both() -> AsyncIterator[_Ends]:
    async with system_bus() as one, system_bus() as other:
        ends = _Ends(Bluez(one), Bluez(other))
        await ends.part()
        yield ends


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(90.0):
            await work

    asyncio.run(bounded())


async def link_mode(security: Security) -> int:
    """Connect the second to the first at a channel, and return what the link has."""
    loop = asyncio.get_running_loop()
    listening = rfcomm_sockets().listen(FIRST, CHANNEL, security=security)
    try:
        accepting = asyncio.create_task(listening.accept())
        connected = await rfcomm_sockets().connect(
            FIRST, CHANNEL, adapter=SECOND, security=security
        )
        accepted, device = await accepting
        with connected, accepted:
            await loop.sock_sendall(connected, b"hello")
            assert await loop.sock_recv(accepted, 5) == b"hello"
            assert device == SECOND
            mode = connected.getsockopt(_SOL_RFCOMM, _RFCOMM_LM, 4)
    finally:
        listening.close()
    number: int = struct.unpack("I", mode)[0]
    return number


def test_a_person_decides_by_digits() -> None:
    """The first of all: the emulated controllers remember pairings that did not end well."""
    digits: list[tuple[str, str]] = []

    def agree(device: str, shown: str) -> bool:
        digits.append((device, shown))
        return True

    async def work() -> None:
        async with both() as ends:
            # Nobody is at the first: no digits, and the person at the second is told so.
            _, at_second = await ends.pair(PairingAgent(), PairingAgent(compare=agree))
            assert isinstance(at_second, PeerRefused), at_second
            assert "paired without comparing digits" in str(at_second)
            await ends.part()
            agents = PairingAgent(compare=agree), PairingAgent(compare=agree)
            at_first, at_second = await ends.pair(*agents)
            assert (at_first.is_paired, at_second.is_paired) == (True, True)
            assert (agents[0].compared, agents[1].compared) == ({SECOND}, {FIRST})
            assert sorted(device for device, _ in digits) == [FIRST, SECOND]
            assert len({shown for _, shown in digits}) == 1
            assert len(digits[0][1]) == 6
            await ends.part()
            refusing = PairingAgent(compare=lambda _device, _digits: False)
            _, at_second = await ends.pair(refusing, PairingAgent(compare=agree))
            assert isinstance(at_second, PeerRefused), at_second
            assert not await ends.are_paired()

    run(work())


def test_unattended_pairing_gives_an_encrypted_link() -> None:
    async def work() -> None:
        async with both() as ends:
            before = await ends.adapters()
            at_first, at_second = await ends.pair(PairingAgent(only=SECOND), PairingAgent())
            assert (at_first.address, at_first.is_trusted) == (SECOND, True), at_first
            assert (at_second.address, at_second.is_paired) == (FIRST, True), at_second
            # As it was before: nobody else finds it, or pairs with it.
            assert await ends.adapters() == before
            found = await ends.first.known(before[0], SECOND)
            assert (found.is_paired, found.is_trusted) == (True, True)
            assert await link_mode(Security.MEDIUM) & _AUTHENTICATED_ENCRYPTED == (
                _AUTHENTICATED_ENCRYPTED
            )
            # Again is no error, and needs nobody at the other end.
            again = await pair(ends.second, before[1], FIRST, PairingAgent(), NOTICE_S)
            assert again.is_trusted

    run(work())


def test_whoever_is_not_expected_is_forgotten() -> None:
    async def work() -> None:
        async with both() as ends:
            own, _ = await ends.adapters()
            accepting = asyncio.create_task(
                accept(ends.first, own, PairingAgent(only=ABSENT), NOTICE_S)
            )
            await until(ends._is_open)
            other = await ends.second.adapter(SECOND)
            await _outcome(pair(ends.second, other, FIRST, PairingAgent(), NOTICE_S))

            async def is_forgotten() -> bool:
                stranger = await ends.first.find(own, SECOND)
                return stranger is None or not stranger.is_paired

            await until(is_forgotten)
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)

    run(work())


def test_what_is_not_there_has_a_name() -> None:
    async def work() -> None:
        async with both() as ends:
            own, other = await ends.adapters()
            with pytest.raises(ChannelTimedOut, match=f"{ABSENT}: not heard within 2 s"):
                await pair(ends.second, other, ABSENT, PairingAgent(), 2.0)
            with pytest.raises(ChannelTimedOut, match="hci0: expected a device to pair within 1 s"):
                await accept(ends.first, own, PairingAgent(), 1.0)
            assert await ends.adapters() == (own, other)
            with pytest.raises(ChannelUnavailable, match="hci0 knows no such device"):
                await ends.first.known(own, ABSENT)
            with pytest.raises(ChannelUnavailable, match="adapter hci9: .*expected .*hci0"):
                await ends.first.adapter("hci9")

    run(work())


async def _make_connectable(ends: _Ends, *, is_so: bool = True) -> None:
    for bluez, adapter in zip((ends.first, ends.second), await ends.adapters(), strict=True):
        await bluez.set_adapter(adapter, "Discoverable", is_so)


def test_a_record_is_found_until_it_is_taken_back() -> None:
    async def work() -> None:
        directory = service_directory()
        async with both() as ends:
            await _make_connectable(ends)
            with pytest.raises(ChannelUnavailable, match="no agent there publishes its channel"):
                await directory.find_channel(FIRST, SECOND)
            one = await directory.publish(CHANNEL, FIRST)
            two = await directory.publish(CHANNEL + 1, SECOND)
            assert await directory.find_channel(FIRST, SECOND) == CHANNEL
            assert await directory.find_channel(SECOND, FIRST) == CHANNEL + 1
            assert await directory.find_channel(SECOND) == CHANNEL + 1
            heard = await ends.second.scan(await ends.second.adapter(SECOND), NOTICE_S, until=FIRST)
            assert [(device.address, device.offers_service) for device in heard] == [(FIRST, True)]
            await one.close()
            await one.close()
            with pytest.raises(ChannelUnavailable, match="no agent there publishes its channel"):
                await directory.find_channel(FIRST, SECOND)
            await two.close()
            anywhere = await directory.publish(CHANNEL)
            assert await directory.find_channel(SECOND, FIRST) == CHANNEL
            await anywhere.close()
            await _make_connectable(ends, is_so=False)

    run(work())


def test_pairing_and_record_outlast_bluetoothd() -> None:
    async def work() -> None:
        directory = service_directory()
        async with both() as ends:
            assert (await ends.pair(PairingAgent(), PairingAgent()))[1].is_trusted
        record = await directory.publish(CHANNEL, FIRST)
        await restart_bluetoothd()

        async def is_found() -> bool:
            try:
                return await directory.find_channel(FIRST, SECOND) == CHANNEL
            except ChannelUnavailable:
                return False

        # Nobody can discover it: it answers because the two are paired.
        await until(is_found)
        assert await link_mode(Security.MEDIUM) & _AUTHENTICATED_ENCRYPTED == (
            _AUTHENTICATED_ENCRYPTED
        )
        await record.close()

    run(work())


@pytest.mark.filterwarnings("ignore:'click\\.:DeprecationWarning")
def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.support.cli import CommandLine

    retexo = CommandLine(capsys)
    waiting = threading.Thread(target=run, args=(_wait_for_the_second(),), daemon=True)
    waiting.start()
    scanned = ""
    while FIRST not in scanned:
        scanned = retexo.done("bluetooth", "scan", "--adapter", "hci1", "--seconds", "1")
    paired = retexo.done("bluetooth", "pair", FIRST, "--adapter", "hci1")
    assert "paired with hci1 and trusted" in paired
    assert "not authenticated" in paired
    waiting.join(NOTICE_S)
    listed = json.loads(retexo.done("bluetooth", "list", "--json"))
    assert [adapter["name"] for adapter in listed["adapters"]] == ["hci0", "hci1"]
    assert [(it["address"], it["trusted"]) for it in listed["devices"]] == [
        (SECOND, True),
        (FIRST, True),
    ]
    told = retexo.done("bluetooth", "trust", FIRST, "--adapter", SECOND, "--revoke", "--json")
    assert json.loads(told)["trusted"] is False
    assert retexo.done("bluetooth", "remove", FIRST, "--adapter", "hci1") == f"{FIRST}: removed\n"
    refused = retexo.refused("bluetooth", "trust", FIRST, "--adapter", "hci1")
    assert refused == f"{FIRST}: hci1 knows no such device; see retexo bluetooth list"


async def _wait_for_the_second() -> None:
    async with both() as ends:
        own, _ = await ends.adapters()
        await accept(ends.first, own, PairingAgent(only=SECOND), 3 * NOTICE_S)
