"""Whoever misbehaves gets no byte of a row, is named in the log, and stops nobody else."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import struct
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.channels import BlockKey
from retexo_fl.channels.doorway import Proved, prove
from retexo_fl.channels.gate import Admission
from retexo_fl.channels.identity import make_identity
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.channels.secure_stream import SecureStream, connecting_context
from retexo_fl.channels.streams import ByteStream
from retexo_fl.channels.transports.tcp import TcpStream, TcpTransport
from retexo_fl.errors import ChannelClosed, PeerRefused
from retexo_fl.exchange.link.limits import SessionLimits
from retexo_fl.exchange.link.messages import (
    MessageKind,
    Offer,
    encode,
    encode_greet,
    encode_key,
    encode_line,
    encode_offer,
    encode_ref,
    frame_prefix,
)
from tests.support.peer_networks import (
    QUICK,
    Client,
    World,
    arrive,
    frames_of,
    header_of,
    run,
    running,
    until,
)

#: Client 0 is attacked, client 1 is honest, client 2 attacks with a key of the roster.
_ATTACKER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attack:
    """A link by hand, with the key of client 2."""

    proved: Proved

    async def say(self, *data: bytes) -> None:
        self.proved.secure.write(b"".join(data))
        await self.proved.stream.write(self.proved.secure.data_to_send())

    async def heard(self) -> bytes:
        """Return everything that the other end sends until it closes."""
        got = bytearray()
        try:
            while True:
                data = self.proved.secure.read()
                if data is None:
                    self.proved.secure.receive_data(await self.proved.stream.read(2**16))
                elif data:
                    got += data
                else:
                    return bytes(got)
        except (ChannelClosed, PeerRefused):
            return bytes(got)


def _offer(key: BlockKey, frames: tuple[bytes, ...]) -> Offer:
    return Offer(key=key, num_frames=len(frames), num_bytes=sum(map(len, frames)), is_eager=True)


def _whole_block(ref: int, key: BlockKey, frames: tuple[bytes, ...]) -> bytes:
    pieces = [encode_offer(ref, _offer(key, frames))]
    for frame in frames:
        pieces += [frame_prefix(ref, len(frame)), frame]
    return b"".join(pieces)


def _attacked(
    folder: Path,
    attack: Callable[[World, Client], Coroutine[None, None, None]],
    *,
    session: SessionLimits | None = None,
) -> Client:
    """Let an honest pair exchange while somebody attacks; return the attacked client."""
    world = World.of(folder, 3)
    # The victim owes the honest client nothing, so that only one of them connects, however slow.
    limits = replace(
        QUICK, session=session or SessionLimits(), handshake_s=1.0, awaited_only_s=60.0
    )
    victim, honest = world.client(0, limits=limits), world.client(1)

    async def story() -> None:
        async with running(victim, honest):
            # Owed to the attacker all the time: not a byte of it may leave.
            secret = header_of(0, _ATTACKER, layer=7)
            victim.depot.send_block(secret.key, frames_of(secret))
            attacking = asyncio.create_task(attack(world, victim))
            for layer in range(4):
                header = header_of(1, 0, layer=layer)
                honest.depot.send_block(header.key, frames_of(header))
                await arrive(victim, header.key)
                await asyncio.sleep(0.02)
            await attacking

    run(story())
    return victim


async def _linked(world: World) -> _Attack:
    attack = _Attack(proved=await world.prove_as(_ATTACKER, 0))
    await attack.say(encode_greet(_ATTACKER))
    return attack


def _assert_nothing_kept(victim: Client) -> None:
    for layer in range(10):
        key = header_of(_ATTACKER, 0, layer=layer).key
        assert victim.depot.receive_block(key) is None


def _assert_named(victim: Client, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    assert victim.network.report().peers[_ATTACKER].refusals[reason] >= 1
    lines = [record.getMessage() for record in caplog.records]
    named = [line for line in lines if line.startswith(f"client {_ATTACKER}: {reason}: ")]
    assert 1 <= len(named) <= 2


def test_a_key_that_is_not_in_the_roster(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def attack(world: World, victim: Client) -> None:
        # It calls itself client 1, but has another key.
        stranger = make_identity(tmp_path / "stranger", 1)
        member = world.roster.members[0]
        secure = SecureStream(
            connecting_context(stranger, member), is_accepting=False, clients={member.digest: 0}
        )
        stream = await TcpTransport().connect(world.address(0), 0)
        link = _Attack(
            proved=Proved(client=0, stream=stream, secure=secure, sent_bytes=0, received_bytes=0)
        )
        while secure.handshake() is None:
            await stream.write(secure.data_to_send())
            secure.receive_data(await stream.read(2**14))
        await link.say(encode_greet(1))
        # In TLS 1.3 the refusal comes with the first read.
        secure.receive_data(await stream.read(2**14))
        with pytest.raises(PeerRefused, match="the peer does not know our certificate"):
            secure.read()
        await stream.close()

    victim = _attacked(tmp_path, attack)
    assert victim.network.report().strangers_refused == {"certificate": 1}
    assert "stranger at tcp://127.0.0.1: certificate: its certificate is unknown" in caplog.text


def test_a_server_with_another_key_learns_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = World.of(tmp_path, 2)
    false_identity = make_identity(tmp_path / "false", 1)
    false_roster = world.roster.with_members(
        [
            Member(
                client=1,
                certificate_pem=false_identity.certificate_pem,
                addresses=world.roster.members[1].addresses,
            )
        ]
    )
    victim = world.client(0)
    network = type(victim.network)(
        false_identity,
        false_roster,
        type(victim.depot)(tmp_path / "false-depot", 1),
        listen=world.roster.members[1].addresses,
    )

    async def story() -> None:
        async with running(victim, replace(victim, network=network)):
            header = header_of(0, 1)
            victim.depot.send_block(header.key, frames_of(header))
            await until(lambda: "certificate" in victim.network.report().peers[1].refusals)

    run(story())
    assert victim.depot.owed()[1].num_blocks == 1
    assert "client 1: certificate: tcp://127.0.0.1" in caplog.text
    assert "its certificate is unknown" in caplog.text


def test_a_job_that_is_not_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def attack(world: World, victim: Client) -> None:
        link = await _linked(world)
        header = header_of(_ATTACKER, 0, job="job-2")
        await link.say(_whole_block(1, header.key, frames_of(header)))
        await until(lambda: "job" in victim.network.report().peers[_ATTACKER].refusals)
        await link.proved.stream.close()

    victim = _attacked(tmp_path, attack)
    _assert_nothing_kept(victim)
    assert not list((tmp_path / "depot-0" / "inbox").glob("*/job-2"))
    _assert_named(victim, "job", caplog)


@pytest.mark.parametrize(
    ("changed", "layer", "reason", "sentence"),
    [
        ({"num_vectors": 9}, 0, "protocol", "num_vectors is 9, expected 8"),
        ({"width": 32}, 0, "protocol", "width is 32, expected 64"),
        ({}, 11, "plan", "client 2 offers layer 11, expected below 10"),
    ],
)
def test_rows_outside_the_plan(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    changed: dict[str, Any],
    layer: int,
    reason: str,
    sentence: str,
) -> None:
    async def attack(world: World, victim: Client) -> None:
        link = await _linked(world)
        header = replace(header_of(_ATTACKER, 0, layer=layer), **changed)
        await link.say(_whole_block(1, header.key, frames_of(header)))
        await until(lambda: reason in victim.network.report().peers[_ATTACKER].refusals)
        await link.proved.stream.close()

    victim = _attacked(tmp_path, attack)
    _assert_nothing_kept(victim)
    _assert_named(victim, reason, caplog)
    assert sentence in caplog.text


def test_another_plan_keeps_its_greeting_and_no_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    header = replace(header_of(_ATTACKER, 0), plan_digest=b"q" * 32)
    frames = frames_of(header)

    async def attack(world: World, victim: Client) -> None:
        link = await _linked(world)
        await link.say(_whole_block(1, header.key, frames))
        await until(lambda: "plan" in victim.network.report().peers[_ATTACKER].refusals)
        await link.proved.stream.close()

    victim = _attacked(tmp_path, attack)
    assert victim.depot.receive_block(header.key) == frames[0]
    _assert_named(victim, "plan", caplog)
    assert "both list 3 edges between them, but not the same" in caplog.text


def _cut_short(size_bytes: int) -> bytes:
    return struct.pack("<BBHI", 1, 7, 0, size_bytes)


_KEY = header_of(_ATTACKER, 0).key
_FRAMES = frames_of(header_of(_ATTACKER, 0))
_OTHERS = replace(_KEY, sender=1)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (encode_greet(1), "impersonation"),
        (
            encode_greet(_ATTACKER) + encode_offer(1, replace(_offer(_KEY, _FRAMES), key=_OTHERS)),
            "impersonation",
        ),
        (encode_greet(_ATTACKER) + _cut_short(2**21), "oversize"),
        (encode_greet(_ATTACKER) + b"GET / HTTP/1.1\r\n\r\n", "protocol"),
        (
            encode_greet(_ATTACKER)
            + b"".join(
                encode_offer(
                    ref, replace(_offer(_KEY, _FRAMES), key=replace(_KEY, layer=100 + ref))
                )
                for ref in range(1, 200)
            ),
            "flood",
        ),
    ],
    ids=("greets as another", "offers as another", "oversize frame", "not a link", "flood"),
)
def test_who_breaks_the_protocol_is_closed_and_has_to_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, said: bytes, reason: str
) -> None:
    answers: list[bytes] = []

    async def attack(world: World, victim: Client) -> None:
        link = _Attack(proved=await world.prove_as(_ATTACKER, 0))
        await link.say(said)
        answers.append(await link.heard())
        await link.proved.stream.close()
        again = _Attack(proved=await world.prove_as(_ATTACKER, 0))
        answers.append(await again.heard())
        await again.proved.stream.close()
        await until(lambda: "penalty" in victim.network.report().peers[_ATTACKER].refusals)

    victim = _attacked(tmp_path, attack)
    _assert_nothing_kept(victim)
    _assert_named(victim, reason, caplog)
    _assert_named(victim, "penalty", caplog)
    # The one who greeted as itself may have been offered what it is owed, but no row of it.
    rows = frames_of(header_of(0, _ATTACKER, layer=7))[1]
    assert reason.encode() in answers[0] or b"link version is 71" in answers[0]
    if reason == "impersonation" and said == encode_greet(1):
        assert rows not in answers[0]
    assert answers[1] == b""


def test_other_bytes_under_a_known_key_change_nothing(tmp_path: Path) -> None:
    header = header_of(_ATTACKER, 0)
    frames = frames_of(header)
    others = frames_of(replace(header, layer=1))

    async def attack(world: World, victim: Client) -> None:
        link = await _linked(world)
        await link.say(_whole_block(1, header.key, frames))
        await arrive(victim, header.key)
        await link.say(_whole_block(2, header.key, frames[:1] + others[1:]))
        await link.say(_whole_block(3, header.key, frames))
        await asyncio.sleep(0.1)
        await link.proved.stream.close()

    victim = _attacked(tmp_path, attack)
    assert victim.depot.receive_block(header.key) == b"".join(frames)
    assert victim.network.report().peers[_ATTACKER].channels["tcp"].blocks_received == 1


def test_a_handshake_that_trickles_in_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def attack(world: World, victim: Client) -> None:
        loop = asyncio.get_running_loop()
        host, port = world.address(0).removeprefix("tcp://").split(":")
        slow = [socket.create_connection((host, int(port))) for _ in range(20)]
        for connection in slow:
            connection.setblocking(False)
            await loop.sock_sendall(connection, b"\x16")
        await until(lambda: sum(victim.network.report().strangers_refused.values()) >= 20)
        for connection in slow:
            connection.close()

    victim = _attacked(tmp_path, attack)
    # Two clients of the roster have this address, with four places each.
    assert victim.network.report().strangers_refused["connections"] >= 12
    assert "strangers: connections: 127.0.0.1 has, or all have, too many connections" in caplog.text
    assert caplog.text.count("stranger at tcp://127.0.0.1: slow: no handshake within") == 1


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (b"", "no greeting within 0.3 s"),
        (encode_greet(_ATTACKER) + b"\x01", "a message was not complete"),
    ],
)
def test_a_link_that_trickles_in_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, said: bytes, sentence: str
) -> None:
    async def attack(world: World, victim: Client) -> None:
        link = _Attack(proved=await world.prove_as(_ATTACKER, 0))
        if said:
            await link.say(said)
        await link.heard()
        await link.proved.stream.close()

    session = SessionLimits(greeting_s=0.3, message_s=0.3)
    victim = _attacked(tmp_path, attack, session=session)
    _assert_named(victim, "slow", caplog)
    assert sentence in caplog.text


def test_others_have_their_turns_while_a_peer_floods(tmp_path: Path) -> None:
    seen: list[int] = []

    async def attack(world: World, victim: Client) -> None:
        link = await _linked(world)
        await until(lambda: victim.network.report().peers[_ATTACKER].is_connected)
        counters = victim.network._peers[_ATTACKER]._account.channels["tcp"]
        # Nothing comes of these but work.
        await link.say(encode_offer(1, _offer(_KEY, _FRAMES)))
        messages = encode_ref(MessageKind.WITHDRAW, 1) * 2**17
        flooding = asyncio.create_task(link.say(messages))
        while counters.link_bytes_received < len(messages):
            seen.append(counters.link_bytes_received)
            await asyncio.sleep(0)
        seen.append(counters.link_bytes_received)
        await flooding
        await link.proved.stream.close()

    _attacked(tmp_path, attack)
    most_at_once = max(after - before for before, after in itertools.pairwise(seen))
    assert most_at_once <= 2**18


def test_who_asks_for_the_same_block_again_and_again_is_a_flood(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def attack(world: World, victim: Client) -> None:
        key = header_of(0, _ATTACKER, layer=7).key
        link = await _linked(world)
        ref, got = 0, b""
        with suppress(ChannelClosed):
            while True:
                data = link.proved.secure.read()
                if data is None:
                    link.proved.secure.receive_data(await link.proved.stream.read(2**16))
                    continue
                if not data:
                    break
                got = (got + bytes(data))[-(2**16) :]
                if encode_key(key) in got:
                    ref, got = ref + 1, b""
                    have = encode_ref(MessageKind.HAVE, ref)
                    await link.say(have, encode(MessageKind.ASK, encode_key(key)))
        await link.proved.stream.close()
        assert ref == 66

    victim = _attacked(tmp_path, attack)
    _assert_named(victim, "flood", caplog)
    assert "it lost 65 blocks that it had" in caplog.text


def test_who_comes_and_goes_does_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def attack(world: World, victim: Client) -> None:
        for _ in range(10):
            link = await _linked(world)
            await link.say(encode(MessageKind.BYE, encode_line("I come again")))
            await link.heard()
            await link.proved.stream.close()

    _attacked(tmp_path, attack)
    # One line in ten seconds for this peer and reason, whichever of its failures came first.
    assert 1 <= caplog.text.count(f"client {_ATTACKER}: connection: ") <= 2


def test_a_key_replaced_during_its_handshake_is_not_let_in(tmp_path: Path) -> None:
    async def attack(world: World, victim: Client) -> None:
        member = world.roster.members[0]
        secure = SecureStream(
            connecting_context(world.identity(_ATTACKER), member),
            is_accepting=False,
            clients={member.digest: 0},
        )
        stream = await TcpTransport().connect(world.address(0), 0)
        secure.handshake()
        await stream.write(secure.data_to_send())
        secure.receive_data(await stream.read(2**14))
        new = make_identity(tmp_path / "new", _ATTACKER).certificate_pem
        replaced = replace(world.roster.members[_ATTACKER], certificate_pem=new)
        victim.network.replace_roster(world.roster.with_members([replaced]))
        await asyncio.sleep(0)
        assert secure.handshake() == 0
        link = _Attack(
            proved=Proved(client=0, stream=stream, secure=secure, sent_bytes=0, received_bytes=0)
        )
        await link.say(encode_greet(_ATTACKER), _whole_block(1, _KEY, _FRAMES))
        assert await link.heard() == b""
        await stream.close()

    victim = _attacked(tmp_path, attack)
    _assert_nothing_kept(victim)
    assert victim.network.report().peers[_ATTACKER].last_met_unix_s is None


def test_a_peer_that_was_dropped_begins_no_link(tmp_path: Path) -> None:
    async def story() -> None:
        world = World.of(tmp_path, 3)
        victim = world.client(0)
        async with running(victim):
            link = await _linked(world)
            await until(lambda: victim.network.report().peers[_ATTACKER].is_connected)
            # It waits until the first link has ended.
            second = await _linked(world)
            await until(lambda: victim.network._peers[_ATTACKER]._num_streams == 2)
            dropped = victim.network._peers[_ATTACKER]
            others = [one for one in world.roster.members.values() if one.client != _ATTACKER]
            victim.network.replace_roster(Roster.of(others))
            for one in (link, second):
                await one.heard()
                await one.proved.stream.close()
            await until(lambda: not dropped._num_streams)
            assert dropped.report().channels["tcp"].links == 1

    run(story())


def test_a_peer_that_vanished_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def attack(world: World, victim: Client) -> None:
        link = await _linked(world)
        # It reads nothing and says nothing, as a machine whose cable was pulled.
        await until(lambda: "silent" in victim.network.report().peers[_ATTACKER].refusals)
        await link.proved.stream.close()

    session = SessionLimits(ping_after_s=0.2, pong_within_s=0.3)
    victim = _attacked(tmp_path, attack, session=session)
    _assert_named(victim, "silent", caplog)


def test_a_peer_has_two_connections_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def attack(world: World, victim: Client) -> None:
        links = [await _linked(world) for _ in range(6)]
        await until(lambda: "connections" in victim.network.report().peers[_ATTACKER].refusals)
        for link in links:
            await link.proved.stream.close()

    victim = _attacked(tmp_path, attack)
    _assert_named(victim, "connections", caplog)


class _Faulty:
    """A gate with a bug."""

    def admission(self, key: BlockKey) -> Admission:
        return [][key.layer]


def _traces(caplog: pytest.LogCaptureFixture, kind: type[Exception]) -> int:
    return sum(bool(one.exc_info and one.exc_info[0] is kind) for one in caplog.records)


def test_what_a_link_raises_ends_that_link_and_is_traced_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    header = header_of(_ATTACKER, 0, job="faulty")

    async def attack(world: World, victim: Client) -> None:
        victim.depot.admit_job("faulty", _Faulty())
        for times in (1, 2, 3):
            link = await _linked(world)
            await link.say(_whole_block(1, header.key, frames_of(header)))
            assert b"an error inside the agent" in await link.heard()
            await link.proved.stream.close()
            await until(lambda n=times: _refusals(victim)["fault"] == n)  # type: ignore[misc]
            victim.network._peers[_ATTACKER]._penalty.succeeded()

    victim = _attacked(tmp_path, attack)
    _assert_named(victim, "fault", caplog)
    assert _traces(caplog, IndexError) == 1
    assert victim.network.report().peers[1].channels["tcp"].links == 1


def test_what_a_handshake_raises_ends_that_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(stream: TcpStream, max_bytes: int) -> bytes:
        if stream.remote.startswith("tcp://127.0.0.2:"):
            raise ZeroDivisionError
        return await honest(stream, max_bytes)

    honest = TcpStream.read
    monkeypatch.setattr(TcpStream, "read", read)

    async def attack(world: World, victim: Client) -> None:
        with closing(_from("127.0.0.2", world.address(0))) as connection:
            connection.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(connection, 1) == b""

    victim = _attacked(tmp_path, attack)
    assert victim.network.report().strangers_refused == {"fault": 1}
    assert _traces(caplog, ZeroDivisionError) == 1


def test_what_a_look_for_a_peer_raises_ends_that_look(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(transport: TcpTransport, address: str, peer: int) -> ByteStream:
        if peer == _ATTACKER:
            raise ZeroDivisionError
        return await honest(transport, address, peer)

    honest = TcpTransport.connect
    monkeypatch.setattr(TcpTransport, "connect", connect)

    async def attack(world: World, victim: Client) -> None:
        await until(lambda: _refusals(victim)["fault"] >= 2)

    victim = _attacked(tmp_path, attack)
    _assert_named(victim, "fault", caplog)
    assert _traces(caplog, ZeroDivisionError) == 1


def _refusals(victim: Client) -> Counter[str]:
    return Counter(victim.network.report().peers[_ATTACKER].refusals)


def _from(source: str, address: str) -> socket.socket:
    """Connect to an address from another of this machine's."""
    host, port = address.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), source_address=(source, 0))


