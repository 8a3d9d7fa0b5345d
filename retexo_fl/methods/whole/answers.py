"""A client of an algorithm that trains all layers at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from retexo_fl.client.answers import (
    LACKING_EVALUATE,
    LACKING_TRAIN,
)
from retexo_fl.client.api import (
    CountsAnswer,
    EvaluateAnswer,
    EvaluateRequest,
    Request,
    Ticket,
    TrainAnswer,
    TrainRequest,
    is_lacking,
)
from retexo_fl.client.rounds import AnyAnswer, TrainingClient
from retexo_fl.client.sealing import Found
from retexo_fl.client.trainers import WholeTrainer
from retexo_fl.ledger import PeerTraffic
from retexo_fl.methods.pieces.columns.answers import ColumnClient
from retexo_fl.training.boundary_sampling import BoundarySampling
from retexo_fl.training.end_to_end import EndToEndPlan, EndToEndTrainer
from retexo_fl.training.rounds import Steps, run_alone


class EndToEndClient(ColumnClient, TrainingClient):
    """Answers as :class:`.TrainingClient` does, with one stage that holds the whole model.

    The features of boundary nodes are exchanged once, as lazy training does. What is exchanged
    inside a round is yielded by :meth:`train_steps` and :meth:`evaluate_steps`; an engine carries
    it. A client without peers needs none.
    """

    #: Made when the exchange has been closed; holds nothing of a round.
    _whole: WholeTrainer | None = None

    def _told_counts(self, *, sizes: bool = False) -> CountsAnswer:
        counts, sampling = super()._told_counts(sizes=sizes), self._sampling
        if sampling is None:
            return counts
        peers = self.crossing.plan_before(1).peers
        drawn = sum(sampling.size(peer.receive.count) for peer in peers)
        return replace(counts, vectors_drawn=drawn)

    @property
    def stages(self) -> int:
        """See :class:`.GraphClient`: one, of all layers."""
        return 1

    def train_layer(self, request: TrainRequest) -> TrainAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`; only for a client without peers."""
        return self.finished(request, run_alone(self.train_steps(request)), {})

    def evaluate_layer(self, request: EvaluateRequest) -> EvaluateAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`; only for a client without peers."""
        return self.finished(request, run_alone(self.evaluate_steps(request)), {})

    def train_steps(self, request: TrainRequest) -> Steps[TrainAnswer]:
        """Answer a ``train.layer`` in steps; :meth:`finished` completes what they return."""
        trainer = self._admitted(request)
        start = self._start(request, trainer.num_weights)
        known, correction = (None, None) if start is None else start
        weights = self._computed_with(known, request.ticket)
        if weights is None:
            return self._sealing.lacking(LACKING_TRAIN)
        update = yield from self._carried_out(
            lambda: trainer.update_steps(
                weights,
                round_number=request.ticket.round,
                dropout=self._config.dropout,
                correction=correction,
            )
        )
        if known is None:
            return self._sealing.lacking(LACKING_TRAIN)
        return self._train_answer(request, update, weights)

    def evaluate_steps(self, request: EvaluateRequest) -> Steps[EvaluateAnswer]:
        """Answer an ``evaluate.layer`` in steps; :meth:`finished` completes what they return."""
        trainer = self._admitted(request)
        known = self._weights(request, trainer.num_weights)
        weights = self._computed_with(known, request.ticket)
        if weights is None:
            return self._sealing.lacking(LACKING_EVALUATE)
        tally = yield from self._carried_out(lambda: trainer.tally_steps(weights, request.nodes))
        if known is None:
            return self._sealing.lacking(LACKING_EVALUATE)
        return self._judged(request, tally, weights)

    def _carried_out(self, begin: Callable[[], Steps[Found]]) -> Steps[Found | None]:
        """Carry out steps; as :meth:`.Sealing.computed` does where no peer waits for them."""
        if not self._config.traits.exchanges_in_rounds:
            return self._sealing.computed(lambda: run_alone(begin()))
        with self._sealing.sealed():
            return (yield from begin())

    def finished(
        self,
        request: TrainRequest | EvaluateRequest,
        answer: AnyAnswer,
        moved: Mapping[str, PeerTraffic],
    ) -> AnyAnswer:
        """Return an answer with what crossed for it, by purpose; forget a job that is over."""
        if self._config.traits.exchanges_in_rounds:
            again = self._is_again(request)
            answer = self._sealing.with_traffic(request, answer, moved, again=again)
        if isinstance(request, EvaluateRequest) and request.last and not is_lacking(answer):
            self._forget()
        return answer

    def _is_again(self, request: Request[Any]) -> bool:
        return (
            self._config.traits.exchanges_in_rounds
            and self.weights.updates.weights.sends_changes
            and isinstance(request, TrainRequest | EvaluateRequest)
            and not self.weights.updates.weights.changed(request.weights)
        )

    def _computed_with(self, known: np.ndarray | None, ticket: Ticket) -> np.ndarray | None:
        """Return the weights that a message is computed with; None if nothing needs to be.

        Peers wait for the vectors of a client that lacks the weights, too. It sends some, of the
        weights that the stage starts from, and the server asks everybody again.
        """
        if known is None and self._config.traits.exchanges_in_rounds:
            return self.weights.first(ticket.stage, ticket.weights_digest)
        return known

    def _admitted(self, request: TrainRequest | EvaluateRequest) -> WholeTrainer:
        # Peers wait for the rows of a client that has no keys, too: it says so when all are sent.
        self._admit_to_sum(request.ticket, without_keys=self._config.traits.exchanges_in_rounds)
        self._follow_labels(request)
        if self._whole is None:
            self._whole = self._make_trainer(request.ticket.weights_digest)
        return self._whole

    def _drop_trainers(self) -> None:
        self._whole = None

    @property
    def _sampling(self) -> BoundarySampling | None:
        """How ``bns`` samples; one layer has nothing to sample for."""
        config = self._config
        if config.algorithm != "bns" or config.layers == 1:
            return None
        return BoundarySampling(
            rate=config.boundary_rate,
            scaled=config.boundary_scaling == "inverse",
            seed=config.seed,
        )

    def _make_trainer(self, digest: bytes) -> WholeTrainer:
        config = self._config
        inputs = self.crossing.stage_input(0, digest)
        self.crossing.mailbox.drop_decoded()
        plan = EndToEndPlan(
            boundary=[self.crossing.plan_before(m) for m in range(1, config.layers)],
            seed=config.seed,
            recipe=self._made.recipe,
            sampling=self._sampling,
            recompute=config.activations == "recompute",
        )
        trainer = EndToEndTrainer(self.shape, inputs, self.part.nodes, plan=plan)
        return self._made.whole(trainer, inputs)
