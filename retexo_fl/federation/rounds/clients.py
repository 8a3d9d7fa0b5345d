"""What rounds need of the clients that they ask."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from retexo_fl.client.api import (
    EndRequest,
    HelloAnswer,
    PeerTraffic,
    Request,
    Ticket,
    Traffic,
)
from retexo_fl.client.masked_answers import SumLengths
from retexo_fl.federation.asking import Ask, Round, WaitPolicy
from retexo_fl.federation.rounds.key_renewal import ask_cohorts
from retexo_fl.federation.rounds.masked_sums import MaskedSums, Who, hello_of_sum
from retexo_fl.ledger import ALL_PEERS, Account, TrafficLedger, Volume

#: How long clients are waited for to forget a job.
_END_WITHIN_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The clients of an attempt, and the account of what they move between each other.

    Attributes:
        hellos: By client, ascending, its hello; its answers are compared with that.
        policy: How long answers are waited for, and of how many.
        ledger: Counts what clients report as moved.
        masking: How sums are masked; None where the server gets each client's.
    """

    hellos: Mapping[int, HelloAnswer]
    policy: WaitPolicy
    ledger: TrafficLedger
    masking: MaskedSums | None = None

    def hello(self, who: Who) -> HelloAnswer:
        """Return the hello that an answer of a client, or a sum of several, is compared with."""
        if isinstance(who, int):
            return self.hellos[who]
        return hello_of_sum(self.hellos[client] for client in who)

    def able(self, among: Iterable[int], behind: Collection[int]) -> list[int]:
        """Return those of whom answers count while some clients cannot answer.

        Under masks that are those of whole cohorts.
        """
        if self.masking is None:
            return [client for client in among if client not in behind]
        whole = {*self.masking.clients(without=behind)}
        return [client for client in among if client in whole]

    def sums(
        self,
        requests: Mapping[int, Request[Any]],
        *,
        lengths: SumLengths,
        stage: int,
        purpose: str,
        counted: frozenset[int] | None = None,
    ) -> Round[Iterable[tuple[Who, Any]]]:
        """Ask for sums; return each client's, or where they are masked that of all.

        Args:
            requests: By client, ascending; where they are masked of whole cohorts, all the same.
            lengths: How many numbers an answer has.
            stage: Stage index for the ledger.
            purpose: For the ledger.
            counted: As in :class:`.Ask`.
        """
        answers = yield from self.asked(requests, stage=stage, purpose=purpose, counted=counted)
        if self.masking is None:
            return answers
        request = next(iter(requests.values()))
        return [self.masking.summed(request, dict(answers), lengths)]

    def asked(
        self,
        requests: Mapping[int, Request[Any]],
        *,
        stage: int,
        purpose: str,
        counted: frozenset[int] | None = None,
        again: bool = True,
    ) -> Round[Iterable[tuple[int, Any]]]:
        """Ask for sums; return each client's answer, as it came.

        Under masks, a client whose process began anew has no keys. It gets new ones, with its
        cohort, before that is asked the next time.

        Args:
            requests: As in :meth:`sums`.
            stage: Likewise.
            purpose: Likewise.
            counted: Likewise.
            again: As for :func:`.ask_cohorts`.

        Raises:
            RetexoError: As :func:`.ask_cohorts`.
        """
        if self.masking is None:
            return (yield Ask(requests=requests, stage=stage, purpose=purpose, counted=counted))
        ask = Ask(
            requests=requests,
            stage=stage,
            purpose=purpose,
            counted=counted,
            cohorts=self.masking.grouped(requests),
        )
        return (yield from ask_cohorts(self.masking, ask, self.policy.quorum, again=again))

    def end(self, ticket: Ticket) -> Round[None]:
        """Have all clients forget the job, where none did at its last answer: under masks.

        One that is away keeps it until it needs the room.
        """
        if self.masking is None:
            return
        request = EndRequest(ticket=ticket)
        answers = yield Ask.of(
            self.hellos,
            request,
            stage=ticket.stage,
            purpose="end",
            counted=frozenset(),
            within_s=_END_WITHIN_S,
        )
        deque(answers, maxlen=0)

    def count_stage(self, ticket: Ticket, client: int, traffic: Traffic, *, direction: str) -> None:
        """Enter what a client moved to (``out``) or from (``in``) all peers before a stage.

        An agent sends the sum of the attempt each time: an answer may be lost, or sent again.
        """
        enter = self.ledger.raise_to if self.policy.clients_return else self.ledger.add
        for account, volume in _entries(ticket, client, traffic, direction, "exchange"):
            enter(account, volume)

    def count_round(
        self, ticket: Ticket, client: int, traffic: PeerTraffic, *, purpose: str
    ) -> None:
        """Enter what a client and its peers exchanged inside a round."""
        if traffic == PeerTraffic():
            return
        for direction, moved in (("out", traffic.sent), ("in", traffic.received)):
            for account, volume in _entries(ticket, client, moved, direction, purpose):
                self.ledger.add(account, volume)


def _entries(
    ticket: Ticket, client: int, traffic: Traffic, direction: str, purpose: str
) -> Iterator[tuple[Account, Volume]]:
    for kind, volume in (("boundary", traffic.boundary), ("control", traffic.control)):
        account = Account(
            attempt=ticket.attempt,
            kind=kind,
            layer=ticket.stage,
            purpose=purpose,
            client=client,
            peer=ALL_PEERS,
            direction=direction,
        )
        yield account, volume
