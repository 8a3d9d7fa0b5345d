"""A client's part in solving for the last layer: sums of products over its train nodes."""

from __future__ import annotations

import numpy as np
import torch

from retexo_fl.client.api import GramAnswer, GramRequest, Ticket
from retexo_fl.client.client import GraphClient
from retexo_fl.errors import LocalProtocolError
from retexo_fl.layers.base import Rows, dense_rows
from retexo_fl.training.clipped_products import clipped_sums
from retexo_fl.training.floor import read_columns
from retexo_fl.training.layer_trainer import LayerTrainer
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
        size = solved_values(shape)
        if self._adds_nothing():
            self._enter(request)
            none = GramAnswer(sums=np.zeros(size, self._config.dtype), examples=0)
            return self._sealing.answered(request, none, size=size)
        # What is solved for is judged on the same rows.
        read = self._read_rows(ticket)
        self._enter(request)
        answer = self._sealing.computed(lambda: self._gram_sums(shape, read))
        return self._sealing.answered(request, answer, size=size)

    def rows_of_products(self, ticket: Ticket) -> np.ndarray:
        """Return the (N, D) rows of its nodes of which products are added up."""
        shape, _ = self._beyond.get(ticket.stage, (self.shape, ticket.stage))
        return _columns_of(shape, self._read_rows(ticket))

    def _adds_nothing(self) -> bool:
        """Return whether its sums are zeros, whatever its rows are, and it may be known for that.

        Under masks it answers as all do, or not at all where rows are missing.
        """
        if self._sealing.tells_sums_alone:
            return False
        return not len(self.part.nodes.train) and not len(self._judging_nodes())

    def _read_rows(self, ticket: Ticket) -> Rows:
        trainer = self._trainer(ticket.stage, ticket.weights_digest)
        assert isinstance(trainer, LayerTrainer)
        return trainer.read_rows

    def _gram_sums(self, shape: ModelShape, read: Rows) -> GramAnswer:
        train, classes = self.part.nodes.train, shape.classes
        rows = _columns_of(shape, read)
        labels = self.part.nodes.labels
        if shape.clips_products:
            judged = self._judging_nodes()
            of_train, of_judged = ((rows[i], np.asarray(labels[i])) for i in (train, judged))
            clip = self._config.update_dp_clip
            # In float64: what one node changes must be exact.
            clipped = clipped_sums(of_train, of_judged, classes, clip)
            return GramAnswer(sums=clipped, examples=len(train))
        of_train = rows[train], np.asarray(labels[train])
        if shape.validates_penalty:
            judging = self._judging_nodes()
            sums = judged_sums(of_train, (rows[judging], np.asarray(labels[judging])), classes)
        else:
            sums = gram_sums(*of_train, classes)
        return GramAnswer(sums=sums.astype(self._config.dtype), examples=len(train))


def _columns_of(shape: ModelShape, read: Rows) -> np.ndarray:
    rows: np.ndarray = dense_rows(read, getattr(torch, shape.dtype)).numpy()
    return rows[:, read_columns(shape)]
