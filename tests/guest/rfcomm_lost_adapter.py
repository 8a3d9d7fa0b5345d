"""An adapter is switched off, or unplugged, in the middle of a block: what was owed comes later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.guest.air import FIRST, SECOND, Air
from tests.guest.devices import FRAME_BYTES, kept_bytes, large, one_of_each
from tests.guest.patience import arrive, run, until
from tests.support.peer_networks import Client, frames_of, running


@pytest.fixture(scope="module")
def air() -> Iterator[Air]:
    with Air() as made:
        made.pair()
        yield made


@pytest.mark.parametrize("device", [FIRST, SECOND])
def test_a_block_goes_on_after_an_adapter_was_off(tmp_path: Path, air: Air, device: str) -> None:
    _lose_and_go_on(
        tmp_path,
        lambda: air.switch(device, on=False),
        lambda: air.switch(device, on=True),
    )


def test_a_block_goes_on_after_the_adapters_were_gone(tmp_path: Path, air: Air) -> None:
    _lose_and_go_on(tmp_path, air.take_away, air.plug_in)


def _lose_and_go_on(folder: Path, lose: Callable[[], None], bring_back: Callable[[], None]) -> None:
    sender, receiver = clients = one_of_each(folder)
    header = large(0)
    frames = frames_of(header, frame_bytes=FRAME_BYTES)
    total = sum(map(len, frames))

    def tries_in_vain(client: Client) -> bool:
        (peer,) = client.network.report().peers.values()
        return not peer.is_connected and bool(peer.last_error)

    async def story() -> None:
        async with running(*clients):
            sender.depot.send_block(header.key, frames)
            await until(lambda: kept_bytes(folder, 1) > total // 4)
            await asyncio.to_thread(lose)
            await until(lambda: tries_in_vain(sender))
            assert sender.depot.owed()
            await asyncio.to_thread(bring_back)
            await arrive(receiver, header.key)
            await until(lambda: not sender.depot.owed())
            there = receiver.network.report().peers[0].channels["bluetooth"]
        assert receiver.depot.receive_block(header.key) == b"".join(frames)
        assert there.frame_bytes_received == total

    run(story())
