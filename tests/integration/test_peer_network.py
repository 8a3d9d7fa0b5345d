"""Clients exchange blocks over real TLS and TCP, whoever can connect, whatever breaks."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.channels import BlockKey
from retexo_fl.channels.network import PeerNetwork
from retexo_fl.channels.roster import Roster
from retexo_fl.channels.transports.relay import RelayTransport
from retexo_fl.channels.transports.tcp import TcpTransport
from retexo_fl.errors import IdentityError
from retexo_fl.exchange import block_frames, decode_block, encode_block, frames, to_dense
from retexo_fl.exchange.frames import FrameHeader
from retexo_fl.exchange.parcels import STREAM_BYTES, Parcel, ParcelKind
from tests.support.loopback import free_ports
from tests.support.peer_networks import (
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


def _is_connected(client: Client) -> bool:
    (peer,) = client.network.report().peers.values()
    return peer.is_connected


def _send(sender: Client, receiver: int, *, layer: int = 0, frame_bytes: int = 1024) -> BlockKey:
    header = header_of(sender.depot.client, receiver, layer=layer)
    key = header.key
    sender.depot.send_block(key, frames_of(header, frame_bytes=frame_bytes))
    return key


def _is_whole(receiver: Client, key: BlockKey) -> bool:
    header = header_of(key.sender, key.receiver, layer=key.layer)
    return receiver.depot.receive_block(key) == b"".join(frames_of(header, frame_bytes=1024))


def test_three_clients_owe_each_other_blocks(tmp_path: Path) -> None:
    world = World.of(tmp_path, 3)
    clients = [world.client(number) for number in range(3)]

    async def story() -> None:
        keys = [
            _send(sender, receiver, layer=layer)
            for sender in clients
            for receiver in range(3)
            for layer in range(3)
            if receiver != sender.depot.client
        ]
        async with running(*clients):
            for key in keys:
                await arrive(clients[key.receiver], key)
                assert _is_whole(clients[key.receiver], key)
            await until(lambda: not any(client.depot.owed() for client in clients))
            later = _send(clients[2], 0, layer=5)
            await arrive(clients[0], later)
            reports = [client.network.report() for client in clients]
        for report in reports:
            assert not report.strangers_refused
            for peer in report.peers.values():
                counters = peer.channels["tcp"]
                assert peer.is_connected
                assert not peer.refusals
                assert counters.blocks_received >= 3
                assert counters.frame_bytes_sent < counters.link_bytes_sent
                assert counters.link_bytes_sent < counters.tls_bytes_sent
                assert counters.wire_bytes_sent is not None
                assert counters.tls_bytes_sent < counters.wire_bytes_sent

    run(story())


def test_a_frame_is_parsed_and_summed_twice_and_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From vectors at one end to vectors at the other, over real TCP; once at each end."""
    calls: Counter[str] = Counter()

    def counted(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    for owner, name in ((FrameHeader, "parse"), (frames, "_checksum"), (block_frames, "_rows")):
        counted(owner, name)
    world = World.of(tmp_path, 2)
    clients = [world.client(number) for number in range(2)]
    header = header_of(0, 1, rows=40)
    clients[1].depot.admit_job(header.job, Plan(40))
    vectors = np.arange(40 * header.width, dtype=header.dtype).reshape(40, -1)
    block = encode_block(header, vectors, codec="dense", max_frame_bytes=1024)

    async def story() -> None:
        async with running(*clients):
            clients[0].depot.send_block(header.key, block.frames)
            await arrive(clients[1], header.key)

    run(story())
    decoded = decode_block(header, clients[1].depot.receive_block(header.key) or b"")
    assert decoded is not None
    assert np.array_equal(to_dense(decoded[0]), vectors)
    assert len(block.frames) > 4
    # The sender signs, the receiver checks; it reads a header to check it, and to decode its rows.
    assert calls == {
        "_checksum": 2 * len(block.frames),
        "parse": 2 * len(block.frames),
        "_rows": len(block.frames) - 2,
    }


@pytest.mark.parametrize("hidden", [0, 1])
def test_a_client_that_nobody_can_reach_gets_what_it_is_owed(tmp_path: Path, hidden: int) -> None:
    world = World.of(tmp_path, 2, without_route=(hidden,))
    clients = [world.client(number) for number in range(2)]

    async def story() -> None:
        async with running(*clients):
            # The hidden client owes nothing: that it looks for the block makes it connect.
            key = _send(clients[1 - hidden], hidden)
            assert clients[hidden].depot.receive_block(key) is None
            await arrive(clients[hidden], key)

    run(story())


def test_blocks_of_a_job_wait_until_the_peer_knows_it(tmp_path: Path) -> None:
    world = World.of(tmp_path, 2)
    early, late = world.client(0), world.client(1, job="another")

    async def story() -> None:
        async with running(early, late):
            keys = [_send(early, 1, layer=layer) for layer in range(5)]
            await until(lambda: "by-peer" in early.network.report().peers[1].refusals)
            late.depot.admit_job("job-1", Plan())
            await arrive(late, *keys)

    run(story())


def test_a_peer_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    world = World.of(tmp_path, 2)
    sender = world.client(0)

    async def story() -> None:
        async with running(sender):
            first = world.client(1)
            async with running(first):
                keys = [_send(sender, 1, layer=layer) for layer in range(3)]
                await arrive(first, *keys)
            # Nothing of the first process is used but its files.
            again = world.client(1)
            more = _send(sender, 1, layer=4)
            async with running(again):
                await arrive(again, *keys, more)
                await until(lambda: not sender.depot.owed())
            counters = sender.network.report().peers[1].channels["tcp"]
            assert counters.reconnects >= 1
            assert counters.blocks_sent == 4
            total = sum(len(frame) for frame in frames_of(header_of(0, 1), frame_bytes=1024))
            assert counters.frame_bytes_sent == 4 * total

    run(story())


def test_a_block_that_was_damaged_on_disk_is_fetched_again(tmp_path: Path) -> None:
    world = World.of(tmp_path, 2)
    sender, receiver = world.client(0), world.client(1)

    async def story() -> None:
        async with running(sender, receiver):
            key = _send(sender, 1)
            await arrive(receiver, key)
            await until(lambda: not sender.depot.owed())
            (path,) = (tmp_path / "depot-1" / "inbox").rglob("*.frames")
            data = bytearray(path.read_bytes())
            data[1500] ^= 1
            path.write_bytes(data)
            damaged = receiver.depot.receive_block(key)
            assert damaged is not None
            assert len(damaged) < len(data)
            await arrive(receiver, key)
            assert _is_whole(receiver, key)

    run(story())


def test_the_first_address_that_answers_is_used(tmp_path: Path) -> None:
    world = World.of(tmp_path, 2)
    real = world.roster.members[1]
    addresses = ("relay:", "tcp://127.0.0.1:9", *real.addresses)
    roster = world.roster.with_members([replace(real, addresses=addresses)])
    receiver = world.client(1)
    sender = World(folder=tmp_path, roster=roster).client(0)

    async def story() -> None:
        async with running(receiver, sender):
            await arrive(receiver, _send(sender, 1))

    run(story())


def test_a_client_that_is_introduced_later_is_met(tmp_path: Path) -> None:
    world = World.of(tmp_path, 3)
    two = Roster.of(member for member in world.roster.members.values() if member.client < 2)
    small = World(folder=tmp_path, roster=two)
    one, three = small.client(0), world.client(2)

    async def story() -> None:
        async with running(one, three):
            key = _send(three, 0)
            await until(lambda: bool(one.network.report().strangers_refused.get("certificate")))
            one.network.replace_roster(world.roster)
            await arrive(one, key)
            one.network.replace_roster(two)
            await until(lambda: not three.network.report().peers[0].is_connected)

    run(story())


def test_a_network_needs_the_key_of_its_own_client(tmp_path: Path) -> None:
    world = World.of(tmp_path, 2)
    client = world.client(0)
    with pytest.raises(IdentityError, match="is of client 1, this is client 0"):
        type(client.network)(world.identity(1), world.roster, client.depot, listen=())
    other = World.of(tmp_path / "others", 2)
    with pytest.raises(IdentityError, match="another certificate for client 0"):
        type(client.network)(world.identity(0), other.roster, client.depot, listen=())
    with pytest.raises(IdentityError, match="another certificate"):
        client.network.replace_roster(other.roster)


def test_as_many_peers_as_there_are_may_begin_by_relay_at_once(tmp_path: Path) -> None:
    world = World.of(tmp_path, 1)
    limits = replace(QUICK, patience_s=1e6)
    relay = RelayTransport()
    network = PeerNetwork(
        world.identity(0),
        world.roster,
        world.client(0).depot,
        listen=["relay:"],
        limits=limits,
        transports={"relay": relay},
    )
    name = b"s" * STREAM_BYTES
    opening = Parcel(kind=ParcelKind.OPEN, stream=name, sequence=0).to_bytes()

    async def story() -> None:
        running = asyncio.create_task(network.run())
        peers = range(1, 4 * limits.max_unproved)
        await relay.exchange([(peer, opening) for peer in peers])
        await until(relay._accepted.empty)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    run(story())


def test_streams_by_relay_are_bounded_whatever_peers_they_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World.of(tmp_path, 2)
    relay = RelayTransport()
    victim, honest = world.client(0), world.client(1)
    network = PeerNetwork(
        world.identity(0),
        world.roster,
        victim.depot,
        listen=[world.address(0), "relay:"],
        limits=QUICK,
        transports={"tcp": TcpTransport(), "relay": relay},
    )
    peers = iter(range(2, 10_000))

    def opening() -> tuple[int, bytes]:
        peer = next(peers)
        name = peer.to_bytes(STREAM_BYTES, "big")
        return peer, Parcel(kind=ParcelKind.OPEN, stream=name, sequence=0).to_bytes()

    async def story() -> None:
        async with running(replace(victim, network=network), honest):
            for _ in range(4):
                leaving = await relay.exchange([opening() for _ in range(500)])
                kinds = [Parcel.parse(content).kind for _, content in leaving]
                assert kinds.count(ParcelKind.RESET) >= 500 - 64
                await until(relay._accepted.empty)
            # 64 that may prove who they are, and 64 each that were refused and have yet to end.
            assert len(relay._streams) <= 3 * 64
            key = _send(honest, 0, layer=0)
            await arrive(victim, key)

    run(story())
    assert network.report().strangers_refused["connections"] >= 64
    # One line in ten seconds of a minute at most, however many names the server makes up.
    assert 1 <= caplog.text.count("strangers: connections: client ") <= 7


def test_two_links_at_once_become_one(tmp_path: Path) -> None:
    world = World.of(tmp_path, 2)
    clients = [world.client(number, limits=QUICK) for number in range(2)]

    async def story() -> None:
        async with running(*clients):
            for layer in range(6):
                keys = [_send(clients[0], 1, layer=layer), _send(clients[1], 0, layer=layer)]
                for key in keys:
                    await arrive(clients[key.receiver], key)
            for client in clients:
                await until(partial(_is_connected, client))
                (peer,) = client.network.report().peers.values()
                assert not peer.refusals
                assert peer.channels["tcp"].links <= 2

    run(story())


def test_two_links_at_once_become_one_however_slow_the_relay(tmp_path: Path) -> None:
    """Trips take longer than links over TCP may begin apart: neither end drops the other's."""
    world = World.of(tmp_path, 2)
    roster = world.roster.with_members(
        [replace(member, addresses=("relay:",)) for member in world.roster.members.values()]
    )
    clients, relays = [world.client(number) for number in range(2)], []
    networks = []
    for client in range(2):
        relays.append(RelayTransport())
        networks.append(
            PeerNetwork(
                world.identity(client),
                roster,
                clients[client].depot,
                listen=["relay:"],
                limits=replace(QUICK, both_at_once_s=0.01),
                transports={"relay": relays[client]},
            )
        )
    keys = [_send(clients[0], 1), _send(clients[1], 0)]

    async def story() -> None:
        tasks = [asyncio.create_task(network.run()) for network in networks]
        under_way: list[list[tuple[int, bytes]]] = [[], []]
        for _ in range(40):
            for client, relay in enumerate(relays):
                left = await relay.exchange(under_way[client])
                under_way[client] = []
                await asyncio.sleep(0.05)
                under_way[1 - client] += [(client, content) for _, content in left]
            if all(_is_whole(clients[key.receiver], key) for key in keys):
                break
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(story())
    assert all(_is_whole(clients[key.receiver], key) for key in keys)
    for network in networks:
        (peer,) = network.report().peers.values()
        assert peer.channels["relay"].links == 1
    # Which of two begins first is for the machine to decide; what decides is not.
    assert QUICK.on("relay").both_at_once_s >= 20 * QUICK.on("tcp").both_at_once_s


class _Cutter:
    """Passes bytes on between two addresses and cuts each connection after so many bytes."""

    def __init__(self, port: int, target: str, cuts: list[int]) -> None:
        self._port = port
        self._target_port = int(target.rpartition(":")[2])
        self._cuts = cuts

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._pass, "127.0.0.1", self._port)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = [self._cuts.pop(0) if self._cuts else 2**40]
        there = await asyncio.open_connection("127.0.0.1", self._target_port)
        pumps = [
            asyncio.create_task(self._pump(source, sink, left))
            for source, sink in ((reader, there[1]), (there[0], writer))
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, there[1]):
            end.transport.abort()
        await asyncio.gather(*pumps, return_exceptions=True)

    @staticmethod
    async def _pump(
        source: asyncio.StreamReader, sink: asyncio.StreamWriter, left: list[int]
    ) -> None:
        while left[0] > 0 and (data := await source.read(min(left[0], 700))):
            left[0] -= len(data)
            sink.write(data)
            await sink.drain()


