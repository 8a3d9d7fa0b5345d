"""A client's part in solving for the last layer: sums of products over its train nodes."""

from __future__ import annotations

import numpy as np

from retexo_fl.client.api import GramAnswer, GramRequest
from retexo_fl.client.client import GraphClient
from retexo_fl.client.stage_rows import read_rows
from retexo_fl.errors import LocalProtocolError
from retexo_fl.layers.base import StageInput
from retexo_fl.training.floor import read_columns
from retexo_fl.training.ridge import gram_sums, judged_sums
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import solved_values


class RidgeClient(GraphClient):
    """A client that adds up what ridge regression needs."""

    def gram(self, request: GramRequest) -> GramAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        ticket = request.ticket
        self._admit_to_sum(ticket)
        shape, stage = self._beyond.get(ticket.stage, (self.shape, ticket.stage))
        if not shape.passes_sums or stage != shape.layers - 1:
            raise LocalProtocolError(
                f"stage {ticket.stage}: asked for sums of products; expected solver ridge, and its "
                "last stage, or a floor"
            )
        inputs = self.crossing.stage_input(ticket.stage, ticket.weights_digest)
        self._enter(request)
        answer = self._sealing.computed(lambda: self._gram_sums(shape, inputs))
        return self._sealing.answered(request, answer, size=solved_values(shape))

    def _gram_sums(self, shape: ModelShape, inputs: StageInput) -> GramAnswer:
        train, classes = self.part.nodes.train, shape.classes
        rows, labels = read_rows(shape, shape.layers - 1, inputs), self.part.nodes.labels
        rows = rows[:, read_columns(shape)]
        of_train = rows[train], np.asarray(labels[train])
        if shape.validates_penalty:
            judging = self._judging_nodes()
            sums = judged_sums(of_train, (rows[judging], np.asarray(labels[judging])), classes)
        else:
            sums = gram_sums(*of_train, classes)
        return GramAnswer(sums=sums.astype(self._config.dtype), examples=len(train))
