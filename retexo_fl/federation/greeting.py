"""The first messages of an attempt: who is there, and do all parts belong together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from retexo_fl.client.api import (
    MESSAGE_VERSION,
    ColumnsAnswer,
    GraphSizes,
    HelloAnswer,
    HelloRequest,
    Request,
    Ticket,
    question_of,
)
from retexo_fl.errors import PartitionError
from retexo_fl.federation import records
from retexo_fl.federation.asking import Messenger, named
from retexo_fl.federation.rounds.checked_answers import check_hello
from retexo_fl.federation.rounds.masked_sums import MaskedSums
from retexo_fl.relations import Relations, differing, relations_of
from retexo_fl.units import clients_named

FirstT = TypeVar("FirstT", HelloAnswer, ColumnsAnswer)


@dataclass(frozen=True, kw_only=True)
class Participants:
    """Client indices by what they hold, each ascending.

    Attributes:
        training: Clients with train nodes: only they train.
        validation: Clients with validation nodes, or under masks those of cohorts with some; those
            that do not train are asked to evaluate the weights of every round, which costs no
            update.
        everyone: All clients that answered hello; fewer than there are only with ``min-clients``.
        updating: Those that a round asks for an update: who trains or, under masks, all whom it
            asks for anything; these are whole cohorts, which are asked the same.
    """

    training: tuple[int, ...]
    validation: tuple[int, ...]
    everyone: tuple[int, ...]
    updating: tuple[int, ...]

    @cached_property
    def asked(self) -> tuple[int, ...]:
        """Clients that a round asks for anything, ascending."""
        return tuple(sorted({*self.updating, *self.validation}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """The clients of a job.

    Attributes:
        answers: One for each client that is there, by ascending index.
        participants: Who takes part in what.
        features: Width of the input features, equal on all clients.
        classes: Number of classes, equal on all clients.
        recipe: Digest of the feature recipe, equal on all clients; empty without one.
        edge_features: Attributes of each edge, equal on all clients.
        is_structural: Features are made of the edges, since nodes have none.
        relations: Types of nodes and relations, equal on all clients; None without.
        left_out: By use, clients whose nodes do not count, since too few of their cohorts have any.
    """

    answers: tuple[HelloAnswer, ...]
    participants: Participants
    features: int
    classes: int
    recipe: str
    edge_features: int
    is_structural: bool = False
    relations: Relations | None = None
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def along(self, plan: str) -> Federation:
        """Return the same where clients follow a plan that was settled after their hellos."""
        if plan != "cover":
            return self
        answers = [
            replace(answer, vectors_out=_sizes(answer).cover) if answer.sizes else answer
            for answer in self.answers
        ]
        return replace(self, answers=tuple(answers))

    def under(self, masking: MaskedSums, *, all_train: bool) -> Federation:
        """Return the same with what is added up under masks.

        Args:
            masking: How.
            all_train: As in :func:`greet`.
        """
        known, whole = self.participants, masking.clients()
        added = tuple(map(masking.added, self.answers))
        left_out = {
            use: tuple(
                a.client
                for a, b in zip(self.answers, added, strict=True)
                if a.client in whole and a.has(use) and not b.has(use)
            )
            for use in ("train", "validation", "test")
        }
        # Others of a cohort that lacks a client are absent.
        broken = {*known.everyone}.difference(whole)
        asked = whole if all_train else masking.clients("train", "validation")
        participants = Participants(
            training=tuple(c for c in masking.clients("train") if c in known.training),
            validation=whole if all_train else masking.clients("validation"),
            everyone=known.everyone,
            updating=tuple(sorted({*asked, *broken})),
        )
        return replace(self, answers=added, participants=participants, left_out=left_out)

    @property
    def hellos(self) -> Mapping[int, HelloAnswer]:
        """By client, ascending, its hello."""
        return {answer.client: answer for answer in self.answers}


def _sizes(answer: HelloAnswer) -> GraphSizes:
    return GraphSizes(**dict(zip(GraphSizes.__slots__, answer.sizes, strict=True)))


def greet(  # noqa: PLR0913 - each says what hellos are for
    messenger: Messenger,
    ticket: Ticket,
    *,
    clients: int,
    to_train: bool = True,
    all_train: bool = False,
    counts_links: bool = False,
    sizes: bool = False,
    useful: Callable[[Mapping[int, HelloAnswer]], int] | None = None,
) -> Federation:
    """Wait for all clients, learn their indices, and check that their parts fit together.

    Where rounds may be closed early, so may this: the others are absent for the whole attempt.

    Args:
        messenger: The way to the clients.
        ticket: Names job and attempt.
        clients: How many there must be.
        to_train: Demand a labelled train node; predicting needs none.
        all_train: Clients without train nodes take part in rounds too, since their peers need them.
        counts_links: What clients train on are pairs of nodes.
        sizes: Ask how large their graphs are, too.
        useful: Returns how many of the clients that have answered, ascending, can take part; all
            if None.

    Raises:
        PartitionError: Versions, partitionings, widths or indices disagree, or no client has a
            train node.
        RemoteProtocolError: A client's hello holds impossible values.
        RoundIncomplete: Not all clients were there in time.
    """
    hello = HelloRequest(ticket=ticket, sizes=sizes or None)
    found = whoever_comes(messenger, hello, HelloAnswer, clients, useful=useful)
    answers = tuple(found[client][1] for client in sorted(found))
    _check_agreement(answers, clients, counts_links=counts_links)
    if to_train and not any(answer.has("train") for answer in answers):
        what = "an edge to train on" if counts_links else "a labelled train node"
        raise PartitionError(f"no client has {what}; choose another split")
    messenger.introduce(
        {client: node for client, (node, _) in found.items()},
        attempt=ticket.attempt,
    )
    return Federation(
        answers=answers,
        participants=_participants(answers, all_train=all_train),
        features=answers[0].features,
        classes=answers[0].classes,
        recipe=answers[0].recipe,
        edge_features=answers[0].edge_features,
        is_structural=bool(answers[0].structural),
        relations=relations_of(answers[0].relations),
    )


def whoever_comes(
    messenger: Messenger,
    request: Request[FirstT],
    kind: type[FirstT],
    clients: int,
    *,
    useful: Callable[[Mapping[int, FirstT]], int] | None = None,
) -> dict[int, tuple[int, FirstT]]:
    """Ask what clients answer first of all; return, by client, its Flower node and its answer.

    Args:
        messenger: The way to the clients.
        request: What all are asked; its answer names the client.
        kind: Class of the answer.
        clients: How many there must be.
        useful: As in :func:`greet`.

    Raises:
        PartitionError: Two nodes are one client.
        RoundIncomplete: Clients were missing when the time was over.
    """
    found: dict[int, tuple[int, FirstT]] = {}
    purpose = question_of(request).name
    replies = messenger.ask_whoever_comes(
        request,
        count=clients,
        purpose=purpose,
        missing=lambda: clients_named(tuple(sorted({*range(clients)} - found.keys()))),
        useful=useful and (lambda: useful({client: found[client][1] for client in sorted(found)})),
    )
    for node, reply in replies:
        with named(records.said(reply, "client")):
            answer = records.read_answer(kind, reply)
        if answer.client in found:
            raise PartitionError(
                f"two nodes are client {answer.client}; expected one node for each part"
            )
        found[answer.client] = (node, answer)
    return found


def _check_agreement(answers: Sequence[HelloAnswer], clients: int, *, counts_links: bool) -> None:
    for answer in answers:
        if answer.version != MESSAGE_VERSION:
            raise PartitionError(
                f"client {answer.client}: message version {answer.version}; expected "
                f"{MESSAGE_VERSION}; install the same retexo-fl everywhere"
            )
        check_hello(answer, clients=clients, counts_links=counts_links)
    alike = ("partitioning", "num_clients", "recipe", "features", "classes", "edge_features")
    for name in (*alike, "directed", "structural"):
        values = {getattr(answer, name): answer.client for answer in answers}
        if len(values) > 1:
            told = "; ".join(
                f"client {client}: {value or 'none'}" for value, client in values.items()
            )
            raise PartitionError(f"parts do not belong together: {name} differs ({told})")
    first = answers[0]
    for answer in answers[1:]:
        if told := differing(relations_of(answer.relations), relations_of(first.relations)):
            raise PartitionError(
                f"parts do not belong together: clients {answer.client} and {first.client} have "
                f"{told}"
            )
    if answers[0].num_clients != clients:
        raise PartitionError(
            f"clients: got {clients}; expected {answers[0].num_clients}, as in the partitioning of "
            "the clients' parts"
        )


def _participants(answers: Sequence[HelloAnswer], *, all_train: bool) -> Participants:
    everyone = tuple(answer.client for answer in answers)
    if all_train:
        return Participants(
            training=everyone, validation=everyone, everyone=everyone, updating=everyone
        )
    training = tuple(a.client for a in answers if a.has("train"))
    return Participants(
        training=training,
        validation=tuple(a.client for a in answers if a.has("validation")),
        everyone=everyone,
        updating=training,
    )
