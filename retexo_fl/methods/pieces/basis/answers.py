"""A client's part in finding a basis of the features: sums over its train nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from retexo_fl.client.api import BasisAnswer, BasisRequest, Ticket
from retexo_fl.client.client import GraphClient
from retexo_fl.client.stage_rows import summed_rows
from retexo_fl.errors import LocalProtocolError
from retexo_fl.graph.features import Features
from retexo_fl.training.basis import (
    Basis,
    direction_sums,
    feature_sums,
    label_products,
    square_sums,
)
from retexo_fl.training.layer_trainer import StageTrainer
from retexo_fl.training.recipe import objective_of


class BasisClient(GraphClient):
    """A client that adds up what a basis needs, block by block."""

    #: What a basis of sums is of, while it is made.
    _sums: Features | None = None

    def basis(self, request: BasisRequest) -> BasisAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit_to_sum(request.ticket)
        if not self.shape.has_basis:
            raise LocalProtocolError("asked for a basis of the features; expected basis none")
        label_facts = objective_of(self._config).label_facts
        facts = label_facts.units(request.label_facts)
        if label_facts.num_units:
            label_facts.check(facts, self.shape.classes)
        known, columns = None, 1
        if request.weights is not None:
            known = self.crossing.basis_form.decode(request.weights)
            columns = known.directions.shape[1] or self.shape.classes
            if columns > self.shape.classes:
                raise LocalProtocolError(
                    f"a block has {columns} directions; expected at most {self.shape.classes}, "
                    "the classes"
                )
        self._enter(request, request.weights)
        found = self._sealing.computed(lambda: self._basis_sums(request, known, facts))
        key = f"{self._config.seed}/{request.ticket.round}/{self.part.graph.client}"

        def coded(answer: BasisAnswer) -> BasisAnswer:
            return replace(answer, sums=self.crossing.basis_form.encode_sums(answer.sums, key))

        size = self.shape.features * columns
        return self._sealing.answered(request, found, request.weights, size, code=coded)

    def _new_trainer(self, stage: int, digest: bytes) -> StageTrainer:
        self._sums = None
        return super()._new_trainer(stage, digest)

    def _basis_rows(self, ticket: Ticket) -> Features:
        """Return the (N, F) rows that a basis is of."""
        if not self.shape.basis_of_sums:
            return self.crossing.features()
        if self._sums is None:
            crossed = self.crossing.crossed(0, ticket.weights_digest)
            self._sums = summed_rows(self.shape, crossed)
        return self._sums

    def _basis_sums(
        self, request: BasisRequest, known: Basis | None, facts: tuple[float, ...]
    ) -> BasisAnswer:
        """Return sums over train nodes alone: how many those are at least, its owner decides."""
        train, classes = self.part.nodes.train, self.shape.classes
        rows = self._basis_rows(request.ticket)[train]
        labels = np.asarray(self.part.nodes.labels[train])
        if facts:
            mean, scale = facts
            labels = (labels - mean) / scale
        squares: tuple[float, ...] = ()
        if known is None:
            sums = feature_sums(rows)
            if self._sealing.tells_squares:
                squares = square_sums(rows, labels, classes)
        elif known.directions.shape[1]:
            sums = direction_sums(rows, known)
        else:
            sums = label_products(rows, known.mean, labels, classes)
        return BasisAnswer(sums=np.ravel(sums), examples=len(train), squares=squares)