#: Whoever has a place keeps it: a test in which nobody loses one shows who gets one.
_NEVER_MIND = replace(QUICK, patience_s=1e6, handshake_s=1e6)


def _crowded(
    folder: Path,
    sources: Sequence[str],
    *,
    has_address: bool = True,
    was_met: bool = False,
) -> Client:
    """Fill the places of strangers from some addresses; then a peer connects from 127.0.0.1."""
    world = World.of(folder, 2, without_route=() if has_address else (1,))
    victim, peer = world.client(0, limits=_NEVER_MIND), world.client(1)

    async def exchange(layer: int) -> None:
        header = header_of(1, 0, layer=layer)
        peer.depot.send_block(header.key, frames_of(header))
        await arrive(victim, header.key)

    async def story() -> None:
        async with running(victim):
            if was_met:
                async with running(peer):
                    await exchange(0)
            with ExitStack() as crowd:
                for source in sources:
                    for _ in range(10):
                        stranger = _from(source, world.address(0))
                        crowd.enter_context(closing(stranger))
                        # It begins a handshake, and says no more.
                        stranger.sendall(b"\x16")
                places = min(8, 4 * len(sources))
                refused = 10 * len(sources) - places
                await until(
                    lambda: victim.network.report().strangers_refused == {"connections": refused}
                )
                async with running(peer):
                    await exchange(1)

    run(story())
    return victim


