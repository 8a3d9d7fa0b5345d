"""Waiting in the guest, whose processor is tens of times slower than this machine's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from retexo_fl.channels import BlockKey
from tests.support.peer_networks import Client

#: For one step of a story, and for all of it.
STEP_S = 60.0
STORY_S = 140.0


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(STEP_S):
        while not holds():
            await asyncio.sleep(0.01)


async def arrive(receiver: Client, *keys: BlockKey) -> None:
    """Wait until blocks are whole."""
    missing = await asyncio.to_thread(receiver.depot.wait_for, keys, STEP_S)
    assert not missing


def run(story: Awaitable[None]) -> None:
    """Run a test's story in an event loop of its own."""

    async def bounded() -> None:
        async with asyncio.timeout(STORY_S):
            await story

    asyncio.run(bounded())
