"""What crosses before each stage: a client's rows are made, kept and sent, its peers' are received.

Both are then what the stage's layer reads. Features cross before stage 0, or their coordinates in a
basis; before a later stage cross the rows that the weights of the one before it make.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol, TypeAlias

import numpy as np
import torch

from retexo_fl.channels.base import Channel
from retexo_fl.client.answers import LACKING_PUBLISH
from retexo_fl.client.api import (
    CollectAnswer,
    CollectRequest,
    PublishAnswer,
    PublishRequest,
    Ticket,
    chain_digest,
)
from retexo_fl.client.mailbox import Mailbox
from retexo_fl.client.row_noise import RowNoise
from retexo_fl.client.sealing import Moving, Sealing
from retexo_fl.client.stage_rows import (
    apart,
    as_corrected,
    as_received,
    bits_of_classes,
    classes_of_bits,
    far_sums,
    fitted_reading,
    layer_inputs,
    layer_outputs,
    layer_outputs_of,
    predicted_classes,
    read_rows,
    rows_with_factor,
    seen_by_peers,
    seen_from_here,
    stage_input,
    together,
    with_coordinates,
    with_layer_outputs,
)
from retexo_fl.client.weights import ClientWeights
from retexo_fl.config import RunConfig
from retexo_fl.errors import ExchangeIncomplete, LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange import Vectors, to_dense
from retexo_fl.graph.features import Features, normalise_features
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.plan.boundary import BoundaryPlan
from retexo_fl.layers.base import StageInput, dense_rows
from retexo_fl.ledger import Traffic
from retexo_fl.training.basis import BasisForm
from retexo_fl.training.effective_plan import effective_plan
from retexo_fl.training.layer_trainer import LayerTrainer
from retexo_fl.training.row_classes import RowClasses, parted_basis
from retexo_fl.training.sent_rows import parted_rows, plans_by_stage, sent_rows

#: Longest time a client may be asked to wait for vectors; a handler that waits blocks its node.
MAX_WAIT_S: Final = 30.0
_POLL_S: Final = 0.05
#: Name in the client's store of the classes that cross in place of first rows, as they came.
_CLASSES: Final = "row-classes"


class Ahead(Protocol):
    """What clients exchange before stage 0, and make features of (``methods/pieces/columns/``)."""

    def rows(self, request: PublishRequest) -> np.ndarray:
        """Return the rows that cross before a stage after all others."""
        ...

    def features(self) -> np.ndarray:
        """Return the (N, F) features that were made."""
        ...

    @property
    def made_by(self) -> np.ndarray | None:
        """What features are made by, as it came; None before."""
        ...


#: Returns the trainer of the stage of this index and digest, which has what its layer reads.
TrainerOf: TypeAlias = Callable[[int, bytes], LayerTrainer]


class Crossing:
    """What one client of one job exchanges with its peers before stages.

    Args:
        partition: The client's part, as its layers read it.
        config: Of the run.
        job: Name of the job.
        channel: Carries blocks.
        weights: Of the client, with its store.
        sealing: Whether its answers leave in the clear or under masks.

    Attributes:
        part: The client's part, as its layers read it.
        plan: What it and its peers send each other in an exchange along all edges.
        plans: By stage, what they do where that is less.
        mailbox: Sends and receives; ``classes`` do so before stages after the first, where rows
            cross once and classes after them; ``columns`` before stages after all others, where
            features are columns of the edges, of which ``ahead`` has the arithmetic.
        row_noise: Makes noised classes that cross in place of first rows; None without ``row-dp``.
        count: Returns what an attempt has moved before a stage, by an account that outlives the
            process; None without one.
    """

    def __init__(
        self,
        partition: GraphPartition,
        config: RunConfig,
        *,
        job: str,
        channel: Channel,
        weights: ClientWeights,
        sealing: Sealing,
    ) -> None:
        self.part = partition
        self._config = config
        self._job = job
        self._weights = weights
        self._shape, self._store = weights.shape, weights.store
        self._beyond = weights.shape.beyond
        self._sealing = sealing
        self.plan = BoundaryPlan.from_partition(partition, effective_plan(config))
        self.plans = plans_by_stage(self._shape, partition, self.plan)
        self.mailbox = Mailbox(
            partition.client,
            job,
            self.plan,
            channel,
            codec=config.row_codec,
            plans=self.plans,
        )
        self.classes: Mapping[int, Mailbox] = {}
        if self._shape.class_bits:
            classes = Mailbox(partition.client, job, self.plan, channel, codec="bits")
            self.classes = dict.fromkeys(range(1, self._shape.layers), classes)
        self.columns: Mapping[int, Mailbox] = {}
        self.ahead: Ahead | None = None
        tells_classes = weights.shape.tells_classes
        self.row_noise = RowNoise(config.row_dp, job) if tells_classes else None
        self.count: Moving | None = None

    def plan_before(self, stage: int) -> BoundaryPlan:
        """Return what it and its peers send each other before a stage, or a layer end to end."""
        return self.plans.get(stage, self.plan)

    # ---- rows are made and sent -----------------------------------------------------------------

    def publish(self, request: PublishRequest, trainer_of: TrainerOf) -> PublishAnswer:
        """Make the rows of a stage, unless that was done, and send every peer its vectors.

        Raises:
            LocalProtocolError: The request names other weights than it has, or they fit no model.
        """
        ticket = request.ticket
        if self.ahead is not None and ticket.stage in self._shape.column_stages:
            return self._publish_ahead(request, self.ahead)
        if self._is_of_far(ticket.stage):
            return self._publish_far(ticket)
        if self._is_read_early(ticket.stage) and request.previous_digest == ticket.weights_digest:
            return self._publish_early(ticket)
        rows = self.rows(ticket.stage, ticket.weights_digest)
        if rows is None or not self._can_be_read(ticket):
            weights = self._selected(request)
            if weights is None and request.weights is not None:
                return LACKING_PUBLISH
            before = request.previous_digest if ticket.stage else self._before()
            self._check_digest(ticket, chain_digest(before, weights))
            rows = self._made_rows(replace(request, weights=weights), trainer_of)
        elif self._sealing.names_features and not (ticket.stage or self._shape.has_basis):
            self._check_digest(ticket, self.first_digest())
        if self._is_made_here(ticket.stage):
            self._keep_missing(ticket, request.previous_digest)
        traffic = self._send(ticket, rows)
        bound = self.mailbox.error_bound
        vectors = self.plan_before(ticket.stage).num_send
        answer = PublishAnswer(vectors=vectors, traffic=traffic, error_bound=bound)
        return self._sealing.published(ticket, answer, self.count)

    def _publish_ahead(self, request: PublishRequest, ahead: Ahead) -> PublishAnswer:
        ticket = request.ticket
        rows = self._store.rows(ticket.stage, ticket.weights_digest)
        if rows is None:
            is_first = ticket.stage == self._shape.column_stages[0]
            before = self.unnamed_digest() if is_first else request.previous_digest
            self._check_digest(ticket, chain_digest(before, request.weights))
            rows = ahead.rows(request)
        answer = PublishAnswer(vectors=self.plan.num_send, traffic=self._send(ticket, rows))
        return self._sealing.published(ticket, answer, self.count)

    def _is_made_here(self, stage: int) -> bool:
        """Return whether rows of peers' nodes before a stage are made here, and none cross."""
        return self._shape.crosses_once and stage > 0

    def _is_silent(self, stage: int) -> bool:
        """Return whether nothing crosses before a stage: neither rows nor classes."""
        return self._is_made_here(stage) and stage not in self.classes

    def _keep_missing(self, ticket: Ticket, previous: bytes) -> None:
        """Remember who was missing first, or close an exchange without them if nothing crosses."""
        before = replace(ticket, stage=ticket.stage - 1, weights_digest=previous)
        self.check_closed(before)
        missing = self._store.missing_peers(before.stage, previous) or ()
        if self._is_silent(ticket.stage):
            self._store.close_exchange(ticket.stage, ticket.weights_digest, missing)
        elif missing:
            self._store.put_note(_missing_before(ticket), json.dumps(missing).encode())

    def _missing_first(self, ticket: Ticket) -> tuple[int, ...]:
        """Return the peers without whose rows those of a stage were made."""
        found = self._store.note(_missing_before(ticket))
        return () if found is None else tuple(json.loads(found))

    def _is_of_far(self, stage: int) -> bool:
        return bool(self._shape.far_types) and stage == self._shape.far_stage

    def _publish_far(self, ticket: Ticket) -> PublishAnswer:
        """Send the sums of far types that a basis is of, too."""
        self._check_digest(ticket, self.first_digest())
        rows = self._store.rows(ticket.stage, ticket.weights_digest)
        if rows is None:
            rows = far_sums(self._shape, self.crossed(0, ticket.weights_digest))
            rows = self._put(ticket, rows)
        vectors = self.plan_before(ticket.stage).num_send
        answer = PublishAnswer(vectors=vectors, traffic=self._send(ticket, rows))
        return self._sealing.published(ticket, answer, self.count)

    def _publish_early(self, ticket: Ticket) -> PublishAnswer:
        """Send what the layer before a stage reads, before that is trained."""
        rows = self._store.rows(ticket.stage, ticket.weights_digest)
        if rows is None:
            rows = self._put(ticket, self._read_rows(ticket.stage - 1, ticket.weights_digest))
        vectors = self.plan_before(ticket.stage).num_send
        answer = PublishAnswer(vectors=vectors, traffic=self._send(ticket, rows))
        return self._sealing.published(ticket, answer, self.count)

    def _read_rows(self, stage: int, digest: bytes) -> Vectors:
        return layer_inputs(self._shape, stage, self.stage_input(stage, digest))

    def _is_read_early(self, stage: int) -> bool:
        """Return whether what crosses before a stage does so before the one before is trained."""
        return 0 < stage < self._shape.stages and self._shape.teaches(stage - 1)

    def is_early(self, ticket: Ticket) -> bool:
        """Return whether an exchange is of what the layer before a stage reads, not trained yet."""
        return self._is_read_early(ticket.stage) and self._note_of(ticket) is None

    def _note_of(self, ticket: Ticket) -> bytes | None:
        """Return the digest under which rows of a stage crossed before its weights were known."""
        return self._store.note(_name_of(ticket))

    def send_again(self, ticket: Ticket) -> None:
        """Hand over the vectors of an exchange once more, if they were made.

        A power cut may have taken what was published; what is in the outbox, or was delivered, is
        not sent twice.
        """
        rows = self.rows(ticket.stage, ticket.weights_digest)
        if rows is not None:
            self._send(ticket, rows)

    def first_digest(self) -> bytes:
        """Return the 32 bytes that name rows which no weights have made: the features.

        Raises:
            AgreementError: As :meth:`.RosterSigner.agreement`.
        """
        return chain_digest(self._before(), None)

    def unnamed_digest(self) -> bytes:
        """Return the 32 bytes that the names of columns on their way begin with."""
        return chain_digest(self._sealing.masks.rows(), None)

    def _before(self) -> bytes:
        """Return what the names of rows begin with: what masks say, and what made the features."""
        rows = self._sealing.masks.rows()
        made_by = None if self.ahead is None else self.ahead.made_by
        return rows if made_by is None else chain_digest(rows, made_by)

    def _check_digest(self, ticket: Ticket, expected: bytes) -> None:
        if ticket.weights_digest != expected:
            raise LocalProtocolError(
                f"stage {ticket.stage}: the digest of {self._sealing.name_of_rows} is not the one "
                "in the message"
            )

    def _can_be_read(self, ticket: Ticket) -> bool:
        """Return whether nothing else is needed to make the input of a stage of its rows."""
        stage, digest = ticket.stage, ticket.weights_digest
        needs = self._is_read_by_weights(stage) and (stage or digest != self.first_digest())
        return not needs or self._store.weights(stage, digest) is not None

    def _selected(self, request: PublishRequest) -> np.ndarray | None:
        """Return the weights of a request, or the basis; None if it names weights not held."""
        weights, stage = request.weights, request.ticket.stage
        if not stage:
            return weights
        return self._weights.named(weights, stage - 1, request.previous_digest)

    def _made_rows(self, request: PublishRequest, trainer_of: TrainerOf) -> Vectors:
        """Make the rows that cross before a stage with the weights of the request; keep both."""
        ticket, weights = request.ticket, request.weights
        if weights is None:
            made_by = f"those of stage {ticket.stage - 1}" if ticket.stage else "the basis"
            raise LocalProtocolError(
                f"stage {ticket.stage}: the message has no weights; expected {made_by}, whose rows "
                "are not computed yet"
            )
        if not ticket.stage:
            return self._first_rows(ticket, weights)
        stage, before = ticket.stage - 1, request.previous_digest
        if self._shape.passes_sums:
            made = layer_inputs if self._shape.crosses_as_inputs(ticket.stage) else read_rows
            return self._put(ticket, made(self._shape, stage, self.stage_input(stage, before)))
        trainer = trainer_of(stage, before)
        self._weights.check(ticket, weights, trainer.num_weights)
        if self._is_read_early(ticket.stage):
            self._store.put_note(_name_of(ticket), before)
            early = self._store.rows(ticket.stage, before)
            rows = self._read_rows(stage, before) if early is None else early
        elif self._shape.crosses_as_inputs(ticket.stage):
            rows = self._as_inputs(trainer)
        else:
            rows = trainer.embed(weights).numpy()
        if self._is_made_here(ticket.stage):
            # Of weights and rows a store keeps the latest: these take those of the stage before.
            rows = self._with_made_rows(ticket, self._stage_input(stage, before), weights, rows)
        if self._is_read_by_weights(ticket.stage) or self._config.warm_start:
            self._store.put_weights(ticket.stage, ticket.weights_digest, weights)
        return self._put(ticket, rows)

    def _first_rows(self, ticket: Ticket, weights: np.ndarray) -> Vectors:
        """Make own rows before the first stage by a basis, as it came; keep what it came with."""
        told, plain = parted_basis(weights, self._shape)
        if self._shape.tells_classes:
            RowClasses.of_told(told, self._shape)
            self._store.put_note(_CLASSES, told.astype("<f8").tobytes())
        basis = self.basis_form.decode(plain)
        if basis.directions.shape[1] != self._shape.inputs:
            raise LocalProtocolError(
                f"a basis has {basis.directions.shape[1]} directions; expected {self._shape.inputs}"
            )
        if self._shape.basis_of_sums:
            self._store.put_weights(0, ticket.weights_digest, self._plain_basis.encode(basis))
            return self.features()
        return self._put(ticket, basis.coordinates(self.features()))

    def _with_made_rows(
        self, ticket: Ticket, before: StageInput, weights: np.ndarray, rows: Vectors
    ) -> Vectors:
        """Put rows of peers' nodes below own ones; keep what corrects them, given classes."""
        stage = ticket.stage
        joined = together(rows, self._received_rows(stage, before, weights))
        if stage in self.classes:
            reading = self._reading(stage, before, weights, rows)
            self._store.put_rows(self._reading_of(stage), ticket.weights_digest, reading)
        return joined

    def _received_rows(self, stage: int, before: StageInput, weights: np.ndarray) -> Vectors:
        """Make rows of peers' nodes, as own ones are made, of what is known of them here."""
        inputs = seen_from_here(self._config.model, before)
        if self._shape.crosses_as_inputs(stage):
            return read_rows(self._shape, stage - 1, inputs)
        return layer_outputs(self._shape, stage - 1, weights, inputs)

    def _reading(
        self, stage: int, before: StageInput, weights: np.ndarray, rows: Vectors
    ) -> np.ndarray:
        """Learn on own nodes what corrects rows of peers' nodes, given their classes."""
        shape = self._shape
        owners = np.asarray(self.part.boundary_owners)
        seen, inputs = seen_by_peers(shape.model, before, owners)
        own = self._own_outputs(stage, weights, rows)
        return fitted_reading(
            shape,
            rows=own,
            degrees=np.asarray(self.part.degrees),
            seen=seen,
            made=layer_outputs(shape, stage - 1, weights, inputs),
            known=inputs.degrees,
            classes=predicted_classes(shape, stage - 1, weights, own),
        )

    def _own_outputs(self, stage: int, weights: np.ndarray, rows: Vectors) -> np.ndarray:
        """Return the (N, H) rows that the layer before a stage makes, of those that are kept."""
        own = rows[: self.part.num_inner]
        if not self._shape.crosses_as_inputs(stage):
            return to_dense(own)
        read = torch.from_numpy(to_dense(own))
        hashes = np.asarray(self.part.node_hashes)
        return layer_outputs_of(self._shape, stage - 1, weights, read, hashes)

    def _reading_of(self, stage: int) -> int:
        """Return under which number, after those of all stages, what corrects rows is kept."""
        return self._shape.stages + stage

    def _as_inputs(self, trainer: LayerTrainer) -> Vectors:
        if self._shape.crosses_once:
            return dense_rows(trainer.read_rows, getattr(torch, self._config.dtype)).numpy()
        return rows_with_factor(self._shape, trainer.read_rows, self.part.degrees)

    def _put(self, ticket: Ticket, rows: Vectors) -> Vectors:
        rows = self._sealing.rows(ticket, rows)
        self._store.put_rows(ticket.stage, ticket.weights_digest, rows)
        return rows

    def _send(self, ticket: Ticket, rows: Vectors) -> Traffic:
        if self._is_silent(ticket.stage):
            return Traffic()
        if ticket.stage in self.classes:
            classes = self.own_classes(ticket.stage, ticket.weights_digest, rows)
            bits = bits_of_classes(classes, self._shape)
            return self.classes[ticket.stage].send(ticket, bits)
        if ticket.stage in self._shape.later_stages:
            return self._mailbox(ticket.stage).send(ticket, rows)
        if self.row_noise is not None:
            rows = self._told_rows(self.row_noise, rows)
        elif not (self._shape.crosses_as_inputs(ticket.stage) or self._shape.crosses_once):
            rows = sent_rows(self._config.model, self.part.degrees, rows)
        return self.mailbox.send(self._crossing(ticket), rows)

    def _told_rows(self, noise: RowNoise, rows: Vectors) -> Vectors:
        """Return what crosses in place of first rows: of each node the row of its noised class."""
        told = self._store.note(_CLASSES)
        assert told is not None, "kept before rows were made"
        assert isinstance(rows, np.ndarray)
        classes = RowClasses.of_told(np.frombuffer(told, "<f8"), self._shape)
        nodes = [peer.send.rows for peer in self.plan.peers]
        if not nodes:
            return np.zeros_like(rows)
        return noise.rows(
            classes,
            rows,
            sent=np.unique(np.concatenate(nodes)),
            hashes=np.asarray(self.part.node_hashes),
        )

    def own_classes(self, stage: int, digest: bytes, rows: Vectors) -> np.ndarray:
        """Return the (N,) predicted classes of own nodes that peers get before a stage.

        Args:
            stage: Its index.
            digest: Of the weights.
            rows: Those that the store keeps for the stage.
        """
        weights = self._store.weights(stage, digest)
        assert weights is not None, "they are kept before the rows"
        own = self._own_outputs(stage, weights, rows)
        return predicted_classes(self._shape, stage - 1, weights, own)

    def _crossing(self, ticket: Ticket) -> Ticket:
        """Name the exchange of a stage: features cross once, before their basis is known.

        So does what a layer reads, where types are taught by it: before its weights are.
        """
        if self._is_read_early(ticket.stage):
            early = self._note_of(ticket)
            return ticket if early is None else replace(ticket, weights_digest=early)
        if not self._maps_sums(ticket.stage):
            return ticket
        return replace(ticket, weights_digest=self.first_digest())

    def _mailbox(self, stage: int) -> Mailbox:
        return self.classes.get(stage) or self.columns.get(stage, self.mailbox)

    @property
    def mailboxes(self) -> tuple[Mailbox, ...]:
        """All that send and receive."""
        return (
            self.mailbox,
            *dict.fromkeys((*self.classes.values(), *self.columns.values())),
        )

    def _maps_sums(self, stage: int) -> bool:
        return self._shape.basis_of_sums and not stage

    # ---- peers' rows are received ---------------------------------------------------------------

    def collect(self, request: CollectRequest) -> CollectAnswer:
        """Say what has arrived, and close the exchange if that is all, or is to do.

        Raises:
            SecureAggregationRefused: It is to be closed without some, though sums are masked.
        """
        ticket = request.ticket
        if self._is_silent(ticket.stage):
            self.check_closed(ticket)
            return self._sealing.collected(request, CollectAnswer(complete=True), 0, self.count)
        deadline = time.monotonic() + min(request.wait_s, MAX_WAIT_S)
        width = self._shape.exchange_width(ticket.stage)
        crossing, mailbox = self._crossing(ticket), self._mailbox(ticket.stage)
        told = self._told_peers(crossing)
        traffic = mailbox.receive(crossing, width, self._config.dtype, told=told)
        while mailbox.missing_peers() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            traffic += mailbox.receive(crossing, width, self._config.dtype)
        self._put_told_peers(crossing, told, mailbox.told_peers)
        missing = mailbox.missing_peers()
        if missing and request.close:
            self._sealing.check_closing(ticket.stage)
            if ticket.stage in self.columns:
                raise ExchangeIncomplete(
                    f"columns of the edges: vectors of clients {list(missing)} are missing; "
                    "expected all, missing-peers wait, or structure degrees"
                )
        if not missing or request.close:
            without = tuple(sorted({*missing, *self._missing_first(ticket)}))
            self._store.close_exchange(ticket.stage, ticket.weights_digest, without)
        plan = self.plan_before(ticket.stage)
        answer = CollectAnswer(
            complete=not missing,
            missing=sum(plan.peer(peer).receive.count for peer in missing),
            missing_peers=len(missing),
            traffic=traffic,
        )
        return self._sealing.collected(request, answer, plan.num_send, self.count)

    def _told_peers(self, crossing: Ticket) -> frozenset[int]:
        """Return the peers of an exchange whose bytes another process of the client has reported.

        Of an agent none: it reports the sum of an attempt each time, by an account of its own.
        """
        content = None if self.count is not None else self._store.note(_told(crossing))
        found = {} if content is None else json.loads(content)
        return frozenset(found["peers"] if found.get("attempt") == crossing.attempt else ())

    def _put_told_peers(
        self, crossing: Ticket, before: frozenset[int], peers: frozenset[int]
    ) -> None:
        if self.count is None and peers != before:
            facts = {"attempt": crossing.attempt, "peers": sorted(peers)}
            self._store.put_note(_told(crossing), json.dumps(facts).encode())

    def check_closed(self, ticket: Ticket) -> None:
        """Check that the exchange before a stage is closed.

        Raises:
            ExchangeIncomplete: It is not.
        """
        if self._store.missing_peers(ticket.stage, ticket.weights_digest) is None:
            raise ExchangeIncomplete(
                f"client {self.part.client}: the exchange of stage {ticket.stage} is not closed"
            )

    # ---- both are read --------------------------------------------------------------------------

    def stage_input(self, stage: int, digest: bytes) -> StageInput:
        """Return what a stage's layer reads.

        A floor and a refinement read what crossed before the last stage.

        Raises:
            ExchangeIncomplete: The exchange is not closed, or weights have not come.
        """
        found = self._stage_input(stage, digest)
        if stage in self.classes:
            reading = self._store.rows(self._reading_of(stage), digest)
            assert isinstance(reading, np.ndarray), "it is kept before the rows"
            classes = self.peers_classes(stage, digest)
            return as_corrected(self._shape, found, reading, classes)
        if self._shape.crosses_once:
            return as_received(self._config.model, found)
        is_there = self._store.missing_peers(stage + 1, digest) is not None
        if self._is_read_early(stage + 1) and is_there:
            return replace(found, read=self.crossed(stage + 1, digest))
        return found

    def peers_classes(self, stage: int, digest: bytes) -> np.ndarray:
        """Return the (B,) classes that owners say of boundary nodes before a stage.

        Raises:
            RemoteProtocolError: One says what is no bit, or a class that there is not.
            ExchangeIncomplete: As :meth:`.Mailbox.vectors`.
        """
        ticket = Ticket(job=self._job, attempt=0, stage=stage, weights_digest=digest)
        width, dtype, mailbox = self._shape.class_bits, self._config.dtype, self.classes[stage]
        mailbox.receive(ticket, width, dtype)
        missing = self._store.missing_peers(stage, digest) or ()
        bits = to_dense(mailbox.vectors(width, dtype, closed_without=missing))
        # Codecs carry any number, and a peer may send any.
        if (wrong := np.argwhere((bits != 0) & (bits != 1))).size:
            node, place = wrong[0]
            raise RemoteProtocolError(
                f"stage {stage}: client {self.part.boundary_owners[node]} says "
                f"{bits[node, place]:g} for a bit of a node's class; expected 0 or 1"
            )
        classes = classes_of_bits(bits)
        if (unknown := np.flatnonzero(classes >= self._shape.classes)).size:
            raise RemoteProtocolError(
                f"stage {stage}: client {self.part.boundary_owners[unknown[0]]} says class "
                f"{classes[unknown[0]]} of a node; expected 0 to {self._shape.classes - 1}"
            )
        return classes

    def _stage_input(self, stage: int, digest: bytes) -> StageInput:
        """Return it without what crosses before the next stage."""
        if stage == self._shape.refinement:
            return self.crossed(stage - 1, digest)
        shape, stage = self._beyond.get(stage, (self._shape, stage))
        crossed = self.crossed(stage, digest)
        if shape.passes_sums and shape.crosses_as_inputs(stage):
            return with_layer_outputs(shape, stage, np.zeros(0, shape.dtype), crossed)
        if not self.needs_weights(stage):
            return crossed
        weights = self._store.weights(stage, digest)
        if weights is None:
            raise ExchangeIncomplete(
                f"client {self.part.client}: the weights that make the rows of stage {stage} "
                "have not come"
            )
        if stage:
            return with_layer_outputs(self._shape, stage, weights, crossed)
        basis = self._plain_basis.decode(weights)
        return with_coordinates(basis, crossed, self._shape.relations, self._shape.far_types)

    def needs_weights(self, stage: int) -> bool:
        """Return whether a stage's input is made of what crossed by weights, or a basis."""
        is_layer_read = self._shape.crosses_as_inputs(stage) and not self._shape.passes_sums
        return self._maps_sums(stage) or is_layer_read

    def _is_read_by_weights(self, stage: int) -> bool:
        """Return whether weights make what crosses before a stage, or is read, of own rows."""
        return self.needs_weights(stage) or stage in self.classes

    def crossed(self, stage: int, digest: bytes) -> StageInput:
        """Return own rows and those of peers as they crossed before a stage.

        Raises:
            ExchangeIncomplete: The exchange is not closed.
        """
        rows = self.rows(stage, digest)
        missing = self._store.missing_peers(stage, digest)
        if rows is None or missing is None:
            raise ExchangeIncomplete(
                f"client {self.part.client}: the exchange of stage {stage} is not closed"
            )
        if self._is_made_here(stage):
            rows, received = apart(rows, self.part.num_inner)
            return stage_input(self.part, self.plan, rows, received, missing)
        ticket = Ticket(job=self._job, attempt=0, stage=stage, weights_digest=digest)
        width = self._shape.exchange_width(stage)
        mailbox = self._mailbox(stage)
        mailbox.receive(self._crossing(ticket), width, self._config.dtype)
        received, factors = mailbox.vectors(width, self._config.dtype, closed_without=missing), None
        if mailbox is self.mailbox and not self._shape.crosses_once:
            received, factors = parted_rows(self._config.model, received)
        inputs = stage_input(self.part, self.plan, rows, received, missing)
        return replace(inputs, slot_factors=factors)

    def rows(self, stage: int, digest: bytes) -> Vectors | None:
        """Return own rows as they cross before a stage, or None where they are not made yet."""
        if stage > 0 or self._shape.coordinates_cross:
            return self._store.rows(stage, digest)
        return self.features()

    def features(self) -> Features:
        """Return the (N, F) input features as they are trained on."""
        found = self.part.features if self.ahead is None else self.ahead.features()
        features = normalise_features(found, self._config.feature_normalisation)
        return features.astype(self._config.dtype)

    @property
    def basis_form(self) -> BasisForm:
        """How a basis of the features travels."""
        config = self._config
        return BasisForm(features=self._shape.features, dtype=config.dtype, bits=config.basis_bits)

    @property
    def _plain_basis(self) -> BasisForm:
        return BasisForm(features=self._shape.features, dtype=self._config.dtype, bits=32)


def _missing_before(ticket: Ticket) -> str:
    return f"missing-{ticket.stage}-{ticket.weights_digest[:8].hex()}"


def _told(ticket: Ticket) -> str:
    return f"told-{ticket.stage}-{ticket.weights_digest[:8].hex()}"


def _name_of(ticket: Ticket) -> str:
    return f"crossed-{ticket.stage}-{ticket.weights_digest[:8].hex()}"
