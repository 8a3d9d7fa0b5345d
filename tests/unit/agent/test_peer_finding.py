"""An agent whose relay two trainings want at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from retexo_fl.agent import peer_finding
from retexo_fl.agent.introductions import Introductions
from retexo_fl.agent.peer_finding import Peering
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels.identity import make_identity
from retexo_fl.channels.transports.relay import RelayTransport
from retexo_fl.client.api import RelayAnswer, Ticket
from retexo_fl.client.peering import relay_request
from retexo_fl.errors import ChannelClosed

LESSER = Ticket(job="job-000000000000", attempt=1)
GREATER = Ticket(job="job-ffffffffffff", attempt=1)


@pytest.fixture
def peering(tmp_path: Path) -> Peering:
    settings = AgentSettings(
        partition="-", socket="-", key="-", certificate="-", state="-", introductions=True
    )
    return Peering(Introductions(settings, make_identity(tmp_path, 0)), RelayTransport())


async def _ask(peering: Peering, ticket: Ticket) -> int:
    """Return how many parcels a training is given."""
    answer = await peering.answer(relay_request(ticket, 1, []))
    assert isinstance(answer, RelayAnswer)
    return len(answer.peers)


def test_one_training_after_the_other_has_the_relay(
    peering: Peering, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        await _ask(peering, GREATER)
        broken = await peering.relay.connect("relay:", 1)
        await _ask(peering, LESSER)
        with pytest.raises(ChannelClosed, match="serves another attempt"):
            await broken.read(1)
        await peering.relay.connect("relay:", 1)
        assert await _ask(peering, GREATER) == 0
        assert await _ask(peering, LESSER) == 1
        monkeypatch.setattr(peer_finding, "_LEASE_S", -1.0)
        await _ask(peering, GREATER)
        await peering.relay.connect("relay:", 1)
        assert await _ask(peering, GREATER) == 1

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_later_attempt_has_the_relay_at_once(peering: Peering) -> None:
    async def run() -> None:
        await _ask(peering, GREATER)
        old = await peering.relay.connect("relay:", 1)
        assert await _ask(peering, Ticket(job=GREATER.job, attempt=2)) == 0
        with pytest.raises(ChannelClosed):
            await old.read(1)

    asyncio.run(asyncio.wait_for(run(), 20))