async def _is_let_in(world: World, stream: ByteStream) -> bool:
    """Say who one is, and return whether the other end greets."""
    member = world.roster.members[0]
    context = connecting_context(world.identity(1), member)
    secure = SecureStream(context, is_accepting=False, clients={member.digest: 0})
    try:
        async with asyncio.timeout(5):
            await prove(stream, secure, within_s=5.0)
            return bool(await stream.read(2**14))
    except (ChannelClosed, PeerRefused, TimeoutError):
        return False
    finally:
        await stream.close()


def test_idle_connections_from_a_peers_own_address_keep_no_link_out(tmp_path: Path) -> None:
    """30 come before each link, and as many as may stay."""
    world = World.of(tmp_path, 2)
    victim = world.client(0, limits=replace(_NEVER_MIND, max_silent=16))

    async def story() -> None:
        come_in = 0
        with ExitStack() as idle:
            async with running(victim):
                for _ in range(10):
                    for _ in range(30):
                        idle.enter_context(closing(_from("127.0.0.1", world.address(0))))
                        await asyncio.sleep(0)
                    stream = await TcpTransport().connect(world.address(0), 0)
                    come_in += await _is_let_in(world, stream)
        assert come_in >= 9
        assert victim.network.report().strangers_refused["connections"] >= 300 - 16

    run(story())


