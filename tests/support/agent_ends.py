"""Agents' services in this process, asked by the bytes of their sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from retexo_fl.agent import wire
from retexo_fl.agent.introductions import Introductions
from retexo_fl.agent.jobs import AgentJobs
from retexo_fl.agent.limits import Limits
from retexo_fl.agent.peer_finding import Peering
from retexo_fl.agent.question_log import QuestionLog
from retexo_fl.agent.service import AgentService, ComputeThread
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.identity import CERTIFICATE_FILE, KEY_FILE, Identity, make_identity
from retexo_fl.channels.key_signing import RosterSigner
from retexo_fl.channels.transports.relay import RelayTransport
from retexo_fl.client.api import (
    AnswerT,
    CollectRequest,
    HelloRequest,
    PublishRequest,
    Request,
    Ticket,
    TrainRequest,
    chain_digest,
    question_of,
)
from retexo_fl.config import config_values, make_config
from retexo_fl.graph import GraphPartition
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.stage_model import ModelShape
from tests.support.limits import PERMISSIVE_LIMITS
from tests.support.loopback import connected, make_members
from tests.support.peer_networks import until

LAZY: dict[str, Any] = {"clients": 2, "hidden": 8, "model": "sage"}
JOB = "job-0123456789ab"
FIRST = Ticket(job=JOB, attempt=1, weights_digest=chain_digest(b"", None))
ROUND = replace(FIRST, round=1)


def _peering(root: Path, client: int) -> Peering:
    """Return an agent's, which knows nobody: these services' depots have a network beside them."""
    folder = root / "peering" / str(client)
    key, certificate = folder / KEY_FILE, folder / CERTIFICATE_FILE
    known = key.exists()
    identity = Identity.load(key, certificate) if known else make_identity(folder, client)
    settings = AgentSettings(
        partition="-",
        socket="-",
        key=str(key),
        certificate=str(certificate),
        state=str(folder),
        introductions=True,
    )
    return Peering(Introductions(settings, identity), RelayTransport())


class Ends:
    """Agents' services over depots in a folder; may be made again as after a kill.

    They are asked by their place in ``parts``.
    """

    def __init__(
        self,
        root: Path,
        parts: Sequence[GraphPartition],
        keys: dict[str, Any],
        *,
        limits: Limits = PERMISSIVE_LIMITS,
        signer: RosterSigner | None = None,
    ) -> None:
        self.root, self.parts, self.config = root, parts, make_config(keys)
        self.values = config_values(self.config)
        self.depots = [BlockDepot(root / str(p.client) / "depot", p.client) for p in parts]
        self.jobs = [
            AgentJobs(
                part,
                depot,
                state=root / str(part.client),
                limits=limits,
                questions=QuestionLog(root / str(part.client), b"part", limits.most_questions),
                signer=signer,
            )
            for part, depot in zip(parts, self.depots, strict=True)
        ]
        for jobs in self.jobs:
            jobs.restore()
        self.services = [
            AgentService(jobs, ComputeThread(), depot, peering=_peering(root, depot.client))
            for jobs, depot in zip(self.jobs, self.depots, strict=True)
        ]

    async def ask(self, client: int, asked: Request[AnswerT], **keys: Any) -> AnswerT:
        """Ask as a ClientApp does, through the bytes of the socket."""
        data = b"".join(wire.encode_request(asked, {**self.values, **keys}))
        announced, body = read_announcement(data)
        self.services[client].expect(announced)
        outcome = await self.services[client].answer(announced.with_body(body))
        data = b"".join(outcome.parts)
        prefix = wire.Prefix.parse(data[: wire.PREFIX_BYTES])
        end = wire.PREFIX_BYTES + prefix.head_bytes
        answer: AnswerT = wire.decode_answer(
            question_of(asked).answer, data[wire.PREFIX_BYTES : end], data[end:]
        )
        return answer

    async def both(self, asked: Request[AnswerT]) -> list[AnswerT]:
        return await asyncio.gather(*(self.ask(client, asked) for client in range(len(self.parts))))

    async def exchange(self) -> None:
        await self.both(HelloRequest(ticket=Ticket(job=JOB, attempt=FIRST.attempt)))
        await self.both(PublishRequest(ticket=FIRST))
        for client in range(len(self.parts)):
            asked = CollectRequest(ticket=FIRST, wait_s=20.0)
            assert (await self.ask(client, asked)).complete

    async def begin(self, client: int, asked: TrainRequest) -> asyncio.Future[Any]:
        """Ask for a round, and return when its first block is on its way to the peer."""
        before = self._num_blocks()
        answer = asyncio.ensure_future(self.ask(client, asked))
        await until(lambda: self._num_blocks() > before)
        return answer

    def _num_blocks(self) -> int:
        return sum(1 for _ in self.root.glob("*/depot/**/*.frames"))

    def weights(self) -> np.ndarray:
        shape = ModelShape.of(self.config, inputs=64, classes=10)
        return Schedule(shape=shape).initial(0, seed=0)


def read_announcement(data: bytes) -> tuple[wire.Announcement, bytes]:
    """Split what an agent's socket gets."""
    prefix = wire.Prefix.parse(data[: wire.PREFIX_BYTES])
    end = wire.PREFIX_BYTES + prefix.head_bytes
    return wire.announced(data[wire.PREFIX_BYTES : end], prefix.body_bytes), data[end:]


@contextmanager
def ends(root: Path, parts: list[GraphPartition], **keys: Any) -> Iterator[Ends]:
    made = Ends(root, parts, {**LAZY, **keys})
    # Another start has other keys and ports; what the depots keep is as before.
    with TemporaryDirectory(dir=root) as folder:
        identities, roster = make_members(Path(folder), len(parts))
        with connected(made.depots, identities, roster):
            yield made
    for service in made.services:
        service.close()
