"""What rounds need of the clients that they ask."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, TypeAlias

from retexo_fl.client.api import (
    CollectAnswer,
    CollectRequest,
    EndRequest,
    HelloAnswer,
    PeerTraffic,
    PublishAnswer,
    Request,
    Ticket,
    Traffic,
)
from retexo_fl.client.masked_answers import SumLengths
from retexo_fl.client.moved import EXCHANGE
from retexo_fl.config import RunConfig
from retexo_fl.errors import TrainingDiverged
from retexo_fl.federation.asking import SUM, Ask, Round, WaitPolicy
from retexo_fl.federation.rounds.checked_answers import check_collected
from retexo_fl.federation.rounds.key_renewal import ask_cohorts
from retexo_fl.federation.rounds.masked_sums import MaskedSums, Who, members
from retexo_fl.ledger import ALL_PEERS, OF_COHORT, Account, TrafficLedger, Volume
from retexo_fl.units import clients_named, format_counted

#: How long clients are waited for of whom no answer is needed.
_OPTIONAL_WITHIN_S: Final = 60.0
#: By attempt and stage, the clients of whom it is not known what their exchange moved.
Untold: TypeAlias = MutableMapping[tuple[int, int], set[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The clients of an attempt, and the account of what they move between each other.

    Attributes:
        hellos: By client, ascending, its hello; its answers are compared with that, and sums with
            what cohorts have told.
        policy: How long answers are waited for, and of how many.
        ledger: Counts what clients report as moved.
        masking: How sums are masked; None where the server gets each client's.
        untold: What the ledger lacks, where sums are masked.
    """

    hellos: Mapping[int, HelloAnswer]
    policy: WaitPolicy
    ledger: TrafficLedger
    masking: MaskedSums | None = None
    untold: Untold = field(default_factory=dict)

    @property
    def rows(self) -> bytes:
        """What the names of rows begin with; empty without masks."""
        return b"" if self.masking is None else self.masking.rows

    def hello(self, who: Who) -> HelloAnswer:
        """Return the hello that an answer of a client, or a sum of several, is compared with."""
        if isinstance(who, int):
            return self.hellos[who]
        assert self.masking is not None
        return replace(self.hellos[who[0]], client=SUM, **self.masking.counts_of(who))

    @property
    def counted(self) -> dict[Who, HelloAnswer]:
        """Counts as they were told: of each client or, under masks, of each cohort."""
        whose: Iterable[Who] = self.hellos if self.masking is None else sorted(self.masking.counts)
        return {who: self.hello(who) for who in whose}

    @property
    def most_train(self) -> int:
        """What no client has more train nodes than: under masks, those of a cohort."""
        return max(hello.train for hello in self.counted.values())

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
        cohort, before that is asked the next time; what they have told of exchanges under earlier
        ones does not add up, and is asked for again.

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
        answers = yield from ask_cohorts(self.masking, ask, self.policy.quorum, again=again)
        yield from self._ask_untold(self.masking, {client for client, _ in answers})
        return answers

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
            within_s=_OPTIONAL_WITHIN_S,
        )
        deque(answers, maxlen=0)

    def count_stage(self, ticket: Ticket, client: int, traffic: Traffic, *, direction: str) -> None:
        """Enter what a client moved to (``out``) or from (``in``) all peers before a stage.

        An agent sends the sum of the attempt each time: an answer may be lost, or sent again.
        """
        enter = self.ledger.raise_to if self.policy.clients_return else self.ledger.add
        for account, volume in _entries(ticket, client, traffic, direction, EXCHANGE):
            enter(account, volume)

    def count_cohort(self, ticket: Ticket, client: int, answer: CollectAnswer) -> None:
        """Enter what a cohort moved before a stage, once all of it have told that under masks.

        Raises:
            TrainingDiverged: Some of their rows had to be cut.
            RemoteProtocolError: It is no such sum.
        """
        masking = self.masking
        if masking is None:
            return
        exchange = masking.exchange(ticket)
        untold = self.untold.setdefault((ticket.attempt, ticket.stage), {*self.hellos})
        if not answer.complete or client not in untold:
            # Whoever is asked again tells the same.
            return
        exchange.told[client] = answer.moved
        for cohort, moved in masking.moved(CollectRequest, exchange.told, of=client):
            if moved.cut:
                raise TrainingDiverged(
                    f"stage {ticket.stage}: {format_counted(moved.cut, 'value')} of rows that "
                    f"{clients_named(cohort)} sent were not finite or too large; lower "
                    "learning-rate"
                )
            both = moved.by_purpose[EXCHANGE]
            for direction, traffic in (("out", both.sent), ("in", both.received)):
                for account, volume in _entries(ticket, cohort, traffic, direction, EXCHANGE):
                    self.ledger.add(account, volume)
            exchange.vectors += moved.vectors
            untold.difference_update(cohort)

    def _ask_untold(self, masking: MaskedSums, there: Collection[int]) -> Round[None]:
        """Ask cohorts that are there whole what they moved before, where that is not known."""
        for stage, exchange in masking.exchanged.items():
            untold = self.untold[exchange.ticket.attempt, stage].intersection(there)
            cohorts = [c.members for c in masking.cohorts if untold.issuperset(c.members)]
            if not cohorts:
                continue
            answers = yield Ask.of(
                sorted(chain(*cohorts)),
                CollectRequest(ticket=exchange.ticket),
                stage=stage,
                purpose="collect",
                counted=frozenset(),
                within_s=_OPTIONAL_WITHIN_S,
            )
            for client, answer in answers:
                check_collected(self.hellos[client], answer)
                self.count_cohort(exchange.ticket, client, answer)

    def vectors(self, ticket: Ticket, published: Iterable[PublishAnswer]) -> int | None:
        """Return how many vectors clients sent before a stage; None where that is not known."""
        if self.masking is None:
            return sum(answer.vectors for answer in published)
        if self.untold.get((ticket.attempt, ticket.stage)):
            return None
        return self.masking.exchange(ticket).vectors

    def count_round(self, ticket: Ticket, who: Who, traffic: PeerTraffic, *, purpose: str) -> None:
        """Enter what a client, or a cohort, and its peers exchanged inside a round."""
        if traffic == PeerTraffic():
            return
        for direction, moved in (("out", traffic.sent), ("in", traffic.received)):
            for account, volume in _entries(ticket, who, moved, direction, purpose):
                self.ledger.add(account, volume)


def _entries(
    ticket: Ticket, who: Who, traffic: Traffic, direction: str, purpose: str
) -> Iterator[tuple[Account, Volume]]:
    for kind, volume in (("boundary", traffic.boundary), ("control", traffic.control)):
        account = Account(
            attempt=ticket.attempt,
            kind=kind,
            layer=ticket.stage,
            purpose=purpose,
            client=members(who)[0],
            peer=ALL_PEERS if isinstance(who, int) else OF_COHORT,
            direction=direction,
        )
        yield account, volume


def untold_bytes(config: RunConfig, untold: Untold) -> tuple[str, ...]:
    """Return a line on the bytes that the ledger lacks, or none."""
    places = [
        f"{clients_named(tuple(sorted(clients)))} (stage {stage}, attempt {attempt})"
        for (attempt, stage), clients in sorted(untold.items())
        if clients
    ]
    if config.traits.drops_edges or not places:
        return ()
    return (
        f"it is not known how many bytes were exchanged before a stage by {'; '.join(places)}: "
        "someone of their cohort was away, or began anew and did not answer again; all totals "
        "are without them",
    )
