"""What rounds need of the clients that they ask."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from retexo_fl.client.api import (
    CollectAnswer,
    CollectRequest,
    HelloAnswer,
    MaskedAnswer,
    PublishAnswer,
    Request,
    Ticket,
)
from retexo_fl.client.moved import EXCHANGE, STRUCTURE
from retexo_fl.config import RunConfig
from retexo_fl.errors import TrainingDiverged
from retexo_fl.federation.asking import SUM, WaitPolicy, Who, members
from retexo_fl.federation.rounds.masked_sums import MaskedSums
from retexo_fl.ledger import (
    ALL_PEERS,
    OF_COHORT,
    Account,
    PeerTraffic,
    Traffic,
    TrafficLedger,
    Volume,
)
from retexo_fl.relations import Relations, relations_of
from retexo_fl.units import clients_named, format_counted

#: By attempt and stage, the clients of whom it is not known what their exchange moved.
Untold: TypeAlias = MutableMapping[tuple[int, int], set[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """The clients of an attempt, and the account of what they move between each other.

    Attributes:
        hellos: By client, ascending, its hello; its answers are compared with that.
        policy: How long answers are waited for, and of how many.
        ledger: Counts what clients report as moved.
        most_held: Of how many of their last messages clients hold the weights, of which they are
            sent changes and names; 0 where they hold none.
        exchange_in_rounds: What clients answer takes exchanges with their peers.
        end_apart: Clients forget the job by a question of its own, not with their last answer.
    """

    hellos: Mapping[int, HelloAnswer]
    policy: WaitPolicy
    ledger: TrafficLedger
    most_held: int = 0
    exchange_in_rounds: bool = False
    end_apart: ClassVar[bool] = False

    @property
    def rows(self) -> bytes:
        """What the names of rows begin with; empty without masks."""
        return b""

    def hello(self, who: Who) -> HelloAnswer:
        """Return the hello that an answer of a client, or a sum of several, is compared with."""
        assert isinstance(who, int)
        return self.hellos[who]

    @property
    def counted(self) -> dict[Who, HelloAnswer]:
        """Counts as they were reported: of each client or, under masks, of each cohort."""
        return {client: self.hello(client) for client in self.hellos}

    @property
    def classes(self) -> int:
        """How many classes, labels or numbers there are: all hellos agree."""
        return next(iter(self.hellos.values())).classes

    @property
    def relations(self) -> Relations | None:
        """Types of nodes and relations, if there are any: all hellos agree."""
        return relations_of(next(iter(self.hellos.values())).relations)

    @property
    def most_train(self) -> int:
        """What no client has more train nodes than: under masks, those of a cohort."""
        return max(hello.train for hello in self.counted.values())

    @property
    def most_judged(self) -> int:
        """What no client has more nodes of than for training, or for validation."""
        return max(max(hello.train, hello.validation) for hello in self.counted.values())

    def able(self, among: Iterable[int], behind: Collection[int]) -> list[int]:
        """Return those of whom answers count while some clients cannot answer.

        Under masks that are those of whole cohorts.
        """
        return [client for client in among if client not in behind]

    def count_published(self, ticket: Ticket, client: int, answer: PublishAnswer) -> None:
        """Enter what a client has sent to all peers before a stage."""
        self._count_stage(ticket, client, answer.traffic, "out")

    def count_collected(self, ticket: Ticket, client: int, answer: CollectAnswer) -> None:
        """Enter what a client has got from all peers before a stage.

        Under masks what its cohort moved, once all its members have reported that.

        Raises:
            TrainingDiverged: Under masks, some of their rows had to be cut.
            RemoteProtocolError: It is no such sum.
        """
        self._count_stage(ticket, client, answer.traffic, "in")

    def _count_stage(self, ticket: Ticket, client: int, traffic: Traffic, direction: str) -> None:
        # An agent sends the sum of the attempt each time: an answer may be lost, or sent again.
        enter = self.ledger.raise_to if self.policy.clients_return else self.ledger.add
        for account, volume in _entries(ticket, client, traffic, direction, _purpose(ticket)):
            enter(account, volume)

    def vectors(self, ticket: Ticket, published: Iterable[PublishAnswer]) -> int | None:
        """Return how many vectors clients sent before a stage; None where that is not known."""
        del ticket
        return sum(answer.vectors for answer in published)

    def count_cohorts(self, request: Request[Any], answers: Mapping[int, MaskedAnswer]) -> None:
        """Enter what whole cohorts exchanged inside a round for their answers.

        Raises:
            RemoteProtocolError: They have no such sum.
        """

    def count_round(self, ticket: Ticket, who: Who, traffic: PeerTraffic, *, purpose: str) -> None:
        """Enter what a client, or a cohort, and its peers exchanged inside a round."""
        if traffic == PeerTraffic():
            return
        for direction, moved in (("out", traffic.sent), ("in", traffic.received)):
            for account, volume in _entries(ticket, who, moved, direction, purpose):
                self.ledger.add(account, volume)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedClients(Clients):
    """Clients of whom the server gets sums over cohorts alone.

    Attributes:
        masking: How sums are masked; they are compared with what cohorts have reported.
        untold: What the ledger lacks.
    """

    masking: MaskedSums
    untold: Untold = field(default_factory=dict)
    end_apart: ClassVar[bool] = True

    @property
    def rows(self) -> bytes:
        """What the names of rows begin with."""
        return self.masking.rows

    def hello(self, who: Who) -> HelloAnswer:
        """See :meth:`Clients.hello`."""
        if isinstance(who, int):
            return self.hellos[who]
        told = [asdict(c) for members, c in self.masking.counts.items() if {*members}.issubset(who)]
        lists = {"sizes", "vectors_later"}
        total = {name: sum(counts[name] for counts in told) for name in {*told[0]} - lists}
        later = zip(*(counts["vectors_later"] for counts in told), strict=True)
        total["vectors_later"] = tuple(map(sum, later))
        return replace(self.hellos[who[0]], client=SUM, **total)

    @property
    def counted(self) -> dict[Who, HelloAnswer]:
        """See :attr:`Clients.counted`."""
        return {cohort: self.hello(cohort) for cohort in sorted(self.masking.counts)}

    def able(self, among: Iterable[int], behind: Collection[int]) -> list[int]:
        """See :meth:`Clients.able`."""
        whole = {*self.masking.clients(without=behind)}
        return [client for client in among if client in whole]

    def count_published(self, ticket: Ticket, client: int, answer: PublishAnswer) -> None:
        """Enter nothing: clients report that with what has come."""

    def count_collected(self, ticket: Ticket, client: int, answer: CollectAnswer) -> None:
        """See :meth:`Clients.count_collected`."""
        exchange = self.masking.exchange(ticket)
        untold = self.untold.setdefault((ticket.attempt, ticket.stage), {*self.hellos})
        if not answer.complete or client not in untold:
            # Whoever is asked again reports the same.
            return
        exchange.told[client] = answer.moved
        for cohort, moved in self.masking.moved(CollectRequest, exchange.told, of=client):
            if moved.cut:
                raise TrainingDiverged(
                    f"stage {ticket.stage}: {format_counted(moved.cut, 'value')} of rows that "
                    f"{clients_named(cohort)} sent were not finite or too large; lower "
                    "learning-rate"
                )
            both = moved.by_purpose[EXCHANGE]
            for direction, traffic in (("out", both.sent), ("in", both.received)):
                for account, volume in _entries(
                    ticket, cohort, traffic, direction, _purpose(ticket)
                ):
                    self.ledger.add(account, volume)
            exchange.vectors += moved.vectors
            untold.difference_update(cohort)

    def vectors(self, ticket: Ticket, published: Iterable[PublishAnswer]) -> int | None:
        """See :meth:`Clients.vectors`."""
        del published
        if self.untold.get((ticket.attempt, ticket.stage)):
            return None
        return self.masking.exchange(ticket).vectors

    def count_cohorts(self, request: Request[Any], answers: Mapping[int, MaskedAnswer]) -> None:
        """See :meth:`Clients.count_cohorts`."""
        told = {client: answer.moved for client, answer in answers.items()}
        if not any(told.values()):
            return
        for cohort, moved in self.masking.moved(type(request), told):
            for purpose, traffic in moved.by_purpose.items():
                self.count_round(request.ticket, cohort, traffic, purpose=purpose)


def _purpose(ticket: Ticket) -> str:
    """Return what an exchange before a stage was for; columns have a number for each step."""
    return STRUCTURE if ticket.round else EXCHANGE


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
