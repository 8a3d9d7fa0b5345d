"""An agent's last round is over once its peers have taken its grants."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from retexo_fl.additions.kernel_path.carrying.control import (
    Grant,
    Way,
    control_frames,
    grant_header,
)
from retexo_fl.agent import wire
from retexo_fl.agent.service import _Running
from retexo_fl.client.api import EvaluateRequest, HelloRequest, Ticket
from retexo_fl.client.peer_exchange import InnerBlock, RoundName
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import ExchangeIncomplete, StaleAttempt
from tests.support.agent_ends import JOB, LAZY, ROUND, Ends, read_announcement


def test_last_round_waits_for_a_grant_its_peer_has_not_taken(tmp_path: Path) -> None:
    # No network: what is sent stays where it is until it is dropped.
    both = Ends(tmp_path, make_parts(make_config(LAZY)), {**LAZY, "algorithm": "standard"})

    async def wait_for_grant() -> None:
        await both.ask(0, HelloRequest(ticket=Ticket(job=JOB, attempt=1)))
        (job,), depot, service = both.jobs[0].running, both.depots[0], both.services[0]
        asked = EvaluateRequest(ticket=ROUND, weights=both.weights(), nodes="test", last=True)
        runner = job.evaluate_runner(asked)
        data = b"".join(wire.encode_request(asked, both.values))
        announced, body = read_announcement(data)
        running, stale = (_Running(request=announced.with_body(body)) for _ in range(2))
        stale.superseded.set()

        block = InnerBlock(
            label="forward 0", number=0, sender=1, receiver=0, vectors=2, width=3, dtype="float32"
        ).header(RoundName(job=JOB, layer=0, codec="fixed"), bytes(32))
        header = grant_header(block, 0, 1)
        kept = Grant(way=Way.KEPT).numbers(1)
        other = replace(header, job="job-ffffffffffff")
        depot.send_block(other.key, control_frames(other, kept, codec="dense"))
        await service._until_taken(job, running, runner)
        depot.send_block(header.key, control_frames(header, kept, codec="dense"))
        with pytest.raises(StaleAttempt, match="superseded by a later message"):
            await service._until_taken(job, stale, runner)
        waits = asyncio.ensure_future(service._until_taken(job, running, runner))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waits.done()
        job.config = replace(job.config, message_timeout_s=1e-9)
        with pytest.raises(ExchangeIncomplete, match="clients 1 did not acknowledge"):
            await service._until_taken(job, running, runner)
        depot.drop_blocks(JOB, {header.key})
        await waits

    asyncio.run(wait_for_grant())
    for service in both.services:
        service.close()