def test_idle_connections_displace_those_of_their_own_address(tmp_path: Path) -> None:
    """A peer that is slow to speak is not sent away for one who opens many."""
    world = World.of(tmp_path, 2)
    victim = world.client(0, limits=replace(_NEVER_MIND, max_silent=16))

    async def story() -> None:
        with ExitStack() as idle:
            async with running(victim):
                slow = await TcpTransport().connect(world.address(0), 0)
                for _ in range(100):
                    idle.enter_context(closing(_from("127.0.0.2", world.address(0))))
                await until(
                    lambda: victim.network.report().strangers_refused == {"connections": 85}
                )
                assert await _is_let_in(world, slow)

    run(story())


def test_one_stranger_does_not_take_the_places_of_all(tmp_path: Path) -> None:
    victim = _crowded(tmp_path, ["127.0.0.2"], has_address=False)
    assert victim.network.report().peers[1].channels["tcp"].blocks_received == 1


@pytest.mark.parametrize(
    "known", [{"has_address": True}, {"has_address": False, "was_met": True}], ids=str
)
def test_strangers_take_no_place_of_a_peer_of_known_address(
    tmp_path: Path, known: dict[str, bool]
) -> None:
    victim = _crowded(tmp_path, ["127.0.0.2", "127.0.0.3", "127.0.0.4"], **known)
    assert victim.network.report().peers[1].channels["tcp"].blocks_received >= 1
