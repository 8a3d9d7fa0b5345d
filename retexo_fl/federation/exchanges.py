"""The exchanges of one attempt, and the clients that have to catch up with them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from retexo_fl.agent.api import CollectRequest, PublishRequest, Ticket
from retexo_fl.config import RunConfig
from retexo_fl.errors import RoundIncomplete
from retexo_fl.federation.exchange_loop import Exchanged, collect, publish, run_exchange
from retexo_fl.federation.messenger import Messenger
from retexo_fl.federation.waiting import UNWATCHED, Watch
from retexo_fl.progress_state import clients_named
from retexo_fl.units import counted

logger = logging.getLogger(__name__)

#: Time that vectors are given to reach a client which has come back.
_ARRIVAL_S: Final = 5.0
#: Between looks at whether enough clients have come back.
_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """What makes the rows of a stage.

    Attributes:
        ticket: Names the stage.
        previous: Names the stage before; None for stage 0.
        weights: (P,) selected weights of the stage before; None for stage 0.
    """

    ticket: Ticket
    previous: Ticket | None
    weights: np.ndarray | None


class Exchanges:
    """Runs exchanges, and repeats them for clients that were away when they were closed.

    Only where rounds may be closed without some clients is anybody ever behind.

    Args:
        messenger: The way to the clients.
        config: Of the run.
        rows_of: Returns what makes the rows of a stage.
        watch: The clock, and who is told of exchanges that stay open.
    """

    def __init__(
        self,
        messenger: Messenger,
        config: RunConfig,
        rows_of: Callable[[int], StageRows],
        watch: Watch = UNWATCHED,
    ) -> None:
        self._messenger = messenger
        self._config = config
        self._rows_of = rows_of
        self._watch = watch
        self._behind: dict[int, int] = {}

    @property
    def behind(self) -> frozenset[int]:
        """Clients that have not closed the last exchange, and so cannot train or evaluate."""
        return frozenset(self._behind)

    def run(self, stage: int) -> Exchanged:
        """Run the exchange of a stage with all who can take part in it."""
        if stage:
            self._catch_up(stage - 1)
        rows = self._rows_of(stage)
        clients = [c for c in self._messenger.clients if c not in self._behind]
        exchanged = run_exchange(
            self._messenger,
            rows.ticket,
            previous=rows.previous,
            weights=rows.weights,
            config=self._config,
            clients=clients,
            watch=self._watch,
        )
        for client in clients:
            if client not in exchanged.closed:
                self._behind[client] = stage
        return exchanged

    def bring_up(self, stage: int, training: Collection[int]) -> frozenset[int]:
        """Have clients that are back catch up with a stage; return those still behind.

        Raises:
            RoundIncomplete: Too few of the ``training`` clients have, and the time is over.
        """
        least = min(self._config.min_clients, len(training))
        clock = self._watch.clock
        deadline_s = clock.now_s() + self._config.message_timeout_s
        while True:
            self._catch_up(stage)
            if len({*training} - self._behind.keys()) >= least:
                return self.behind
            if clock.now_s() > deadline_s:
                away = clients_named(tuple(sorted(self._behind)))
                raise RoundIncomplete(
                    f"stage {stage}: {away} did not come back within "
                    f"{self._config.message_timeout_s:g} s (message-timeout-s): fewer than "
                    f"{counted(least, 'client')} (min-clients) left"
                )
            clock.pause(_PAUSE_S)

    def _catch_up(self, stage: int) -> None:
        """Repeat all exchanges up to one of ``stage`` for those who are connected again."""
        if not self._behind:
            return
        for client in sorted(self._behind.keys() & self._messenger.connected()):
            first = self._behind.pop(client)
            for missed in range(first, stage + 1):
                if not self._repeat(missed, client):
                    self._behind[client] = missed
                    break
            else:
                logger.warning("client %d is back in stage %d", client, stage)

    def _repeat(self, stage: int, client: int) -> bool:
        """Repeat one exchange for one client; say whether it has closed it."""
        rows = self._rows_of(stage)
        request = PublishRequest(
            ticket=rows.ticket,
            previous_digest=rows.previous.weights_digest if rows.previous else b"",
            weights=rows.weights,
        )
        if client not in publish(self._messenger, request, [client], counted=frozenset()):
            return False
        drops = self._config.missing_peers == "drop"
        wait_s = _ARRIVAL_S if self._messenger.patience.returns else 0.0
        asked = CollectRequest(ticket=rows.ticket, wait_s=wait_s, close=drops)
        missing = collect(self._messenger, asked, [client])
        return client in missing and (drops or not missing[client])
