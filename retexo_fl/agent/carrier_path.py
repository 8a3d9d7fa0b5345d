"""The agent's end of what carries vectors in another way than as blocks; an addition has one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from retexo_fl.channels import BlockKey
from retexo_fl.client.vector_carrier import VectorCarrier
from retexo_fl.exchange.link.messages import Offer


class CarrierPath(Protocol):
    """All exchanges of an agent that go this way."""

    def start(self) -> None:
        """Begin to send and take."""
        ...

    def close(self) -> None:
        """End it."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what ``retexo agent status`` shows of it."""
        ...

    def arrivals(self) -> Arrivals:
        """Return what waits for vectors whichever way they come."""
        ...

    def open_job(
        self, folder: Path, *, clients: int, all_needed: bool, times: int = 0, unadded: str = ""
    ) -> VectorCarrier:
        """Return a job's end.

        Args:
            folder: Keeps what arrived before a stage, for the time after a restart.
            clients: How many the job has.
            all_needed: No peer may stay away, so vectors of different peers may be added as they
                come.
            times: How often each of the job's exchanges comes, with as many vectors; 0 where that
                is not known.
            unadded: Why vectors are stored one by one, none added to another, and what to do; empty
                where some are. Logged when the first have come.
        """
        ...

    def forget_job(self, job: str) -> None:
        """Forget all exchanges of a job."""
        ...


class Arrivals(Protocol):
    """What an agent waits on: blocks, or blocks and what a carrier brings."""

    def wait_for(self, keys: Collection[BlockKey], timeout_s: float) -> frozenset[BlockKey]:
        """Wait until all vectors are there or time is over; return those that are not."""
        ...

    def offers(self, peer: int) -> Sequence[Offer]:
        """Return every block that a peer has not acknowledged."""
        ...
