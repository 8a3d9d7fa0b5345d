"""Clients whose agents' jobs, depots and networks are real and meet in a country of contacts.

Time is that of a :class:`~tests.support.virtual_loop.VirtualLoop`: it passes while the server, or
whoever tests, lets the loop run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import Context

from retexo_fl.agent import wire
from retexo_fl.agent.job import AgentJob
from retexo_fl.agent.jobs import AgentJobs
from retexo_fl.agent.question_log import QuestionLog
from retexo_fl.agent.remote import RemoteClient
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.identity import Identity, make_identity
from retexo_fl.channels.limits import LinkLimits
from retexo_fl.channels.network import PeerNetwork
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.client.api import AnswerT, Request, Ticket, question_of
from retexo_fl.config import RunConfig, config_values
from retexo_fl.federation.client_handlers import build_client_app, client_index
from retexo_fl.graph import GraphPartition
from retexo_fl.simulation.inline_grid import InlineGrid
from tests.support.contacts import Country, address_of
from tests.support.limits import PERMISSIVE_LIMITS
from tests.support.virtual_loop import VirtualLoop

#: Unix time at which virtual time begins.
EPOCH_S = 1_750_000_000.0


def make_identities(root: Path, clients: int) -> list[Identity]:
    """Make keys and certificates in ``root/CLIENT``."""
    return [make_identity(root / str(client), client) for client in range(clients)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingClient:
    """One client: its blocks, and the network that brings them to peers."""

    depot: BlockDepot
    network: PeerNetwork


def meeting_client(
    loop: VirtualLoop,
    country: Country,
    depot: BlockDepot,
    identities: Sequence[Identity],
    *,
    limits: LinkLimits | None = None,
) -> MeetingClient:
    """Return a client of a country.

    Args:
        loop: Its time.
        country: Where it meets others.
        depot: Its blocks.
        identities: Of all clients.
        limits: What peers are granted.
    """
    roster = Roster.of(
        Member(
            client=client,
            certificate_pem=identity.certificate_pem,
            addresses=(address_of(client),),
        )
        for client, identity in enumerate(identities)
    )
    network = PeerNetwork(
        identities[depot.client],
        roster,
        depot,
        listen=[address_of(depot.client)],
        limits=limits,
        transports={"bluetooth": country.transport(depot.client)},
        wall_clock=lambda: EPOCH_S + loop.time(),
    )
    return MeetingClient(depot=depot, network=network)


@contextlib.contextmanager
def meeting(loop: VirtualLoop, clients: Sequence[MeetingClient]) -> Iterator[None]:
    """Run the networks of clients whenever the loop runs; end them and the loop at last."""
    tasks = [loop.create_task(client.network.run()) for client in clients]
    try:
        loop.pause(0.0)
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        for outcome in ended:
            if not isinstance(outcome, asyncio.CancelledError) and outcome is not None:
                raise outcome
        loop.close()


class AgentOfThisProcess(RemoteClient):
    """An agent that answers at once; questions and answers pass as the bytes of its socket."""

    def __init__(self, jobs: AgentJobs, run_config: dict[str, Any]) -> None:
        super().__init__(Path("-"), run_config)
        self._jobs = jobs

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        head, body = _split(b"".join(wire.encode_request(request, self._run_config)))
        kind = question_of(request).answer
        came = wire.decode_request(head, body)
        job = self._jobs.find(came)
        parts: Any = job
        if isinstance(job, AgentJob):
            parts = job.kept(came)
            if parts is None:
                parts = wire.encode_answer(job.answer(came))
                self._jobs.end(job, came, parts)
        answer: AnswerT = wire.decode_answer(kind, *_split(b"".join(parts)))
        return answer


def _split(data: bytes) -> tuple[bytes, bytes]:
    prefix = wire.Prefix.parse(data[: wire.PREFIX_BYTES])
    end = wire.PREFIX_BYTES + prefix.head_bytes
    return data[wire.PREFIX_BYTES : end], data[end:]


class MeetingFederation:
    """All clients of a training, of whom each has its part, its depot and its network.

    Args:
        root: Everything that clients keep lies below it.
        parts: One for each client.
        country: Where they meet.
        limits: Of their networks.
    """

    def __init__(
        self,
        root: Path,
        parts: Sequence[GraphPartition],
        country: Country,
        *,
        limits: LinkLimits | None = None,
    ) -> None:
        self.loop = VirtualLoop()
        self.country = country
        self.depots = [BlockDepot(root / str(p.client) / "depot", p.client) for p in parts]
        identities = make_identities(root / "keys", len(parts))
        self.clients = [
            meeting_client(self.loop, country, depot, identities, limits=limits)
            for depot in self.depots
        ]
        self._jobs = [
            AgentJobs(
                part,
                depot,
                state=root / str(part.client),
                limits=PERMISSIVE_LIMITS,
                questions=QuestionLog(root / str(part.client), b"part", 100_000),
            )
            for part, depot in zip(parts, self.depots, strict=True)
        ]
        for jobs in self._jobs:
            jobs.restore()

    def grid(self, config: RunConfig) -> InlineGrid:
        """Return a server's way to the clients."""
        values = config_values(config)

        def find(context: Context, ticket: Ticket) -> RemoteClient:
            return AgentOfThisProcess(self._jobs[client_index(context)], values)

        return InlineGrid(build_client_app(find), len(self._jobs), values)

    @contextlib.contextmanager
    def meeting(self) -> Iterator[None]:
        """Let the clients meet whenever the loop runs."""
        with meeting(self.loop, self.clients):
            yield


def limits_that_look_every(seconds: float) -> LinkLimits:
    """Return the limits of networks that look for peers so often."""
    return replace(LinkLimits(), look_every_s=seconds)
