"""A client's part in finding a basis of the features: sums over its train nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from retexo_fl.client.api import BasisAnswer, BasisRequest
from retexo_fl.client.client import GraphClient
from retexo_fl.errors import LocalProtocolError
from retexo_fl.graph.labels import REGRESSION
from retexo_fl.training.basis import (
    Basis,
    direction_sums,
    feature_sums,
    label_products,
    square_sums,
)


class BasisClient(GraphClient):
    """A client that adds up what a basis needs, block by block."""

    def basis(self, request: BasisRequest) -> BasisAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit_to_sum(request.ticket)
        if not self._shape.has_basis:
            raise LocalProtocolError("asked for a basis of the features; expected basis none")
        facts: tuple[float, ...] = ()
        if self._config.task == REGRESSION:
            facts = self._checked_facts(request.label_facts)
        known, columns = None, 1
        if request.weights is not None:
            known = self._basis_form.decode(request.weights)
            columns = known.directions.shape[1] or self._shape.classes
            if columns > self._shape.classes:
                raise LocalProtocolError(
                    f"a block has {columns} directions; expected at most {self._shape.classes}, "
                    "the classes"
                )
        self._enter(request, request.weights)
        found = self._computed(lambda: self._basis_sums(request, known, facts))
        if self._masks is not None:
            size = self._shape.features * columns
            return self._answered(request, found, request.weights, size)
        assert found is not None
        key = f"{self._config.seed}/{request.ticket.round}/{self._partition.client}"
        return replace(found, sums=self._basis_form.encode_sums(found.sums, key))

    def _basis_sums(
        self, request: BasisRequest, known: Basis | None, facts: tuple[float, ...]
    ) -> BasisAnswer:
        """Return sums over train nodes alone: how many those are at least, its owner decides."""
        train, classes = self._nodes.train, self._shape.classes
        rows = self._basis_rows(request.ticket)[train]
        labels = np.asarray(self._nodes.labels[train])
        if facts:
            mean, scale = facts
            labels = (labels - mean) / scale
        squares: tuple[float, ...] = ()
        if known is None:
            sums = feature_sums(rows)
            if self._masks is not None:
                squares = square_sums(rows, labels, classes)
        elif known.directions.shape[1]:
            sums = direction_sums(rows, known)
        else:
            sums = label_products(rows, known.mean, labels, classes)
        return BasisAnswer(sums=np.ravel(sums), examples=len(train), squares=squares)
