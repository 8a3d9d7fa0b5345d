"""A client: owns one partition, trains on it, and swaps vectors with its peers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch

from retexo_fl.channels.base import Channel
from retexo_fl.client.answers import KEYLESS, judged_types, sum_facts
from retexo_fl.client.api import (
    MESSAGE_VERSION,
    NUM_SIZES,
    Answering,
    AnswerT,
    CollectAnswer,
    CollectRequest,
    CountsAnswer,
    CountsRequest,
    EndAnswer,
    EndRequest,
    EvaluateRequest,
    HelloAnswer,
    HelloRequest,
    KeysAnswer,
    KeysRequest,
    LabelsAnswer,
    LabelsRequest,
    PublishAnswer,
    PublishRequest,
    Request,
    Ticket,
    TrainRequest,
    asks_sums,
    purpose_of,
    told_weights,
)
from retexo_fl.client.crossing import Crossing
from retexo_fl.client.part import ClientPart, without_peers
from retexo_fl.client.sealing import sealing_of
from retexo_fl.client.store import ClientStore
from retexo_fl.client.trainers import ClientTrainers
from retexo_fl.client.weights import ClientWeights
from retexo_fl.config import RunConfig, config_digest
from retexo_fl.errors import (
    LocalProtocolError,
    MaskingKeysLost,
)
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.training.layer_trainer import LayerTrainer, StageTrainer
from retexo_fl.training.stage_model import ModelShape


class GraphClient(Answering):
    """Implements :class:`~retexo_fl.client.api.ClientApi` for one partition and one job.

    Every answer is a function of partition, configuration, closed exchange and request. What is
    cached (the trainer of one stage, decoded vectors) can be rebuilt from ``store`` and
    ``channel``. When the job is over for this client, ``on_forget`` is called; without one, store
    and channel forget it. Predictions are made where there is a folder for them, ``predictions``.

    Attributes:
        part: Its part, and what it may add to sums.
        shape: Sizes of the model that it trains.
        weights: What it computes with.
        crossing: What it exchanges before stages.
        masks: Its keys and its cohort, or none.
        least_validation: Of fewer validation nodes it adds no products of rows to sums in the
            clear.
        count_sizes: Returns the fields of :class:`.GraphSizes`; none where its owner withholds
            from the server how large its graph is.
        counts_cached: It sends at the test how many rows its mini-batches have read by caches.
    """

    least_validation: int = 0
    crossing_class: ClassVar[type[Crossing]] = Crossing

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
        self.part = ClientPart(partition, config.model)
        partition = self.part.graph
        self._config = config
        self._job = job
        self._store = store
        self._on_forget = self._forget_job if on_forget is None else on_forget
        self._channel = channel
        self._predictions = predictions
        self.shape = ModelShape.of_part(config, partition)
        self._beyond = self.shape.beyond
        self.weights = ClientWeights(config, self.shape, store, client=partition.client)
        types = judged_types(config, self.shape.relations)
        facts = sum_facts(config, self.shape.classes, types=types)
        self._counts_train, self.counts_cached = facts.counts_train, facts.counts_cached
        self._sealing = sealing_of(config, facts, job=job, client=partition.client, store=store)
        self.masks = self._sealing.masks
        self.crossing = self.crossing_class(
            partition, config, job=job, channel=channel, weights=self.weights, sealing=self._sealing
        )
        self._made = self._new_trainers()
        self._trainers: dict[tuple[int, bytes], StageTrainer] = {}
        self.count_sizes: Callable[[], tuple[int, ...]] = tuple
        #: What its trainers know of all clients' labels.
        self._label_facts: tuple[float, ...] | None = None

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """See :class:`~retexo_fl.client.api.ClientApi`.

        Raises:
            SecureAggregationRefused: As :meth:`.Sealing.sealed`.
        """
        is_sealed = asks_sums(request) or isinstance(request, PublishRequest | CollectRequest)
        try:
            with self._sealing.sealed() if is_sealed else nullcontext():
                return super().ask(request)
        except MaskingKeysLost:
            # It follows from its memory alone, before data is read.
            lacking: Any = KEYLESS
            return cast("AnswerT", lacking)

    def hello(self, request: HelloRequest) -> HelloAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit(request.ticket)
        part, counts = self.part.graph, self._told_counts(sizes=bool(request.sizes))
        return HelloAnswer(
            version=MESSAGE_VERSION,
            client=part.client,
            num_clients=part.num_clients,
            partitioning=part.partitioning,
            features=part.num_features,
            classes=part.num_classes,
            edge_features=self.part.edge_values.num_attributes,
            directed=self.part.edge_values.is_directed,
            relations=part.relations_text,
            recipe=part.recipe_digest,
            structural=part.is_structural or None,
            **self.masks.told(request.ticket.attempt, counts, self._told_labels),
        )

    def _told_labels(self) -> dict[str, Any]:
        """Return the fields of hello about labels."""
        return {"label_uses": self.part.label_uses(), "label_sums": self._label_sums()}

    def _told_counts(self, *, sizes: bool = False) -> CountsAnswer:
        """Return all counts of the part that the server gets; under masks summed over a cohort."""
        part, plan_before = self.part.graph, self.crossing.plan_before
        first = plan_before(0)
        return CountsAnswer(
            nodes=part.num_inner,
            vectors_out=first.num_send,
            vectors_in=first.num_receive,
            vectors_later=tuple(plan_before(m).num_send for m in self.shape.further_plans),
            sizes=self.count_sizes() if sizes else (),
            **self.part.counts(),
        )

    def _label_sums(self) -> tuple[float, ...]:
        return self._made.label_sums(self.part.train_labels)

    def _judging_nodes(self) -> np.ndarray:
        """Return the validation nodes whose products with each other may be added up."""
        nodes = self.part.nodes.validation
        is_few = len(nodes) < self.least_validation and not self._sealing.tells_sums_alone
        return nodes[:0] if is_few else nodes

    # ---- masked sums ------------------------------------------------------------------------

    def end(self, request: EndRequest) -> EndAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit(request.ticket)
        self._forget()
        return EndAnswer(client=self.part.graph.client)

    def keys(self, request: KeysRequest) -> KeysAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit(request.ticket)
        return self.masks.learn(request)

    def counts(self, request: CountsRequest) -> CountsAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self.masks.check_asked()
        self._admit_to_sum(request.ticket)
        later = len(self.shape.further_plans)
        if (request.later or 0) != later:
            raise LocalProtocolError(
                f"asked for vectors of {request.later or 0} further exchanges; expected {later}"
            )
        self._enter(request)
        others: dict[str, Any] = dict.fromkeys(self.part.left_out, 0)

        def count() -> CountsAnswer:
            counts = replace(self._told_counts(sizes=bool(request.sizes)), **others)
            untold = (0,) * NUM_SIZES if request.sizes else ()
            return replace(counts, sizes=counts.sizes or untold)

        return self._sealing.answered(request, self._sealing.computed(count))

    def labels(self, request: LabelsRequest) -> LabelsAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self.masks.check_asked()
        self._admit_to_sum(request.ticket)
        self._enter(request)
        answer = self._sealing.computed(
            lambda: LabelsAnswer(uses=self._class_counts(), sums=self._label_sums())
        )
        return self._sealing.answered(request, answer)

    def _class_counts(self) -> tuple[int, ...]:
        """Return the (3 C,) class counts by use; of train nodes zeros, where noise hides these."""
        counts, classes = self.part.class_counts(), self.shape.classes
        return (0,) * classes + counts[classes:] if self._config.update_dp else counts

    @property
    def tells_sums_alone(self) -> bool:
        """Whether nothing can be read of its answers but sums over several clients."""
        return self._sealing.tells_sums_alone

    def is_last(self, request: Request[Any]) -> bool:
        """Return whether the job is over for this client when it has answered a question."""
        return self._sealing.is_last(request)

    @property
    def stages(self) -> int:
        """How many stages it may be asked about, with the floor's."""
        return self.shape.trained_stages + self.shape.has_floor

    def publish(self, request: PublishRequest) -> PublishAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit(request.ticket)

        def trainer_of(stage: int, digest: bytes) -> LayerTrainer:
            trainer = self._trainer(stage, digest)
            assert isinstance(trainer, LayerTrainer)
            return trainer

        return self.crossing.publish(request, trainer_of)

    def collect(self, request: CollectRequest) -> CollectAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        ticket = request.ticket
        self._admit(ticket)
        answer = self.crossing.collect(request)
        if self.crossing.is_early(ticket) and (answer.complete or request.close):
            # Trainers made before it lack what it brought.
            self._drop_trainers()
        is_of_stage = ticket.stage not in self.shape.later_stages
        reads_once = self.crossing.mailbox.reads_once and is_of_stage
        if reads_once and (answer.complete or request.close):
            self._prepare(ticket)
        return answer

    def _prepare(self, ticket: Ticket) -> None:
        """Make what a stage trains on, unless more than its vectors is needed for that."""
        if not (self.crossing.needs_weights(ticket.stage) or self.shape.passes_sums):
            self._trainer(ticket.stage, ticket.weights_digest)
        self.crossing.mailbox.drop_decoded()

    def has_keys_of(self, config: RunConfig) -> bool:
        """Return whether it was made for a run of these keys, but for those that may change."""
        return config is self._config or config_digest(config) == config_digest(self._config)

    def follow(self, config: RunConfig) -> None:
        """Compute on the devices that a resumed run names."""
        if self._made.follow(config):
            self._drop_trainers()

    def _follow_labels(self, request: TrainRequest | EvaluateRequest) -> None:
        """Train by the loss that follows from all clients' labels."""
        facts = request.label_facts
        if facts == self._label_facts:
            return
        if self._made.follow_labels(facts):
            self._drop_trainers()
        self._label_facts = facts

    def _drop_trainers(self) -> None:
        self._trainers.clear()

    def close(self) -> None:
        """Release devices; a later message gets them again."""
        self._made.close()

    def _forget(self) -> None:
        self.close()
        self.crossing.mailbox.drop_decoded()
        self._on_forget()

    def _forget_job(self) -> None:
        self._channel.forget_job(self._job, self.part.graph.client)
        self._store.forget()

    def _admit(self, ticket: Ticket) -> None:
        if ticket.job != self._job:
            raise LocalProtocolError(f"message of job {ticket.job!r}; expected {self._job!r}")
        self._store.book.begin(ticket.job, ticket.attempt, client=self.part.graph.client)

    def _admit_to_sum(self, ticket: Ticket, *, without_keys: bool = False) -> None:
        """Admit a question that is answered by sums; leave out uses that these must not be of.

        Args:
            ticket: Of the question.
            without_keys: As for :meth:`.ClientMasks.uses`.
        """
        self._admit(ticket)
        uses = self.masks.uses(ticket, without_keys=without_keys)
        if uses == self.part.uses:
            return
        self.part.restrict(uses)
        self.close()
        self._made = self._new_trainers()
        self._label_facts = None
        self._drop_trainers()

    def _enter(self, request: Request[Any], weights: np.ndarray | None = None) -> None:
        """Note what is computed with, ``weights`` decoded: no other content has this place."""
        ticket, client = request.ticket, self.part.graph.client
        place = ticket.attempt, ticket.stage, ticket.round, int(self._is_again(request))
        content, form = told_weights(request, weights), getattr(request, "steps", None) or b""
        what, sealing = purpose_of(request), self._sealing
        # Without train nodes it judges the weights of each round, and then those after the last.
        twice = what == "evaluate.layer validation" and sealing.may_judge_again
        self._store.book.enter(
            what, place, content, form, client=client, twice=twice, error=sealing.refusal
        )

    def _is_again(self, request: Request[Any]) -> bool:
        """Return whether a round was begun before, by clients of whom some lacked weights."""
        del request
        return False

    def _new_trainers(self) -> ClientTrainers:
        client = self.part.graph.client
        return ClientTrainers(self._config, self.shape, self.part.nodes, client=client)

    def _weights(self, request: TrainRequest | EvaluateRequest, size: int) -> np.ndarray | None:
        """Return the (size,) weights of a request; None if it changes those that are not held."""
        weights = self.weights.of_request(request, size)
        if weights is not None:
            self._enter(request, weights)
            # Of a floor nothing is named later, but of the last stage, which these would displace.
            holds = request.ticket.stage not in self._beyond
            if self.weights.updates.weights.sends_changes and holds:
                self.weights.hold(request.ticket, weights)
        return weights

    def _trainer(self, stage: int, digest: bytes) -> StageTrainer:
        """Return the trainer of a stage; only the latest is kept in memory.

        That of the last stage stays beside a floor's, after which it may be tested.
        """
        key = (stage, digest)
        if key not in self._trainers:
            beside = self._trainers if stage in self._beyond else {}
            self._trainers = {**beside, key: self._new_trainer(stage, digest)}
            self.crossing.mailbox.drop_decoded()
        return self._trainers[key]

    def _new_trainer(self, stage: int, digest: bytes) -> StageTrainer:
        inputs = self.crossing.stage_input(stage, digest)
        return self._made.stage(stage, inputs, predicts=self._predictions is not None)
