"""A client that predicts its nodes with trained layers, and keeps what it predicted."""

from __future__ import annotations

from dataclasses import replace

from retexo_fl.client.api import PredictAnswer, PredictRequest
from retexo_fl.client.client import GraphClient
from retexo_fl.errors import LocalProtocolError
from retexo_fl.methods.predict.files import (
    Table,
    check_folder,
    check_written,
    make_folder,
    set_folder,
    write_predictions,
)
from retexo_fl.methods.predict.tables import count_right_nodes, predict_nodes
from retexo_fl.training.layer_trainer import LayerTrainer, StageTrainer
from retexo_fl.training.recipe import Recipe


class PredictingClient(GraphClient):
    """A client that writes predictions where it lives; the server gets counts."""

    def predict(self, request: PredictRequest) -> PredictAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit_to_sum(request.ticket)
        trainer = self._trainer(request.ticket.stage, request.ticket.weights_digest)
        self.weights.check(request.ticket, request.weights, trainer.num_weights)
        if self._predictions is None or request.ticket.stage != self.shape.stages - 1:
            raise LocalProtocolError(
                f"stage {request.ticket.stage}: got a request for predictions; expected the last "
                "stage, and a folder to write them to"
            )
        folder = set_folder(self._predictions, request.set_name)
        if request.set_name:
            make_folder(folder)
        # Before data is read: a client with nothing to write must behave as others do.
        check_folder(folder)
        self._enter(request, request.weights)
        found = self._sealing.computed(
            lambda: self._checked(self._predicted(trainer, request), request)
        )
        predictions, answer = found or (None, None)
        if answer is not None and "nodes" not in self.part.uses:
            answer = replace(answer, nodes=0)
        answer = self._sealing.answered(request, answer, request.weights)
        if predictions is not None:
            write_predictions(folder, self.part.graph.client, predictions, request.form)
        if self.is_last(request):
            self._forget()
        return answer

    def _checked(
        self, found: tuple[Table, PredictAnswer], request: PredictRequest
    ) -> tuple[Table, PredictAnswer]:
        """Return predictions that can be written down as they are asked for."""
        check_written(found[0], request.form, client=self.part.graph.client)
        return found

    def _predicted(
        self, trainer: StageTrainer, request: PredictRequest
    ) -> tuple[Table, PredictAnswer]:
        """Predict all inner nodes; count how many are right."""
        assert isinstance(trainer, LayerTrainer)
        outputs = trainer.logits(request.weights)
        recipe = Recipe.of(self._config, request.label_facts)
        predictions = predict_nodes(self.part.graph, outputs, request.label_facts)
        answer = count_right_nodes(self.part.nodes, outputs, recipe)
        if self._config.update_dp:
            # How many train nodes are right would reveal of each what no noise hides.
            answer = replace(answer, train_correct=0)
        return predictions, replace(answer, nodes=len(predictions.keys))
