"""A client that trains layer by layer, on rows that crossed before."""

from __future__ import annotations

from retexo_fl.client.answers import LACKING_EVALUATE, LACKING_TRAIN
from retexo_fl.client.api import EvaluateAnswer, EvaluateRequest, TrainAnswer, TrainRequest
from retexo_fl.client.rounds import TrainingClient
from retexo_fl.methods.pieces.basis.answers import BasisClient
from retexo_fl.methods.pieces.columns.answers import ColumnClient
from retexo_fl.methods.pieces.refinement.answers import RefiningClient
from retexo_fl.methods.predict.answers import PredictingClient
from retexo_fl.methods.ridge.answers import RidgeClient


class LazyClient(
    ColumnClient, BasisClient, RidgeClient, RefiningClient, PredictingClient, TrainingClient
):
    """A client of lazy message passing."""

    def train_layer(self, request: TrainRequest) -> TrainAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit_to_sum(request.ticket)
        self._follow_labels(request)
        trainer = self._trainer(request.ticket.stage, request.ticket.weights_digest)
        start = self._start(request, trainer.num_weights)
        if start is None:
            return self._sealing.lacking(LACKING_TRAIN)
        weights, correction = start
        update = self._sealing.computed(
            lambda: trainer.update(
                weights,
                round_number=request.ticket.round,
                dropout=self._config.dropout,
                correction=correction,
            )
        )
        return self._train_answer(request, update, weights)

    def evaluate_layer(self, request: EvaluateRequest) -> EvaluateAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit_to_sum(request.ticket)
        self._follow_labels(request)
        trainer = self._trainer(request.ticket.stage, request.ticket.weights_digest)
        weights = self._weights(request, trainer.num_weights)
        if weights is None:
            return self._sealing.lacking(LACKING_EVALUATE)
        tally = self._sealing.computed(lambda: trainer.evaluate(weights, request.nodes))
        answer = self._judged(request, tally, weights)
        if request.last:
            self._forget()
        return answer
