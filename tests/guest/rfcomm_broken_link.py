"""A link ends or falls silent in the middle of a block: the rest follows, and no more than that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.guest.air import Air
from tests.guest.devices import FRAME_BYTES, kept_bytes, large, one_of_each
from tests.guest.patience import arrive, run, until
from tests.support.peer_networks import QUICK, Client, frames_of, running

#: A link that says and takes nothing is given up soon; agents wait ten times as long.
_HASTY = replace(
    QUICK, stall_s=6.0, session=replace(QUICK.session, ping_after_s=2.0, pong_within_s=4.0)
)


@pytest.fixture(scope="module")
def air() -> Iterator[Air]:
    with Air() as made:
        made.pair()
        yield made


def test_a_block_goes_on_where_its_link_broke(tmp_path: Path, air: Air) -> None:
    _break_and_go_on(tmp_path, air.part)


def test_a_block_goes_on_after_the_air_was_silent(tmp_path: Path, air: Air) -> None:
    async def be_heard_again(sender: Client) -> None:
        await until(lambda: not sender.network.report().peers[1].is_connected)
        air.be_heard()

    _break_and_go_on(tmp_path, air.be_silent, be_heard_again)


async def _nothing(_sender: Client) -> None:
    pass


def _break_and_go_on(
    folder: Path,
    break_link: Callable[[], None],
    mend: Callable[[Client], Awaitable[None]] = _nothing,
) -> None:
    sender, receiver = one_of_each(folder, _HASTY)
    header = large(0)
    frames = frames_of(header, frame_bytes=FRAME_BYTES)
    total = sum(map(len, frames))

    async def story() -> None:
        async with running(sender, receiver):
            sender.depot.send_block(header.key, frames)
            await until(lambda: kept_bytes(folder, 1) > total // 4)
            await asyncio.to_thread(break_link)
            kept = kept_bytes(folder, 1)
            assert 0 < kept < total, "the block was too quick for this test"
            await mend(sender)
            await arrive(receiver, header.key)
            await until(lambda: not sender.depot.owed())
            there = receiver.network.report().peers[0].channels["bluetooth"]
        assert receiver.depot.receive_block(header.key) == b"".join(frames)
        assert there.reconnects >= 1
        # Every frame arrived once: the second link began at the first that was missing.
        assert there.frame_bytes_received == total

    run(story())
