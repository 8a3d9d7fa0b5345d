"""A client's part in finding a basis of the features: sums over its train nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from retexo_fl.client.api import BasisAnswer, BasisRequest, ChoiceAnswer, ChoiceRequest, Ticket
from retexo_fl.client.client import GraphClient
from retexo_fl.client.stage_rows import (
    read_rows,
    summed_rows,
    with_coordinates,
    with_far_sums,
)
from retexo_fl.config import RunConfig
from retexo_fl.errors import LocalProtocolError
from retexo_fl.graph.features import Features
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.base import StageInput
from retexo_fl.training.basis import (
    Basis,
    column_squares,
    direction_sums,
    feature_sums,
    joined,
    label_products,
    parted,
    square_sums,
)
from retexo_fl.training.basis_choice import (
    KINDS,
    PROBE_BLOCKS,
    choice_values,
    probe_width,
)
from retexo_fl.training.clipped_products import clipped_direction_sums, clipped_label_products
from retexo_fl.training.layer_trainer import StageTrainer
from retexo_fl.training.recipe import objective_of
from retexo_fl.training.ridge import gram_sums, gram_values, judged_sums


class BasisClient(GraphClient):
    """A client that adds up what a basis needs, block by block."""

    def __init__(self, partition: GraphPartition, config: RunConfig, **kept: Any) -> None:
        super().__init__(partition, config, **kept)
        #: By kind, what a basis is of, while it is made.
        self._of_train: dict[str, Features] = {}

    def basis(self, request: BasisRequest) -> BasisAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit_to_sum(request.ticket)
        if not self.shape.has_basis:
            raise LocalProtocolError("asked for a basis of the features; expected basis none")
        if self.shape.clips_products and request.weights is None:
            raise LocalProtocolError("asked for sums of features; expected none under update-dp")
        kinds = self._kinds(request)
        facts = self._checked_facts(request)
        known: Sequence[Basis | None] = [None] * len(kinds)
        columns = 1
        if request.weights is not None:
            is_evened = self.shape.reads_all_far
            known = blocks = self._decoded(request.weights, len(kinds), is_evened)
            columns = blocks[0].directions.shape[1] or self.shape.classes
            if columns > self.shape.classes:
                raise LocalProtocolError(
                    f"a block has {columns} directions; expected at most {self.shape.classes}, "
                    "the classes"
                )
        self._enter(request, request.weights)
        found = self._sealing.computed(lambda: self._basis_sums(request, kinds, known, facts))
        key = f"{self._config.seed}/{request.ticket.round}/{self.part.graph.client}"

        def coded(answer: BasisAnswer) -> BasisAnswer:
            form = self.crossing.basis_form
            if squares:
                of_features, of_squares = np.split(answer.sums, 2)
                parts = [form.encode_sums(of_features, key), form.encode_squares(of_squares)]
                return replace(answer, sums=joined(parts))
            sums = zip(np.split(answer.sums, len(kinds)), known, strict=True)
            return replace(
                answer, sums=joined([form.encode_sums(of, key, block) for of, block in sums])
            )

        squares = self.shape.reads_all_far and request.weights is None
        size = self.shape.features * columns * len(kinds) * (1 + squares)
        return self._sealing.answered(request, found, request.weights, size, code=coded)

    def choice(self, request: ChoiceRequest) -> ChoiceAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit_to_sum(request.ticket)
        if self.shape.tells_classes:
            return self._products(request)
        if not self.shape.chooses_basis:
            raise LocalProtocolError(
                "asked to compare bases; expected basis-rows choose, and fewer directions than "
                "features"
            )
        facts = self._checked_facts(request)
        bases = self._decoded(request.weights, len(KINDS))
        columns = probe_width(self.shape)
        if any(basis.directions.shape[1] != columns for basis in bases):
            raise LocalProtocolError(f"bases have other directions than expected: {columns} each")
        crossed = self.crossing.crossed(0, request.ticket.weights_digest)
        self._enter(request, request.weights)
        found = self._sealing.computed(lambda: self._choice_sums(crossed, bases, facts))
        size = choice_values(self.shape)
        return self._sealing.answered(request, found, request.weights, size)

    def _products(self, request: ChoiceRequest) -> ChoiceAnswer:
        """Add up products of train nodes' own coordinates, by which nodes are put into classes."""
        shape = self.shape
        (basis,) = self._decoded(request.weights, 1)
        if basis.directions.shape[1] != shape.inputs:
            raise LocalProtocolError(f"a basis has other directions than expected: {shape.inputs}")
        self._enter(request, request.weights)

        def added() -> ChoiceAnswer:
            train = self.part.nodes.train
            rows = basis.coordinates(self.crossing.features()[train])
            sums = gram_sums(rows, self._labels(train, ()), shape.classes)
            return ChoiceAnswer(sums=sums.astype(self._config.dtype), examples=len(train))

        size = gram_values(shape.inputs, shape.classes)
        found = self._sealing.computed(added)
        return self._sealing.answered(request, found, request.weights, size)

    def _new_trainer(self, stage: int, digest: bytes) -> StageTrainer:
        self._of_train.clear()
        return super()._new_trainer(stage, digest)

    def _drop_trainers(self) -> None:
        self._of_train.clear()
        super()._drop_trainers()

    # ---- of requests ----------------------------------------------------------------------------

    def _kinds(self, request: BasisRequest) -> tuple[str, ...]:
        """Return of which rows sums are asked for.

        Raises:
            LocalProtocolError: Of those that nobody chooses between, or of both for longer.
        """
        if not self.shape.chooses_basis:
            if request.rows:
                raise LocalProtocolError(
                    f"asked for sums of {request.rows[:20]!r}; expected none by name but with "
                    "basis-rows choose"
                )
            return ("sums",) if self.shape.basis_of_sums else ("own",)
        kinds, both = tuple(request.rows.split(" ")), request.ticket.round <= PROBE_BLOCKS
        if kinds != KINDS if both else kinds not in {(kind,) for kind in KINDS}:
            expected = "own sums" if both else "own or sums"
            raise LocalProtocolError(
                f"block {request.ticket.round}: asked for sums of {request.rows[:20]!r}; expected "
                f"{expected}"
            )
        return kinds

    def _checked_facts(self, request: BasisRequest | ChoiceRequest) -> tuple[float, ...]:
        label_facts = objective_of(self._config).label_facts
        facts = label_facts.units(request.label_facts)
        if label_facts.num_units:
            label_facts.check(facts, self.shape.classes)
        return facts

    def _decoded(self, weights: np.ndarray, count: int, is_evened: bool = False) -> list[Basis]:
        form = self.crossing.basis_form
        return [form.decode(part, is_evened=is_evened) for part in parted(weights, count)]

    # ---- sums -----------------------------------------------------------------------------------

    def _train_rows(self, kind: str, ticket: Ticket) -> Features:
        """Return the (n, F) rows of train nodes that a basis is of, in all of its blocks."""
        if kind not in self._of_train:
            if kind == "own":
                rows = self.crossing.features()
            else:
                crossed = self.crossing.crossed(0, ticket.weights_digest)
                rows = summed_rows(self.shape, crossed.into(self.part.nodes.train))
                if self.shape.far_types:
                    far = self.crossing.crossed(self.shape.far_stage, ticket.weights_digest)
                    rows = with_far_sums(self.shape, rows, far)
            self._of_train[kind] = rows[self.part.nodes.train]
        return self._of_train[kind]

    def _labels(self, nodes: np.ndarray, facts: tuple[float, ...]) -> np.ndarray:
        labels = np.asarray(self.part.nodes.labels[nodes])
        if facts:
            mean, scale = facts
            labels = (labels - mean) / scale
        return labels

    def _basis_sums(
        self,
        request: BasisRequest,
        kinds: Sequence[str],
        known: Sequence[Basis | None],
        facts: tuple[float, ...],
    ) -> BasisAnswer:
        """Return sums over train nodes alone: how many those are at least, its owner decides."""
        train = self.part.nodes.train
        labels = self._labels(train, facts)
        sums: list[np.ndarray] = []
        squares: list[float] = []
        for kind, block in zip(kinds, known, strict=True):
            rows = self._train_rows(kind, request.ticket)
            sums.append(np.ravel(self._sums_of(rows, block, labels)))
            if block is None and self.shape.reads_all_far:
                sums.append(column_squares(rows))
            if block is None and self._sealing.tells_squares:
                squares += square_sums(rows, labels, self.shape.classes)
        return BasisAnswer(sums=np.concatenate(sums), examples=len(train), squares=tuple(squares))

    def _sums_of(self, rows: Features, block: Basis | None, labels: np.ndarray) -> np.ndarray:
        if block is not None and self.shape.clips_products:
            clip = self._config.update_dp_clip
            if block.directions.shape[1]:
                return clipped_direction_sums(rows, block.directions, clip)
            return clipped_label_products(rows, labels, self.shape.classes, clip)
        if block is None:
            return feature_sums(rows)
        if block.directions.shape[1]:
            return direction_sums(rows, block)
        return label_products(rows, block, labels, self.shape.classes)

    def _choice_sums(
        self, crossed: StageInput, bases: Sequence[Basis], facts: tuple[float, ...]
    ) -> ChoiceAnswer:
        train, validation = self.part.nodes.train, self._judging_nodes()
        shape = replace(self.shape, inputs=probe_width(self.shape))
        sums = []
        for basis in bases:
            rows = read_rows(shape, 0, with_coordinates(basis, crossed))
            of_train, of_validation = (
                (rows[nodes], self._labels(nodes, facts)) for nodes in (train, validation)
            )
            sums.append(judged_sums(of_train, of_validation, shape.classes))
        flat = np.concatenate(sums).astype(self._config.dtype)
        return ChoiceAnswer(sums=flat, examples=len(train))
