"""A client's part in solving for the last layer: sums of products over its train nodes."""

from __future__ import annotations

import numpy as np

from retexo_fl.client.api import GramAnswer, GramRequest
from retexo_fl.client.client import GraphClient
from retexo_fl.client.stage_rows import read_rows
from retexo_fl.errors import LocalProtocolError
from retexo_fl.layers.base import StageInput
from retexo_fl.training.ridge import gram_sums, gram_values


class RidgeClient(GraphClient):
    """A client that adds up what ridge regression needs."""

    def gram(self, request: GramRequest) -> GramAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        ticket = request.ticket
        self._admit_to_sum(ticket)
        if not self.shape.passes_sums or ticket.stage != self.shape.layers - 1:
            raise LocalProtocolError(
                f"stage {ticket.stage}: asked for sums of products; expected solver ridge, and its "
                "last stage"
            )
        inputs = self.crossing.stage_input(ticket.stage, ticket.weights_digest)
        self._enter(request)
        answer = self._sealing.computed(lambda: self._gram_sums(ticket.stage, inputs))
        size = gram_values(self.shape.read_width, self.shape.classes)
        return self._sealing.answered(request, answer, size=size)

    def _gram_sums(self, stage: int, inputs: StageInput) -> GramAnswer:
        train = self.part.nodes.train
        rows = read_rows(self.shape, stage, inputs)[train]
        sums = gram_sums(rows, np.asarray(self.part.nodes.labels[train]), self.shape.classes)
        return GramAnswer(sums=sums.astype(self._config.dtype), examples=len(train))
