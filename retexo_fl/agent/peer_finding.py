"""How an agent finds its peers with the server's help, for one training at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from retexo_fl.agent.introductions import Introductions
from retexo_fl.channels.transports.relay import RelayTransport
from retexo_fl.client.api import IntroduceAnswer, IntroduceRequest, RelayAnswer, RelayRequest
from retexo_fl.client.peering import Addressed, parcels_of, relay_answer

#: A training that has not asked for parcels for so long no longer needs the relay.
_LEASE_S: Final = 30.0


@dataclass(slots=True)
class Peering:
    """Answers what the server asks so that peers find each other.

    Attributes:
        introductions: Who they are.
        relay: Streams to those who cannot be reached.
    """

    introductions: Introductions
    relay: RelayTransport
    #: Job and attempt that the relay serves, and when it was asked last.
    _served: tuple[str, int] = ("", 0)
    _asked_at_s: float = field(default=float("-inf"))

    async def answer(self, asked: IntroduceRequest | RelayRequest) -> IntroduceAnswer | RelayAnswer:
        """Take the server's roster, or take parcels and return those that leave."""
        if isinstance(asked, IntroduceRequest):
            return IntroduceAnswer(members=self.introductions.take(asked.roster))
        served = (asked.ticket.job, asked.ticket.attempt)
        if served != self._served:
            if not self._makes_way(served):
                return relay_answer([])
            self.relay.reset("the relay serves another attempt")
            self._served = served
        self._asked_at_s = time.monotonic()
        leaving: list[Addressed] = await self.relay.exchange(parcels_of(asked))
        return relay_answer(leaving)

    def _makes_way(self, asking: tuple[str, int]) -> bool:
        """Return whether the relay shall serve another attempt from now on.

        A stream passes through one server only. Of two trainings that need the relay at once, all
        agents serve the one whose name sorts first; the other gets no parcels meanwhile.
        """
        if asking[0] <= self._served[0]:
            return True
        return time.monotonic() - self._asked_at_s > _LEASE_S
