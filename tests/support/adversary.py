"""A server that asks as it likes, and the real clients of owners who know each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from retexo_fl.channels import MemoryChannel
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.key_signing import RosterSigner, signature_of
from retexo_fl.client.answers import sum_facts
from retexo_fl.client.api import (
    ClientApi,
    CollectRequest,
    CountsRequest,
    EvaluateRequest,
    HelloRequest,
    KeysRequest,
    LabelsRequest,
    MaskedAnswer,
    PublishRequest,
    Request,
    Ticket,
    TrainRequest,
    chain_digest,
)
from retexo_fl.client.masked_answers import form_of
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.store import MemoryStore
from retexo_fl.config import RunConfig, config_digest, make_config
from retexo_fl.errors import MaskingKeysLost
from retexo_fl.federation.rounds.masked_sums import numbers_in
from retexo_fl.graph import GraphPartition
from retexo_fl.masking.agreement import Agreement
from retexo_fl.masking.keys import Counters, rows_of, signed_text
from retexo_fl.masking.streams import Sums
from retexo_fl.methods.lazy.answers import LazyClient
from retexo_fl.training.stage_model import ModelShape, num_weights
from retexo_fl.updates.masked import MaskedUpdates
from tests.support.loopback import make_members
from tests.support.owners import agreed, signer_of

KEYS: dict[str, Any] = {
    "dataset": "synthetic:nodes=200,edges=700,classes=3,features=12,words=4,signal=0.5",
    **{"model": "gcn", "layers": 1, "hidden": 4, "rounds": 2, "split": "random:0.4/0.3/0.3"},
    "secure-aggregation": "masked",
}
JOB = "job-0123456789ab"


@dataclass(slots=True)
class Signed:
    """A key of an attempt and its signature."""

    key: bytes
    signature: bytes


class Adversary:
    """Asks the clients of a federation in one job, each by itself, and adds up what it likes.

    Args:
        clients: Each as the server reaches it.
        parts: Theirs.
        config: Of the job.
        agreement: What their owners agreed on.
        job: Its name.

    Attributes:
        arrival_s: How long rows of peers may take.
        predictions: Folders of the clients that it has made.
        signers: What these sign their keys by.
        signed: By client, what it has said of its key last.
    """

    def __init__(
        self,
        clients: Sequence[ClientApi],
        parts: Sequence[GraphPartition],
        config: RunConfig,
        agreement: Agreement,
        job: str = JOB,
    ) -> None:
        self.clients, self.parts, self.config, self.job = clients, parts, config, job
        self.agreement = agreement
        self.arrival_s = 20.0
        self.predictions: list[Path] = []
        self.signers: list[RosterSigner] = []
        self.everyone = tuple(range(len(clients)))
        self.signed: dict[int, Signed] = {}
        shape = ModelShape.of_part(config, parts[0])
        self.weights = np.zeros(num_weights(shape, 0), np.float32)

    @classmethod
    def in_one_process(
        cls,
        folder: Path,
        clients: int,
        keys: Mapping[str, Any] = MappingProxyType({}),
        of_one: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
        change: Callable[[GraphPartition], GraphPartition] = lambda part: part,
    ) -> Self:
        """Return one that asks real clients in this process, all of them one cohort.

        Args:
            folder: For the owners' keys.
            clients: How many there are.
            keys: Of the run, beside the usual ones.
            of_one: By client, keys that it alone is told otherwise.
            change: Of each part, after the graph was cut.
        """
        values = {**KEYS, **keys, "clients": clients}
        config = make_config(values)
        parts = [change(part) for part in make_parts(config)]
        identities, roster = make_members(folder, clients)
        federation = agreed(roster, identities, cohort_size=clients)
        channel = MemoryChannel()
        made: list[ClientApi] = []
        signers: list[RosterSigner] = []
        written = [folder / f"predictions-{part.client}" for part in parts]
        for part, identity in zip(parts, identities, strict=True):
            told = make_config({**values, **of_one.get(part.client, {})})
            client = LazyClient(
                part,
                told,
                job=JOB,
                channel=channel,
                store=MemoryStore(),
                predictions=written[part.client],
            )
            written[part.client].mkdir()
            signers.append(signer_of(identity, roster, federation))
            client.masks.sign_by(signers[-1], least_clients=3)
            made.append(client)
        server = cls(made, parts, config, federation.agreement)
        server.predictions, server.signers = written, signers
        return server

    # ---- questions ------------------------------------------------------------------------------

    def first(self, config: RunConfig | None = None) -> bytes:
        """Return what names the features; of another configuration, if one is given."""
        told = config_digest(config or self.config)
        return chain_digest(rows_of(told, self.agreement.digest), None)

    def ticket(
        self, attempt: int = 1, number: int = 0, stage: int = 0, digest: bytes = b""
    ) -> Ticket:
        """Return a ticket; ``digest`` names the stage's rows: the features if there is none."""
        digest = digest or self.first()
        return Ticket(
            job=self.job, attempt=attempt, stage=stage, round=number, weights_digest=digest
        )

    def part_counts(self, attempt: int = 1, number: int = 0) -> CountsRequest:
        """Ask for counts of nodes and vectors."""
        return CountsRequest(ticket=self.ticket(attempt, number))

    def labels(self, attempt: int = 1, number: int = 0) -> LabelsRequest:
        """Ask for class counts."""
        return LabelsRequest(ticket=self.ticket(attempt, number))

    def evaluate(
        self, nodes: str, attempt: int = 1, number: int = 0, facts: tuple[float, ...] = ()
    ) -> EvaluateRequest:
        """Ask how many nodes are right."""
        ticket = self.ticket(attempt, number)
        return EvaluateRequest(ticket=ticket, weights=self.weights, nodes=nodes, label_facts=facts)

    def train(self, attempt: int = 1, number: int = 1) -> TrainRequest:
        """Ask for a round's updates."""
        steps = MaskedUpdates().first_steps(
            len(self.weights), most_train=99, terms=len(self.everyone)
        )
        ticket = self.ticket(attempt, number)
        return TrainRequest(ticket=ticket, weights=self.weights, steps=steps)

    # ---- what it does ---------------------------------------------------------------------------

    def meet(self, attempt: int = 1, **changes: Any) -> None:
        """Begin an attempt as an honest server does, exchange included."""
        self.greet(attempt)
        self.hand_out(attempt, self.everyone, **changes)
        self.exchange(attempt)

    def exchange(self, attempt: int = 1) -> None:
        """Have all send each other their rows, and believe that they have all."""
        ticket = self.ticket(attempt)
        for client in self.clients:
            client.ask(PublishRequest(ticket=ticket))
        for client in self.clients:
            client.ask(CollectRequest(ticket=ticket, wait_s=self.arrival_s, close=True))

    def key_of(self, client: int) -> bytes:
        """Return the key of an attempt that a client has told last."""
        return self.signed[client].key

    def greet(self, attempt: int, among: Iterable[int] | None = None) -> None:
        """Ask all, or some, for their keys."""
        request = HelloRequest(ticket=self.ticket(attempt))
        for client in self.everyone if among is None else among:
            hello = self.clients[client].ask(request)
            self.signed[client] = Signed(hello.mask_key or b"", hello.mask_signature or b"")

    def have_signed(
        self, identity: Identity, attempt: int, public: bytes, counters: Counters
    ) -> None:
        """Have a client that works with the server sign a key, whosever and whenever it was."""
        client = identity.client
        text = signed_text(self.job, attempt, client, public, counters)
        self.signed[client] = Signed(public, counters.content + signature_of(identity, text))

    def hand_out(
        self,
        attempt: int,
        among: Collection[int],
        to: Collection[int] | None = None,
        **changes: Any,
    ) -> None:
        """Tell the clients of a cohort, or some of them, that it is theirs."""
        members = tuple(sorted(among))
        signed = [self.signed.get(client, Signed(b"", b"")) for client in members]
        request = KeysRequest(
            ticket=self.ticket(attempt),
            agreement=self.agreement.digest,
            cohort=members,
            uses=" ".join(sorted(self.agreement.cohorts[0].uses)),
            keys=np.frombuffer(b"".join(its.key for its in signed), np.uint8),
            signatures=b"".join(its.signature for its in signed),
        )
        for client in members if to is None else to:
            self.clients[client].ask(replace(request, **changes))

    def ask(self, request: Request[Any], among: Iterable[int]) -> dict[int, MaskedAnswer]:
        """Ask some clients the same.

        Raises:
            MaskingKeysLost: One has no keys of the attempt.
        """
        answers = {client: self.clients[client].ask(request) for client in among}
        for client, answer in answers.items():
            if answer.lacks_keys:
                raise MaskingKeysLost(f"client {client}: has no masking keys of this attempt")
        return answers

    def counts(self, request: Request[Any], answers: Iterable[MaskedAnswer]) -> np.ndarray:
        """Add up the counts of some answers."""
        return self.added(request, answers).signed()[2]

    def update(self, request: TrainRequest, among: Iterable[int]) -> np.ndarray:
        """Ask some clients for updates, and add these up as whole numbers."""
        return self.added(request, self.ask(request, among).values()).signed()[0]

    def added(self, request: Request[Any], answers: Iterable[MaskedAnswer]) -> Sums:
        """Add up some answers."""
        size = len(self.weights) if isinstance(request, TrainRequest) else 0
        lengths = sum_facts(self.config, self.parts[0].num_classes, update=size)
        total = form_of(request, lengths).zeros()
        for answer in answers:
            total.add(numbers_in(answer, total.form))
        return total

    def asked(self, request: Request[Any], among: Iterable[int]) -> np.ndarray:
        """Ask some clients, and add up their counts."""
        return self.counts(request, self.ask(request, among).values())

    # ---- what there is to read ------------------------------------------------------------------

    def class_counts(self, client: int) -> np.ndarray:
        """Return what a client counts of each class: of train, validation and test nodes."""
        part = self.parts[client]
        labels = np.asarray(part.labels)
        masks = (part.train_mask, part.val_mask, part.test_mask)
        return np.concatenate(
            [np.bincount(labels[np.asarray(m)], minlength=part.num_classes) for m in masks]
        )

    def nodes(self, client: int, use: str) -> int:
        """Return how many nodes of a use a client has."""
        part = self.parts[client]
        masks = {"train": part.train_mask, "validation": part.val_mask, "test": part.test_mask}
        return int(masks[use].sum())
