"""Bluetooth on a machine that has none: what is said, by whom, and what goes on."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from retexo_fl.additions.bluetooth import presence
from retexo_fl.additions.bluetooth.transport import BluetoothTransport
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.limits import LinkLimits
from retexo_fl.channels.network import PeerNetwork
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.channels.transports.tcp import TcpTransport
from retexo_fl.errors import ChannelUnavailable, IdentityError
from tests.support.peer_networks import (
    JOB,
    QUICK,
    Client,
    Plan,
    World,
    arrive,
    frames_of,
    header_of,
    run,
    running,
    until,
)
from tests.support.virtual_loop import VirtualLoop
from tests.support.without_bluetooth import take_bluetooth_away

DEVICE = "bluetooth://AA:BB:CC:DD:EE:FF/3"
NO_KERNEL = r"the kernel has no Bluetooth \(load it: modprobe -a bluetooth rfcomm; .*\)"
NO_SOCKETS = r"this Python was built without Bluetooth sockets \(.*platypush-pybluez.*\)"


@pytest.fixture(autouse=True)
def _none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    take_bluetooth_away(monkeypatch, tmp_path)


def _client(world: World, client: int, roster: Roster, listen: tuple[str, ...]) -> Client:
    depot = BlockDepot(world.folder / f"depot-{client}", client)
    depot.admit_job(JOB, Plan())
    network = PeerNetwork(
        world.identity(client),
        roster,
        depot,
        listen=listen,
        limits=QUICK,
        transports={"tcp": TcpTransport(), "bluetooth": BluetoothTransport()},
    )
    return Client(identity=world.identity(client), depot=depot, network=network)


def _roster(world: World, addresses: tuple[str, ...]) -> Roster:
    """Return the world's roster, where client 1 has other addresses."""
    first, second = (world.roster.members[client] for client in (0, 1))
    other = Member(client=1, certificate_pem=second.certificate_pem, addresses=addresses)
    return Roster.of([first, other])


@pytest.mark.parametrize("address", ["bluetooth://any/3", DEVICE])
def test_an_address_that_is_demanded_names_all_missing_parts(address: str) -> None:
    with pytest.raises(ChannelUnavailable, match=f"^{address}: {NO_KERNEL}; {NO_SOCKETS}$"):
        asyncio.run(BluetoothTransport().listen(address))


def test_a_free_channel_demands_what_others_find_it_by() -> None:
    wanted = f"^bluetooth://any: {NO_KERNEL}; {NO_SOCKETS}; there is no D-Bus system bus, "
    with pytest.raises(ChannelUnavailable, match=wanted):
        asyncio.run(BluetoothTransport().listen("bluetooth://any"))


def test_a_peer_that_has_a_bluetooth_address_only_is_told_about() -> None:
    with pytest.raises(ChannelUnavailable, match=f"^{DEVICE}: {NO_KERNEL}; {NO_SOCKETS}$"):
        asyncio.run(BluetoothTransport().connect(DEVICE, 1))


def test_an_address_that_is_none_is_refused_first() -> None:
    with pytest.raises(IdentityError, match="channel from 1 to 30"):
        asyncio.run(BluetoothTransport().listen("bluetooth://any/31"))


def test_the_automatic_address_warns_once_and_all_else_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World.of(tmp_path, 2)
    header = header_of(0, 1)

    async def story() -> None:
        sender = world.client(0)
        listen = ("bluetooth:", world.address(1))
        receiver = _client(world, 1, world.roster, listen)
        async with running(sender, receiver):
            sender.depot.send_block(header.key, frames_of(header))
            await arrive(receiver, header.key)
            assert receiver.network.report().listening == listen

    with caplog.at_level(logging.WARNING):
        run(story())
    said = [record.getMessage() for record in caplog.records if "bluetooth" in record.getMessage()]
    assert len(said) == 1
    assert re.match("bluetooth: connection: .*without it: the kernel .*Bluetooth", said[0])


def test_what_is_missing_is_told_again_only_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loop = VirtualLoop()
    listener = loop.run_until_complete(BluetoothTransport().listen("bluetooth:"))
    with pytest.raises(ChannelUnavailable, match="the kernel has no Bluetooth"):
        loop.run_until_complete(listener.accept())
    accepting = loop.create_task(listener.accept())
    loop.pause(3600.0)
    assert not accepting.done()
    monkeypatch.setattr(presence, "_BLUETOOTH_CLASS", tmp_path)
    with pytest.raises(ChannelUnavailable, match="RestrictAddressFamilies"):
        loop.run_until_complete(accepting)
    assert listener.address == "bluetooth:"
    loop.close()


def test_peers_addresses_here_are_passed_over_for_the_next(tmp_path: Path) -> None:
    world = World.of(tmp_path, 2)
    roster = _roster(world, (DEVICE, world.address(1)))
    header = header_of(0, 1)

    async def story() -> None:
        sender = _client(world, 0, roster, ())
        receiver = world.client(1)
        async with running(sender, receiver):
            sender.depot.send_block(header.key, frames_of(header))
            await arrive(receiver, header.key)
            assert sender.network.report().peers[1].channel == "tcp"

    run(story())


def test_why_a_peer_is_not_met_stands_in_the_report(tmp_path: Path) -> None:
    world = World.of(tmp_path, 2)
    header = header_of(0, 1)

    async def story() -> None:
        sender = _client(world, 0, _roster(world, (DEVICE,)), ())
        async with running(sender):
            sender.depot.send_block(header.key, frames_of(header))
            await until(lambda: bool(sender.network.report().peers[1].last_error))
            assert "the kernel has no Bluetooth" in sender.network.report().peers[1].last_error

    run(story())


def test_a_radio_gets_more_time_and_smaller_pieces_than_a_cable() -> None:
    cable, radio = LinkLimits(), LinkLimits().on("bluetooth")
    assert radio.connect_s > cable.connect_s
    assert radio.handshake_s > cable.handshake_s
    assert radio.session.greeting_s > cable.session.greeting_s
    assert radio.session.least_bytes_per_s < cable.session.least_bytes_per_s
    assert radio.piece_bytes < cable.piece_bytes
    # Whoever walked away is missed within 40 s.
    assert radio.session.ping_after_s + radio.session.pong_within_s <= 40
    assert radio.stall_s <= 40


def test_what_tests_set_for_all_channels_holds_for_the_radio() -> None:
    assert QUICK.on("bluetooth").retry_most_s == QUICK.retry_most_s
    assert LinkLimits().on("tcp") == LinkLimits()
