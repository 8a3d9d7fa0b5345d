"""No frame with a valid checksum, of whatever kind, layer and length, ends more than its link."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from retexo_fl.agent.gate import JobGate
from retexo_fl.channels import BlockKey
from retexo_fl.channels.doorway import Proved
from retexo_fl.client.api import chain_digest
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.vector_carrier import CONTROL_LAYERS, MOST_GRANTS
from retexo_fl.config import make_config
from retexo_fl.errors import ChannelClosed, RetexoError
from retexo_fl.exchange import BlockHeader, FrameKind, decode_block
from retexo_fl.exchange.frames import FrameHeader, encode_frame
from retexo_fl.exchange.link.limits import SessionLimits
from retexo_fl.exchange.link.messages import (
    MESSAGE_HEADER,
    MESSAGE_HEADER_BYTES,
    MessageKind,
    Offer,
    encode,
    encode_greet,
    encode_offer,
    encode_ref,
    frame_prefix,
)
from retexo_fl.graph import BoundaryPlan, GraphPartition
from retexo_fl.training.stage_model import ModelShape
from tests.support.peer_networks import (
    QUICK,
    Client,
    World,
    arrive,
    frames_of,
    header_of,
    run,
    running,
)

#: Client 0 is attacked, client 1 is honest, client 2 has a key of the roster.
_ATTACKER = 2
_LENGTHS: Final = range(201)
#: One of so many layers is met by a frame of a kind and a length.
_TURNS: Final = 3
_FIRST: Final = chain_digest(b"", None)
_OTHER: Final = b"d" * 32
#: One refused block each, without an end: a test sends more of them than a peer may.
_PATIENT: Final = replace(
    QUICK,
    session=SessionLimits(max_refusals=10**6),
    penalty_first_s=0.0,
    penalty_most_s=0.0,
    # It owes nothing, so that the honest client alone connects, however slow.
    awaited_only_s=60.0,
)


@pytest.fixture(scope="module")
def parts() -> list[GraphPartition]:
    return make_parts(make_config({"clients": 3}))


def _gate(part: GraphPartition, job: str, algorithm: str) -> JobGate:
    config = make_config({"clients": 3, "hidden": 8, "algorithm": algorithm})
    # The gate asks for each block; an agent, too, finds it once.
    plan = BoundaryPlan.from_partition(part)
    return JobGate(
        job,
        lambda stage: plan,
        config,
        ModelShape.of(config, inputs=part.num_features, classes=part.num_classes),
        first=lambda: _FIRST,
        clients=part.num_clients,
        stages=1 if config.traits.end_to_end else config.layers,
    )


def _key(job: str, layer: int, digest: bytes) -> BlockKey:
    return BlockKey(job=job, layer=layer, weights_digest=digest, sender=_ATTACKER, receiver=0)


#: What a layer number can mean to an agent.
_LAYERS: Final = {
    "features": _key("lazy", 0, _FIRST),
    "stage": _key("lazy", 1, _OTHER),
    "stage that is none": _key("lazy", 7, _OTHER),
    "notice": _key("lazy", CONTROL_LAYERS, _FIRST),
    "first grant": _key("lazy", 2 * CONTROL_LAYERS, _FIRST),
    "last grant": _key("lazy", (1 + MOST_GRANTS) * CONTROL_LAYERS + 1, _OTHER),
    "grant that is none": _key("lazy", (2 + MOST_GRANTS) * CONTROL_LAYERS, _FIRST),
    "greatest": _key("lazy", 2**31 - 1, _FIRST),
    "inside a round": _key("standard", 0, _OTHER),
    "notice inside a round": _key("standard", CONTROL_LAYERS, _OTHER),
}


def _hello(victim: Client, key: BlockKey) -> BlockHeader:
    """Return the HELLO that an agent expects, or one that it can read where it expects none."""
    free = replace(
        header_of(_ATTACKER, 0, job=key.job), layer=key.layer, weights_digest=key.weights_digest
    )
    try:
        return victim.depot._gate(key.job).admission(key).header or free
    except RetexoError:
        return free


def _cases(hello: BlockHeader) -> Iterator[tuple[FrameKind, int, tuple[bytes, ...]]]:
    """Yield every kind and length as the first frame of a block, and after its HELLO."""
    said = hello.hello_payload()
    first = encode_frame(
        FrameHeader(kind=FrameKind.HELLO, sequence=0, payload_bytes=len(said)), said, block_seed=0
    )
    for before, seed in (((), 0), ((first,), hello.seed())):
        for kind in FrameKind:
            for length in _LENGTHS:
                # What HELLO says as far as it goes; to rows it is as good as noise.
                payload = (said + bytes(len(_LENGTHS)))[:length]
                header = FrameHeader(
                    kind=kind,
                    sequence=len(before),
                    num_rows=length % 3,
                    positions=length % 5 if kind is FrameKind.ROWS else 0,
                    values=length % 4 if kind is FrameKind.ROWS else 0,
                    payload_bytes=length,
                )
                yield kind, length, (*before, encode_frame(header, payload, block_seed=seed))


class _Hand:
    """A link by hand; tells how many offers were answered."""

    def __init__(self, proved: Proved) -> None:
        self._proved = proved
        self._ref = 0

    async def say(self, *data: bytes) -> None:
        self._proved.secure.write(b"".join(data))
        await self._proved.stream.write(self._proved.secure.data_to_send())

    def block(self, key: BlockKey, frames: tuple[bytes, ...]) -> bytes:
        """Return an offer of one frame more than follow, so that no block is whole."""
        self._ref += 1
        size_bytes = sum(map(len, frames)) + 1000
        offer = Offer(key=key, num_frames=len(frames) + 1, num_bytes=size_bytes, is_eager=True)
        pieces = [encode_offer(self._ref, offer)]
        for frame in frames:
            pieces += [frame_prefix(self._ref, len(frame)), frame]
        return b"".join([*pieces, encode_ref(MessageKind.WITHDRAW, self._ref)])

    async def settled(self) -> None:
        """Wait until all that was said has been dealt with: offers wait for the frames before."""
        said = self.block(_key("of nobody", 0, _FIRST), ())
        await self.say(said)
        await self.answered(self._ref)

    async def answered(self, ref: int) -> None:
        """Read until an offer is refused.

        Raises:
            ChannelClosed: The other end has ended the link.
        """
        got = bytearray()
        wanted = encode(MessageKind.REFUSE, ref.to_bytes(4, "little"))[MESSAGE_HEADER_BYTES:]
        while True:
            data = self._proved.secure.read()
            if data is None:
                self._proved.secure.receive_data(await self._proved.stream.read(2**16))
                continue
            if not data:
                raise ChannelClosed("the other end has said goodbye")
            got += data
            for kind, body in _messages(got):
                if kind is MessageKind.REFUSE and body.startswith(wanted):
                    return

    async def close(self) -> None:
        await self._proved.stream.close()


def _messages(got: bytearray) -> Iterator[tuple[MessageKind, bytes]]:
    """Take whole messages off the front."""
    while len(got) >= MESSAGE_HEADER_BYTES:
        _, kind, _, size_bytes = MESSAGE_HEADER.unpack_from(got)
        if len(got) < MESSAGE_HEADER_BYTES + size_bytes:
            return
        body = bytes(got[MESSAGE_HEADER_BYTES : MESSAGE_HEADER_BYTES + size_bytes])
        del got[: MESSAGE_HEADER_BYTES + size_bytes]
        yield MessageKind(kind), body


async def _linked(world: World) -> _Hand:
    hand = _Hand(await world.prove_as(_ATTACKER, 0))
    await hand.say(encode_greet(_ATTACKER))
    return hand


def _attacked(folder: Path, parts: list[GraphPartition]) -> tuple[World, Client, Client]:
    world = World.of(folder, 3)
    victim, honest = world.client(0, limits=_PATIENT), world.client(1)
    for job in ("lazy", "standard"):
        victim.depot.admit_job(job, _gate(parts[0], job, job))
    return world, victim, honest


async def _exchange(honest: Client, victim: Client, layer: int) -> None:
    header = header_of(1, 0, layer=layer)
    honest.depot.send_block(header.key, frames_of(header))
    await arrive(victim, header.key)


@pytest.mark.system
def test_an_agent_outlives_frames_of_every_kind_layer_and_length(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    world, victim, honest = _attacked(tmp_path, parts)
    num_blocks = 0

    async def story() -> None:
        nonlocal num_blocks
        async with running(victim, honest):
            await _exchange(honest, victim, 0)
            hand = await _linked(world)
            cases = [_cases(_hello(victim, key)) for key in _LAYERS.values()]
            for at, row in enumerate(zip(*cases, strict=True)):
                # Layers take their turns, not in step with the fields that lengths give.
                first = (at + at // 7) % _TURNS
                blocks = list(zip(_LAYERS.values(), row, strict=True))[first::_TURNS]
                await hand.say(*(hand.block(key, frames) for key, (_, _, frames) in blocks))
                await hand.settled()
                num_blocks += len(blocks)
                for key in _LAYERS.values():
                    _assert_read_or_named(victim, key)
                for job in ("lazy", "standard"):
                    keys = [key for key in _LAYERS.values() if key.job == job]
                    victim.depot.drop_blocks(job, keys)
            await hand.close()
            await _exchange(honest, victim, 1)

    run(story())
    # All through one link, each refused or kept; none was met by an error without a name.
    assert num_blocks > (len(_LAYERS) - 1) // _TURNS * 2 * len(FrameKind) * len(_LENGTHS)
    peers = victim.network.report().peers
    assert "fault" not in peers[_ATTACKER].refusals
    assert peers[_ATTACKER].refusals["protocol"] > 1000
    assert peers[_ATTACKER].channels["tcp"].links == 1
    assert peers[1].channels["tcp"].links == 1


def _assert_read_or_named(victim: Client, key: BlockKey) -> None:
    """What was kept can be read again, or is refused by name, as when the agent decodes it."""
    stream = victim.depot.receive_block(key)
    if stream:
        with suppress(RetexoError):
            decode_block(_hello(victim, key), stream)


@pytest.mark.parametrize("kind", [0, max(FrameKind) + 1, 255])
@pytest.mark.parametrize("length", [0, 5, 200])
def test_an_agent_outlives_frames_of_no_kind(
    tmp_path: Path, parts: list[GraphPartition], kind: int, length: int
) -> None:
    world, victim, honest = _attacked(tmp_path, parts)
    frame = _frame_of_no_kind(kind, length)

    async def story() -> None:
        async with running(victim, honest):
            await _exchange(honest, victim, 0)
            hand = await _linked(world)
            await hand.say(hand.block(_LAYERS["notice"], (frame,)))
            await hand.settled()
            await hand.close()
            await _exchange(honest, victim, 1)

    run(story())
    peers = victim.network.report().peers
    # The block, and the offer of a job that is not known, by which the test saw that it was over.
    assert peers[_ATTACKER].refusals == {"protocol": 1, "job": 1}
    assert peers[1].channels["tcp"].links == 1


def _frame_of_no_kind(kind: int, length: int) -> bytes:
    """Return a frame whose checksum is right and whose kind is none."""
    header = FrameHeader(kind=FrameKind.HELLO, sequence=0, payload_bytes=length)
    signed = bytearray(header.signed_bytes())
    signed[5] = kind
    payload = bytes(length)
    checksum = zlib.crc32(payload, zlib.crc32(signed)).to_bytes(4, "little")
    return b"".join((signed, checksum, payload))
