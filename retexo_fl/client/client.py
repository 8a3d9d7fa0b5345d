"""A client: owns one partition, trains on it, and swaps vectors with its peers."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
import torch
from scipy.sparse import csr_array

from retexo_fl.channels.base import Channel
from retexo_fl.client.answers import (
    KEYLESS,
    LACKING_MASKED,
    LACKING_PUBLISH,
    evaluate_answer,
    sum_facts,
    train_answer,
)
from retexo_fl.client.api import (
    MESSAGE_VERSION,
    Answering,
    AnswerT,
    CollectAnswer,
    CollectRequest,
    CountsAnswer,
    CountsRequest,
    EndAnswer,
    EndRequest,
    EvaluateAnswer,
    EvaluateRequest,
    HelloAnswer,
    HelloRequest,
    KeysAnswer,
    KeysRequest,
    LabelsAnswer,
    LabelsRequest,
    PeerTraffic,
    PublishAnswer,
    PublishRequest,
    Request,
    Ticket,
    Traffic,
    TrainAnswer,
    TrainRequest,
    asks_sums,
    chain_digest,
    purpose_of,
    told_weights,
)
from retexo_fl.client.edge_fit import as_read, check_edges
from retexo_fl.client.mailbox import Mailbox, WatchBlocks
from retexo_fl.client.masks import ClientMasks
from retexo_fl.client.moved import EXCHANGE, ExchangeAccount, Moved
from retexo_fl.client.stage_input import node_sets, stage_input
from retexo_fl.client.stage_rows import (
    layer_inputs,
    read_rows,
    summed_rows,
    with_coordinates,
    with_layer_outputs,
)
from retexo_fl.client.store import ClientStore
from retexo_fl.client.trainers import ClientTrainers
from retexo_fl.client.vector_carrier import VectorCarrier
from retexo_fl.config import RunConfig, config_digest
from retexo_fl.errors import (
    AgreementError,
    ChannelError,
    CheckpointError,
    ConfigurationError,
    ExchangeIncomplete,
    LocalProtocolError,
    MaskingKeysLost,
    PartitionError,
    ProtocolError,
    SecureAggregationRefused,
    StaleAttempt,
)
from retexo_fl.exchange import Vectors, row_codec
from retexo_fl.graph import BoundaryPlan, GraphPartition, normalise_features
from retexo_fl.graph.features import Features
from retexo_fl.graph.labels import REGRESSION
from retexo_fl.graph.parts.isolated import without_peers
from retexo_fl.layers.base import StageInput
from retexo_fl.masking.agreement import USES
from retexo_fl.training.basis import (
    BasisForm,
)
from retexo_fl.training.effective_plan import effective_plan
from retexo_fl.training.label_facts import (
    class_counts,
    classes_by_use,
    facts_length,
    label_sums,
)
from retexo_fl.training.layer_trainer import LayerTrainer, StageTrainer
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.selection import Score
from retexo_fl.training.sent_rows import parted_rows, sent_rows
from retexo_fl.training.stage_model import ModelShape, num_weights
from retexo_fl.training.tally import LayerUpdate, Tally
from retexo_fl.units import counted
from retexo_fl.updates import (
    UpdateCodec,
    UpdateKey,
    most_held,
    update_codec,
    weights_name,
)

if TYPE_CHECKING:
    from retexo_fl.channels.key_signing import RosterSigner

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

#: What follows from the questions that were asked, what owners agreed on, what peers sent and the
#: disk: it may be told under masks, too.
_TOLD: Final = (
    *(AgreementError, ChannelError, CheckpointError, ConfigurationError, ExchangeIncomplete),
    *(ProtocolError, SecureAggregationRefused, StaleAttempt),
)
#: Rows that are sent under masks stay below; no codec refuses them.
_MOST_ROW: Final = 2.0**60
#: Longest time a client may be asked to wait for vectors; a handler that waits blocks its node.
MAX_WAIT_S: Final = 30.0
_POLL_S: Final = 0.05


class GraphClient(Answering):
    """Implements :class:`~retexo_fl.client.api.ClientApi` for one partition and one job.

    Every answer is a function of partition, configuration, closed exchange and request. What is
    cached (the trainer of one stage, decoded vectors) can be rebuilt from ``store`` and
    ``channel``. When the job is over for this client, ``on_forget`` is called; without one, store
    and channel forget it. Predictions are made where there is a folder for them, ``predictions``.
    """

    def __init__(
        self,
        partition: GraphPartition,
        config: RunConfig,
        *,
        job: str,
        channel: Channel,
        store: ClientStore,
        on_forget: Callable[[], None] | None = None,
        predictions: Path | None = None,
    ) -> None:
        torch.set_num_threads(config.threads)
        if config.traits.drops_edges:
            partition = without_peers(partition)
        check_edges(config.model, partition)
        self._edge_values = partition.edge_values
        partition = as_read(config.model, partition)
        self._partition = partition
        self._config = config
        self._exchanges_in_rounds = config.traits.exchanges_in_rounds
        self._codec = update_codec(
            update_bits=config.update_bits,
            weight_bits=config.weight_bits,
            keeps_zeros=config.codec == "dense",
            masked=config.secure_aggregation == "masked",
        )
        self._masks: ClientMasks | None = None
        if config.secure_aggregation == "masked":
            self._masks = ClientMasks(
                job,
                partition.client,
                store,
                clients=config.clients,
                config=config_digest(config),
            )
        #: What it may add to sums: to others it adds zeros.
        self._uses = frozenset(USES)
        self._job = job
        self._store = store
        self._on_forget = self._forget_job if on_forget is None else on_forget
        self._channel = channel
        self._predictions = predictions
        self._plan = BoundaryPlan.from_partition(partition, effective_plan(config))
        codec = row_codec(config.codec, config.row_bits)
        self._moved = ExchangeAccount(store)
        self._exchanged: Callable[[Ticket], PeerTraffic] | None = None
        self._mailbox = Mailbox(partition.client, job, self._plan, channel, codec=codec)
        self._shape = ModelShape.of_part(config, partition)
        self._sum_facts = sum_facts(config, self._shape.classes)
        self._nodes = node_sets(partition)
        self._made = self._new_trainers()
        self._trainers: dict[tuple[int, bytes], StageTrainer] = {}
        #: What a basis of sums is of, while it is made.
        self._sums: Features | None = None

    @property
    def plan(self) -> BoundaryPlan:
        """What it and its peers send each other in an exchange."""
        return self._plan

    @property
    def shape(self) -> ModelShape:
        """Sizes of the model that it trains."""
        return self._shape

    def count_exchanges(self, exchanged: Callable[[Ticket], PeerTraffic]) -> None:
        """Tell what an attempt has moved before a stage by an account that outlives the process."""
        self._exchanged = exchanged

    def watch_exchanges(self, watch: WatchBlocks) -> None:
        """Call ``watch`` with every block of an exchange that was sent or has arrived."""
        self._mailbox.watch = watch

    def use_codec(self, codec: UpdateCodec) -> None:
        """Have updates and weights travel as the server's codec has them."""
        self._codec = codec

    def read_at_once(self) -> None:
        """Have the vectors of an exchange become what its stage trains on when it is closed.

        Then the clients of one process have the vectors of one of them in memory, not of all.
        """
        self._mailbox.reads_once = True

    def use_datagrams(self, datagrams: VectorCarrier) -> None:
        """Exchange with the peers that they reach by datagrams."""
        self._mailbox.datagrams = datagrams

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """See :class:`~retexo_fl.client.api.ClientApi`.

        Raises:
            SecureAggregationRefused: As :meth:`_sealed`.
        """
        is_sealed = asks_sums(request) or isinstance(request, PublishRequest | CollectRequest)
        try:
            with self._sealed() if is_sealed else nullcontext():
                return super().ask(request)
        except MaskingKeysLost:
            # It follows from its memory alone, before data is read.
            lacking: Any = KEYLESS
            return cast("AnswerT", lacking)

    @contextmanager
    def _sealed(self) -> Generator[None]:
        """Have what fails by this client's data be told by one sentence, where sums are masked.

        Raises:
            PartitionError: Its part does not fit a peer's.
            SecureAggregationRefused: An answer could not be computed; the owner's log says why.
        """
        try:
            yield
        except Exception as error:
            self._keep_to_owner(error)
            if isinstance(error, PartitionError):
                raise PartitionError(
                    "its part and a peer's do not fit together; the log of its agent says where"
                ) from None
            raise SecureAggregationRefused(
                "an answer could not be computed; the log of its agent says why"
            ) from None

    def _keep_to_owner(self, error: Exception) -> None:
        """Tell the owner alone what failed (where: in the log of level DEBUG).

        Raises:
            Exception: The error itself, where it may be told: without masks, or not of data.
        """
        if self._masks is None or isinstance(error, _TOLD):
            raise error
        logger.warning(
            "client %d: its answer could not be computed: %s: %s",
            self._partition.client,
            type(error).__name__,
            " ".join(str(error).split()),
        )
        logger.debug("it failed here", exc_info=error)

    def hello(self, request: HelloRequest) -> HelloAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit(request.ticket)
        part, counts, brings = self._partition, self._told_counts(), ""
        key, signature, agreement = None, None, None
        if self._masks is not None:
            agreement = self._masks.agreed()
            key, signature = self._masks.introduce(request.ticket.attempt)
            has = [use for use in USES if getattr(counts, use)]
            brings = " ".join(sorted(self._masks.brings(has)))
            counts = CountsAnswer(**dict.fromkeys(asdict(counts), 0))
        return HelloAnswer(
            version=MESSAGE_VERSION,
            client=part.client,
            num_clients=part.num_clients,
            partitioning=part.partitioning,
            features=part.num_features,
            classes=part.num_classes,
            edge_features=self._edge_values.num_attributes,
            directed=self._edge_values.is_directed,
            label_uses=() if key else classes_by_use(self._labels_by_use(), part.num_classes),
            label_sums=() if key else self._label_sums(),
            recipe=part.recipe_digest,
            brings=brings,
            mask_key=key,
            mask_signature=signature,
            agreement=agreement,
            **asdict(counts),
        )

    def _told_counts(self) -> CountsAnswer:
        """Return all counts that the server is told of a part, or of a cohort."""
        return CountsAnswer(
            nodes=self._partition.num_inner,
            vectors_out=self._plan.num_send,
            vectors_in=self._plan.num_receive,
            **self._counts(),
        )

    def _counts(self) -> dict[str, int]:
        """Return how many nodes, or pairs, it has of each use."""
        return {use: len(rows) for use, rows in node_sets(self._partition).by_use.items()}

    def _label_sums(self) -> tuple[float, ...]:
        return label_sums(self._config, self._labels_by_use()["train"], self._partition.num_classes)

    # ---- masked sums ------------------------------------------------------------------------

    def end(self, request: EndRequest) -> EndAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit(request.ticket)
        self._forget()
        return EndAnswer(client=self._partition.client)

    def keys(self, request: KeysRequest) -> KeysAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit(request.ticket)
        return self._held_masks().learn(request)

    def counts(self, request: CountsRequest) -> CountsAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        # In the clear hello has told them.
        self._held_masks()
        self._admit_to_sum(request.ticket)
        self._enter(request)
        others = dict.fromkeys({*USES} - self._uses, 0)
        return self._answered(
            request, self._computed(lambda: replace(self._told_counts(), **others))
        )

    def labels(self, request: LabelsRequest) -> LabelsAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        # In the clear nobody is told.
        self._held_masks()
        self._admit_to_sum(request.ticket)
        self._enter(request)
        answer = self._computed(
            lambda: LabelsAnswer(uses=self._class_counts(), sums=self._label_sums())
        )
        return self._answered(request, answer)

    def _class_counts(self) -> tuple[int, ...]:
        """Return (3 C,) counts: see :class:`.LabelsAnswer`."""
        return class_counts(self._labels_by_use(), self._partition.num_classes)

    def sign_masks(self, signer: RosterSigner | None, *, least_clients: int) -> None:
        """Sign the masking key, and believe no other client's that its owner has not signed.

        Args:
            signer: Signs and checks.
            least_clients: Sums of fewer clients are refused.
        """
        if self._masks is not None:
            self._masks.sign_by(signer, least_clients=least_clients)

    def _held_masks(self) -> ClientMasks:
        if self._masks is None:
            raise LocalProtocolError("asked about masks; expected secure-aggregation none")
        return self._masks

    def _answered(
        self,
        request: Request[AnswerT],
        answer: AnswerT | None,
        weights: np.ndarray | None = None,
        size: int = 0,
        *,
        cut: int = 0,
    ) -> AnswerT:
        """Return an answer as it leaves: under masks, where sums are masked.

        Args:
            request: What was asked.
            answer: In the clear; None if :meth:`_computed` returned that.
            weights: What it was computed with, decoded.
            size: How many values its array stands for.
            cut: Of an update under masks, how many values were not finite.
        """
        if self._masks is None:
            assert answer is not None
            return answer
        facts = replace(self._sum_facts, update=size)
        again = self._is_again(request)
        hidden: Any = KEYLESS
        with suppress(MaskingKeysLost):
            hidden = self._masks.hide(request, answer, weights, facts, cut=cut, again=again)
        return cast("AnswerT", hidden)

    def _is_again(self, request: Request[Any]) -> bool:
        """Return whether a round was begun before, by clients of whom some lacked weights."""
        return (
            self._exchanges_in_rounds
            and self._codec.sends_changes
            and isinstance(request, TrainRequest | EvaluateRequest)
            and not self._codec.changed(request.weights)
        )

    def _computed(self, compute: Callable[[], Found]) -> Found | None:
        """Return what an answer is made of; under masks None if that failed.

        What fails follows from this client's data, so the server must not learn whose it was: the
        answer is zeros, and one more value that was cut. Its owner's log says what failed.

        Raises:
            RetexoError: What follows from the questions and the exchange alone.
        """
        try:
            return compute()
        except Exception as error:
            self._keep_to_owner(error)
            return None

    def _lacking(self, answer: AnswerT) -> AnswerT:
        """Return the answer of a client that lacks weights."""
        lacking: Any = LACKING_MASKED
        return answer if self._masks is None else cast("AnswerT", lacking)

    def _labels_by_use(self) -> dict[str, np.ndarray]:
        nodes = self._nodes
        return {use: np.asarray(nodes.labels[rows]) for use, rows in nodes.by_use.items()}

    def _basis_rows(self, ticket: Ticket) -> Features:
        """Return the (N, F) rows that a basis is of."""
        if not self._shape.basis_of_sums:
            return self._features()
        if self._sums is None:
            crossed = self._crossed(0, ticket.weights_digest)
            self._sums = summed_rows(self._shape, crossed)
        return self._sums

    @property
    def _basis_form(self) -> BasisForm:
        config = self._config
        return BasisForm(features=self._shape.features, dtype=config.dtype, bits=config.basis_bits)

    @property
    def _plain_basis(self) -> BasisForm:
        return BasisForm(features=self._shape.features, dtype=self._config.dtype, bits=32)

    def publish(self, request: PublishRequest) -> PublishAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        ticket = request.ticket
        self._admit(ticket)
        rows = self._rows(ticket.stage, ticket.weights_digest)
        if rows is None or not self._can_be_read(ticket):
            weights = self._selected(request)
            if weights is None and request.weights is not None:
                return LACKING_PUBLISH
            before = request.previous_digest if ticket.stage else self._begin()
            self._check_digest(ticket, chain_digest(before, weights))
            rows = self._made_rows(replace(request, weights=weights))
        elif self._masks is not None and not (ticket.stage or self._shape.has_basis):
            self._check_digest(ticket, self.first_digest())
        traffic = self._send(ticket, rows)
        if self._masks is not None:
            self._count(ticket, PeerTraffic(sent=traffic))
            return PublishAnswer()
        traffic = traffic if self._exchanged is None else self._exchanged(ticket).sent
        bound = self._mailbox.error_bound
        return PublishAnswer(vectors=self._plan.num_send, traffic=traffic, error_bound=bound)

    def _check_digest(self, ticket: Ticket, expected: bytes) -> None:
        if ticket.weights_digest != expected:
            masked = "" if self._masks is None else ", or this client's configuration or agreement"
            raise LocalProtocolError(
                f"stage {ticket.stage}: the digest of the weights{masked} is not the one in the "
                "message"
            )

    def first_digest(self) -> bytes:
        """Return the 32 bytes that name rows which no weights have made: the features.

        Raises:
            AgreementError: As :meth:`.RosterSigner.agreement`.
        """
        return chain_digest(self._begin(), None)

    def _begin(self) -> bytes:
        return b"" if self._masks is None else self._masks.rows()

    def _can_be_read(self, ticket: Ticket) -> bool:
        """Return whether nothing else is needed to make the input of a stage of its rows."""
        stage, digest = ticket.stage, ticket.weights_digest
        needs = self._shape.crosses_as_inputs(stage) or (
            self._maps_sums(stage) and digest != self.first_digest()
        )
        return not needs or self._store.weights(stage, digest) is not None

    def _selected(self, request: PublishRequest) -> np.ndarray | None:
        """Return the weights of a request, or the basis; None if it names weights not held."""
        weights, stage = request.weights, request.ticket.stage
        if not stage or weights is None or not (name := self._codec.changed(weights)):
            return weights
        held = self._held(stage - 1, request.previous_digest, name)
        return None if held is None else self._codec.decode_weights(weights, held)

    def _made_rows(self, request: PublishRequest) -> Vectors:
        """Make the rows that cross before a stage with the weights of the request; keep both."""
        ticket, weights = request.ticket, request.weights
        if weights is None:
            made_by = f"those of stage {ticket.stage - 1}" if ticket.stage else "the basis"
            raise LocalProtocolError(
                f"stage {ticket.stage}: the message has no weights; expected {made_by}, whose rows "
                "are not computed yet"
            )
        if not ticket.stage:
            basis = self._basis_form.decode(weights)
            if basis.directions.shape[1] != self._shape.inputs:
                raise LocalProtocolError(
                    f"a basis has {basis.directions.shape[1]} directions; expected "
                    f"{self._shape.inputs}"
                )
            if self._shape.basis_of_sums:
                self._store.put_weights(0, ticket.weights_digest, self._plain_basis.encode(basis))
                return self._features()
            return self._kept(ticket, basis.coordinates(self._features()))
        stage, before = ticket.stage - 1, request.previous_digest
        if self._shape.passes_sums:
            rows = read_rows(self._shape, stage, self._stage_input(stage, before))
            return self._kept(ticket, rows)
        if not self._shape.crosses_as_inputs(ticket.stage):
            trainer = self._trainer(stage, before)
            assert isinstance(trainer, LayerTrainer)
            self._check_weights(ticket, weights, trainer.num_weights)
            rows = trainer.embed(weights).numpy()
        else:
            self._check_weights(ticket, weights, num_weights(self._shape, stage))
            rows = layer_inputs(self._shape, stage, self._stage_input(stage, before))
        if self._shape.crosses_as_inputs(ticket.stage) or self._config.warm_start:
            self._store.put_weights(ticket.stage, ticket.weights_digest, weights)
        return self._kept(ticket, rows)

    def _kept(self, ticket: Ticket, rows: Vectors) -> Vectors:
        if self._masks is not None:
            rows = self._cut(ticket, rows)
        self._store.put_rows(ticket.stage, ticket.weights_digest, rows)
        return rows

    def _cut(self, ticket: Ticket, rows: Vectors) -> Vectors:
        """Return rows that every codec takes: a refusal would tell whose are not."""
        values = rows if isinstance(rows, np.ndarray) else rows.data
        fit = np.abs(values) < _MOST_ROW
        if fit.all():
            return rows
        self._moved.add(ticket, PeerTraffic(), cut=int(np.count_nonzero(~fit)))
        fitting = np.where(fit, values, values.dtype.type(0))
        if isinstance(rows, np.ndarray):
            return fitting
        return csr_array((fitting, rows.indices, rows.indptr), shape=rows.shape)

    def send_again(self, ticket: Ticket) -> None:
        """Hand over the vectors of an exchange once more, if they were made.

        A power cut may have taken what was published; what is in the outbox, or was delivered, is
        not sent twice.
        """
        rows = self._rows(ticket.stage, ticket.weights_digest)
        if rows is not None:
            self._send(ticket, rows)

    def _send(self, ticket: Ticket, rows: Vectors) -> Traffic:
        if not self._shape.crosses_as_inputs(ticket.stage):
            rows = sent_rows(self._config.model, self._partition.degrees, rows)
        return self._mailbox.send(self._crossing(ticket), rows)

    def _crossing(self, ticket: Ticket) -> Ticket:
        """Name the exchange of a stage: features cross once, before their basis is known."""
        if not self._maps_sums(ticket.stage):
            return ticket
        return replace(ticket, weights_digest=self.first_digest())

    def _maps_sums(self, stage: int) -> bool:
        return self._shape.basis_of_sums and not stage

    def collect(self, request: CollectRequest) -> CollectAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        ticket = request.ticket
        self._admit(ticket)
        is_closed = self._store.missing_peers(ticket.stage, ticket.weights_digest) == ()
        if self._masks is not None and is_closed and self._moved.is_told(ticket):
            # As a cohort is asked again that has new keys: nothing has to be read for that.
            return CollectAnswer(complete=True, moved=self._told_exchange(request))
        deadline = time.monotonic() + min(request.wait_s, MAX_WAIT_S)
        width = self._shape.exchange_width(ticket.stage)
        crossing = self._crossing(ticket)
        traffic = self._mailbox.receive(crossing, width, self._config.dtype)
        while self._mailbox.missing_peers() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            traffic += self._mailbox.receive(crossing, width, self._config.dtype)
        missing = self._mailbox.missing_peers()
        if missing and request.close and self._masks is not None:
            raise SecureAggregationRefused(
                f"stage {ticket.stage}: to train without vectors of some peers; expected all under "
                "secure-aggregation masked, since the server could choose whose are missing"
            )
        if not missing or request.close:
            self._store.close_exchange(ticket.stage, ticket.weights_digest, missing)
            if self._mailbox.reads_once:
                self._prepare(ticket)
        if self._masks is not None:
            self._count(ticket, PeerTraffic(received=traffic))
            return CollectAnswer(
                complete=not missing, moved=None if missing else self._told_exchange(request)
            )
        return CollectAnswer(
            complete=not missing,
            missing=sum(self._plan.peer(peer).receive.count for peer in missing),
            missing_peers=len(missing),
            traffic=traffic if self._exchanged is None else self._exchanged(ticket).received,
        )

    def _count(self, ticket: Ticket, moved: PeerTraffic) -> None:
        if self._exchanged is None and moved != PeerTraffic():
            self._moved.add(ticket, moved)

    def _told_exchange(self, request: CollectRequest) -> bytes | None:
        """Return what a complete exchange moved, under masks."""
        ticket, counted = request.ticket, self._exchanged
        moved, cut = self._moved.told(ticket, None if counted is None else counted(ticket))
        told = Moved(by_purpose={EXCHANGE: moved}, vectors=self._plan.num_send, cut=cut)
        return self._held_masks().hide_moved(request, told)

    def _prepare(self, ticket: Ticket) -> None:
        """Make what a stage trains on, unless more than its vectors is needed for that."""
        stage = ticket.stage
        needs_more = self._maps_sums(stage) or self._shape.crosses_as_inputs(stage)
        if not (needs_more or self._shape.passes_sums):
            self._trainer(stage, ticket.weights_digest)
        self._mailbox.drop_decoded()

    def _judged(
        self, request: EvaluateRequest, tally: Tally | None, weights: np.ndarray
    ) -> EvaluateAnswer:
        answer = None
        if tally is not None:
            answer = evaluate_answer(tally, self._own_figure(tally, request.nodes))
        return self._answered(request, answer, weights)

    def _own_figure(self, found: Tally, nodes: str) -> tuple[float, ...]:
        """Return this client's own figure of the test, where the run asks for it."""
        if not self._config.per_client_metrics or nodes != "test":
            return ()
        of_numbers = self._config.task == REGRESSION
        value = Score.of(found, self._made.recipe.metric, counts_right=not of_numbers).value
        return () if value is None else (value,)

    def follow(self, config: RunConfig) -> None:
        """Compute on the devices that a resumed run names."""
        if self._made.follow(config):
            self._drop_trainers()

    def _follow_labels(self, request: TrainRequest | EvaluateRequest) -> None:
        """Train by the loss that follows from all clients' labels."""
        facts = self._checked_facts(request.label_facts)
        if self._made.follow_labels(facts):
            self._drop_trainers()

    def _checked_facts(self, facts: tuple[float, ...]) -> tuple[float, ...]:
        expected = facts_length(self._config, self._shape.classes)
        # A mean may be negative; a scale, and weights, not.
        least = (
            [-math.inf, sys.float_info.min] if self._config.task == REGRESSION else [0.0] * expected
        )
        if len(facts) != expected or any(
            not (math.isfinite(fact) and fact >= bound)
            for fact, bound in zip(facts, least, strict=True)
        ):
            raise LocalProtocolError(
                f"label-facts has {counted(len(facts), 'number')}; expected {expected} finite ones "
                "that can be weights, or mean and scale of labels"
            )
        return facts

    def _drop_trainers(self) -> None:
        self._trainers.clear()

    def close(self) -> None:
        """Release devices; a later message gets them again."""
        self._made.close()

    def _forget(self) -> None:
        self.close()
        self._mailbox.drop_decoded()
        self._on_forget()

    def _forget_job(self) -> None:
        self._channel.forget_job(self._job, self._partition.client)
        self._store.forget()

    def _admit(self, ticket: Ticket) -> None:
        if ticket.job != self._job:
            raise LocalProtocolError(f"message of job {ticket.job!r}; expected {self._job!r}")
        self._store.book.begin(ticket.job, ticket.attempt, client=self._partition.client)

    def _admit_to_sum(self, ticket: Ticket, *, without_keys: bool = False) -> None:
        """Admit a question that is answered by sums; leave out uses that these must not be of.

        Args:
            ticket: Of the question.
            without_keys: As for :meth:`.ClientMasks.uses`.
        """
        self._admit(ticket)
        if self._masks is None:
            return
        uses = self._masks.uses(ticket, without_keys=without_keys)
        if uses == self._uses:
            return
        self._uses = uses
        self._nodes = node_sets(self._partition).only(uses)
        self.close()
        self._made = self._new_trainers()
        self._drop_trainers()

    def _enter(self, request: Request[Any], weights: np.ndarray | None = None) -> None:
        """Note what is computed with, ``weights`` decoded: no other content has this place."""
        ticket, client = request.ticket, self._partition.client
        place = ticket.attempt, ticket.stage, ticket.round, int(self._is_again(request))
        content, form = told_weights(request, weights), getattr(request, "steps", None) or b""
        is_masked, what = self._masks is not None, purpose_of(request)
        error = SecureAggregationRefused if is_masked else LocalProtocolError
        # Without train nodes it judges the weights of each round, and then those after the last.
        twice = what == "evaluate.layer validation" and not is_masked
        self._store.book.enter(what, place, content, form, client=client, twice=twice, error=error)

    def _new_trainers(self) -> ClientTrainers:
        client = self._partition.client
        return ClientTrainers(self._config, self._shape, self._nodes, client=client)

    def _start(
        self, request: TrainRequest, size: int
    ) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the (size,) weights that a round starts from, and the correction of its steps.

        None if the request changes weights that are not held.
        """
        if self._config.local_correction == "none" or request.ticket.round < 2:
            weights = self._weights(request, size)
            return None if weights is None else (weights, None)
        both = self._weights(request, 2 * size)
        return None if both is None else (both[:size], both[size:])

    def _weights(self, request: TrainRequest | EvaluateRequest, size: int) -> np.ndarray | None:
        """Return the (size,) weights of a request; None if it changes those that are not held."""
        codec, ticket = self._codec, request.ticket
        held = None
        if name := codec.changed(request.weights):
            held = self._held(ticket.stage, ticket.weights_digest, name)
            if held is None:
                return None
        weights = codec.decode_weights(request.weights, held)
        self._check_weights(ticket, weights, size)
        self._enter(request, weights)
        if codec.sends_changes:
            most = most_held(self._config.patience)
            self._store.hold_weights(ticket.stage, weights_name(weights), weights, most=most)
        return weights

    def _held(self, stage: int, digest: bytes, name: bytes) -> np.ndarray | None:
        """Return the weights of this name: of a message of the stage, or those it starts from."""
        held = self._store.held_weights(stage, name)
        if held is not None and weights_name(held) == name:
            return held
        first = self._first_weights(stage, digest)
        return None if first is None or weights_name(first) != name else first

    def _first_weights(self, stage: int, digest: bytes) -> np.ndarray | None:
        """Return the weights that a stage starts from; None if they follow from those not held."""
        before = None
        if stage and self._config.warm_start:
            before = self._store.weights(stage, digest)
            if before is None:
                return None
        return Schedule(shape=self._shape).initial(stage, seed=self._config.seed, before=before)

    def _train_answer(
        self, request: TrainRequest, update: LayerUpdate | None, weights: np.ndarray
    ) -> TrainAnswer:
        if update is None:
            return self._answered(request, None, weights, len(weights))
        ticket = request.ticket
        key = UpdateKey(
            seed=self._config.seed,
            job=ticket.job,
            stage=ticket.stage,
            round=ticket.round,
            client=self._partition.client,
        )
        steps, size = request.steps or b"", len(update.update_sum)
        if "train" not in self._uses:
            # Peers' nodes, too, give a gradient.
            update = replace(update, update_sum=np.zeros_like(update.update_sum))
        coded = self._codec.encode_update(update.update_sum, key, steps, update.spans)
        lost = size - int(np.count_nonzero(np.isfinite(update.update_sum)))
        return self._answered(request, train_answer(update, coded), weights, size, cut=lost)

    def _check_weights(self, ticket: Ticket, weights: np.ndarray, size: int) -> None:
        if weights.shape != (size,) or weights.dtype != self._config.dtype:
            raise LocalProtocolError(
                f"stage {ticket.stage}: got {weights.dtype} weights of shape {weights.shape}; "
                f"expected {self._config.dtype} of shape ({size},)"
            )

    def _trainer(self, stage: int, digest: bytes) -> StageTrainer:
        """Return the trainer of a stage; only the latest is kept in memory."""
        key = (stage, digest)
        if key not in self._trainers:
            self._trainers = {key: self._new_trainer(stage, digest)}
            self._sums = None
            self._mailbox.drop_decoded()
        return self._trainers[key]

    def _new_trainer(self, stage: int, digest: bytes) -> StageTrainer:
        inputs = self._stage_input(stage, digest)
        return self._made.stage(stage, inputs, predicts=self._predictions is not None)

    def _stage_input(self, stage: int, digest: bytes) -> StageInput:
        """Return what a stage's layer reads."""
        crossed = self._crossed(stage, digest)
        if not (self._maps_sums(stage) or self._shape.crosses_as_inputs(stage)):
            return crossed
        weights = self._store.weights(stage, digest)
        if weights is None:
            raise ExchangeIncomplete(
                f"client {self._partition.client}: the weights that make the rows of stage {stage} "
                "have not come"
            )
        if stage:
            return with_layer_outputs(self._shape, stage, weights, crossed)
        return with_coordinates(self._plain_basis.decode(weights), crossed)

    def _crossed(self, stage: int, digest: bytes) -> StageInput:
        """Return own rows and those of peers as they crossed before a stage."""
        rows = self._rows(stage, digest)
        missing = self._store.missing_peers(stage, digest)
        if rows is None or missing is None:
            raise ExchangeIncomplete(
                f"client {self._partition.client}: the exchange of stage {stage} is not closed"
            )
        ticket = Ticket(job=self._job, attempt=0, stage=stage, weights_digest=digest)
        width = self._shape.exchange_width(stage)
        self._mailbox.receive(self._crossing(ticket), width, self._config.dtype)
        received = self._mailbox.vectors(width, self._config.dtype, closed_without=missing)
        received, factors = parted_rows(self._config.model, received)
        inputs = stage_input(self._partition, self._plan, rows, received, missing)
        return replace(inputs, slot_factors=factors)

    def _rows(self, stage: int, digest: bytes) -> Vectors | None:
        """Return own rows as they cross before a stage, or None where they are not made yet."""
        if stage > 0 or (self._shape.has_basis and not self._shape.basis_of_sums):
            return self._store.rows(stage, digest)
        return self._features()

    def _features(self) -> Vectors:
        """Return the (N, F) input features as they are trained on."""
        features = normalise_features(self._partition.features, self._config.feature_normalisation)
        return features.astype(self._config.dtype)
