"""The exchanges of one attempt, and the clients that have to catch up with them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from retexo_fl.client.api import CollectRequest, PublishRequest
from retexo_fl.config import RunConfig
from retexo_fl.errors import RoundIncomplete
from retexo_fl.federation.asking import UNWATCHED, Ask, Messenger, Round, Watch
from retexo_fl.federation.asking.ask import T
from retexo_fl.federation.exchange_with import ExchangeWith
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.federation.rounds.exchange import (
    Exchanged,
    collect,
    collect_all,
    exchange_rows,
    publish,
)
from retexo_fl.units import clients_named, counted
from retexo_fl.updates import UpdateCodec

logger = logging.getLogger(__name__)

#: Time that vectors are given to reach a client which has come back.
_ARRIVAL_S: Final = 5.0
#: Between looks at whether enough clients have come back.
_PAUSE_S: Final = 1.0


class Exchanges:
    """Runs exchanges, and repeats them for clients that were away when they were closed.

    A client is behind only where rounds may be closed without some clients.

    Args:
        messenger: The way to the clients.
        clients: What rounds need of them.
        config: Of the run.
        job: Its finished stages make the rows of the next one.
        codec: Of weights on their way.
        watch: The clock, and what is called for exchanges that stay open.

    Attributes:
        ahead: By stage, what has clients send something else than what follows from the weights of
            the stage before: after all others columns of the edges; of the stage after one that
            teaches types what this one reads.
        behind: Clients that have not closed the last exchange, and so cannot train or evaluate; of
            each the first stage whose exchange it lacks.
    """

    def __init__(
        self,
        messenger: Messenger,
        clients: Clients,
        config: RunConfig,
        job: JobState,
        *,
        codec: UpdateCodec,
        watch: Watch = UNWATCHED,
    ) -> None:
        self._messenger = messenger
        self._clients = clients
        self._config = config
        self._codec = codec
        self._job = job
        self._watch = watch
        self.ahead: Mapping[int, PublishRequest] = {}
        self.behind: dict[int, int] = {}

    def run(self, stage: int) -> Exchanged:
        """Run the exchange of a stage with all who can take part in it."""
        begun_s = self._watch.clock.now_s()
        if stage and self.behind:
            self._catch_up(stage - 1)
        clients = [c for c in self._messenger.clients if c not in self.behind]
        exchanged = self._messenger.run(
            exchange_rows(
                self._clients,
                self._request(stage),
                config=self._config,
                name=self._name(stage),
                among=clients,
                watch=self._watch,
            )
        )
        for client in clients:
            if client not in exchanged.closed:
                self.behind[client] = stage
        self._job.exchange_s += self._watch.clock.now_s() - begun_s
        return exchanged

    def run_first(self, stage: int, then: int) -> None:
        """Run the exchange of a stage; prepare one that follows from it, and from no weights."""
        self.run(stage)
        ticket = replace(self._job.ticket(stage), stage=then)
        self.ahead = {**self.ahead, then: PublishRequest(ticket=ticket)}

    def run_early(self, stage: int) -> None:
        """Run the exchange of a stage before the one before it is trained, whose input crosses."""
        ticket = replace(self._job.ticket(stage - 1), stage=stage)
        request = PublishRequest(ticket=ticket, previous_digest=ticket.weights_digest)
        self.ahead = {**self.ahead, stage: request}
        self.run(stage)

    @property
    def go_along(self) -> bool:
        """Whether :meth:`run_with` asks for an exchange together with what follows it.

        That is so where weights are sent as changes: what follows is small enough to be sent again
        if vectors are late.
        """
        return (
            self._clients.most_held > 0
            and not self._messenger.policy.may_close_early
            and not self._config.relay
            and not self._clients.exchange_in_rounds
        )

    def run_with(self, stage: int, asking: Round[T]) -> tuple[Exchanged, T]:
        """Run the exchange of a stage and the round that follows; return what came of both.

        Where they :attr:`go_along`, the round's first question goes with the exchange's in the
        same messages: with its last one, or in a deployment, where clients can wait for vectors,
        with all of them. A client whose vectors are late is asked again.
        """
        ask = next(asking)
        if not self.goes_with(ask):
            exchanged = self.run(stage)
            return exchanged, self._messenger.go_on(asking, self._messenger.answers(ask))
        both = self.with_question(stage)
        result = self._messenger.go_on(asking, both.answers(ask))
        return both.exchanged, result

    def goes_with(self, ask: Ask) -> bool:
        """Whether an exchange goes in the messages of a question."""
        return self.go_along and list(ask.requests) == self._messenger.clients

    def with_question(self, stage: int) -> ExchangeWith:
        """Return what runs the exchange of a stage together with a question that it goes with."""
        request = self._request(stage)
        ticket = request.ticket
        return ExchangeWith(
            messenger=self._messenger,
            clients=self._clients,
            request=request,
            name=self._name(stage),
            collect_late=lambda late: collect_all(
                self._clients, ticket, late, config=self._config, watch=self._watch
            ),
        )

    def publishing(self, stage: int) -> Round[None]:
        """Have all clients send their vectors of a stage, which :meth:`run` waits for."""
        yield from publish(self._clients, self._request(stage), self._messenger.clients)

    def bring_up(self, stage: int, training: Collection[int]) -> None:
        """Have clients that are back catch up with a stage.

        Raises:
            RoundIncomplete: Too few of the ``training`` clients have, and the time is over.
        """
        least = min(self._config.min_clients, len(training))
        clock = self._watch.clock
        deadline_s = clock.now_s() + self._config.message_timeout_s
        while True:
            self._catch_up(stage)
            if len(self._clients.able(training, self.behind)) >= least:
                return
            if clock.now_s() > deadline_s:
                away = clients_named(tuple(sorted(self.behind)))
                raise RoundIncomplete(
                    f"stage {stage}: {away} did not reconnect within "
                    f"{self._config.message_timeout_s:g} s (message-timeout-s), which leaves fewer "
                    f"than {counted(least, 'client')} (min-clients)"
                )
            clock.pause(_PAUSE_S)

    def _catch_up(self, stage: int) -> None:
        """Repeat all exchanges up to one of ``stage`` for those who are connected again."""
        for client in sorted(self.behind.keys() & self._messenger.connected()):
            first = self.behind.pop(client)
            # What crosses before the next stage may have to, before this one is trained.
            last = min(stage, len(self._job.outcomes))
            for missed in range(first, last + 1 + self._is_ahead(last + 1)):
                if not self._repeat(missed, client):
                    self.behind[client] = missed
                    break
            else:
                logger.warning("client %d takes part again in stage %d", client, stage)

    def _repeat(self, stage: int, client: int) -> bool:
        """Repeat one exchange for one client; return whether it has closed it."""
        request = self._request(stage)
        name, nobody = self._name(stage), frozenset[int]()
        sending = publish(self._clients, request, [client], name=name, counted=nobody)
        if client not in self._messenger.run(sending):
            return False
        drops = self._config.missing_peers == "drop"
        wait_s = _ARRIVAL_S if self._messenger.policy.clients_return else 0.0
        asked = CollectRequest(ticket=request.ticket, wait_s=wait_s, close=drops)
        missing = self._messenger.run(collect(self._clients, asked, [client]))
        return client in missing and (drops or missing[client] is None)

    def _is_ahead(self, stage: int) -> bool:
        """Return whether a stage's exchange does not follow from weights of the stage before."""
        return stage in self.ahead and len(self._job.outcomes) < stage

    def _name(self, stage: int) -> np.ndarray | None:
        """Return what names the weights that make the rows of a stage, where clients hold them."""
        if not stage or self._is_ahead(stage):
            return None
        outcome = self._job.outcomes[stage - 1]
        if outcome.rounds - outcome.best_round >= self._clients.most_held:
            return None
        return self._codec.weights.encode(outcome.weights, held=outcome.weights)

    def _request(self, stage: int) -> PublishRequest:
        """Return what has clients send the rows of a stage."""
        if self._is_ahead(stage):
            return self.ahead[stage]
        ticket = self._job.ticket(stage)
        if not stage:
            return PublishRequest(ticket=ticket, weights=self._job.basis)
        return PublishRequest(
            ticket=ticket,
            previous_digest=self._job.ticket(stage - 1).weights_digest,
            weights=self._job.outcomes[stage - 1].weights,
        )