def test_connections_broken_anywhere_lose_no_arrived_frame(tmp_path: Path) -> None:
    world = World.of(tmp_path, 2)
    (port,) = free_ports(1)
    cuts = [1, 900, 2500, 3300, 4000, 5000, 6500, 9000, 12_000]
    real = world.roster.members[1]
    through = replace(real, addresses=(f"tcp://127.0.0.1:{port}",))
    roster = world.roster.with_members([through])
    receiver, sender = world.client(1), World(folder=tmp_path, roster=roster).client(0)
    # Only the sender connects, so that all passes the cutter.
    receiver.network.replace_roster(
        world.roster.with_members([replace(world.roster.members[0], addresses=())])
    )

    async def story() -> None:
        server = await _Cutter(port, real.addresses[0], cuts).serve()
        async with server, running(receiver, sender):
            keys = [_send(sender, 1, layer=layer, frame_bytes=512) for layer in range(6)]
            await arrive(receiver, *keys)
            await until(lambda: not sender.depot.owed())
            assert not cuts
            report = receiver.network.report().peers[0]
            assert report.channels["tcp"].blocks_received == 6
            assert not report.refusals
        for key in keys:
            frames = frames_of(header_of(0, 1, layer=key.layer), frame_bytes=512)
            assert receiver.depot.receive_block(key) == b"".join(frames)

    run(story())
