"""What clients send each other before a stage, pair by pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from retexo_fl.client.preparation import graph_facts
from retexo_fl.config import RunConfig
from retexo_fl.config.profiles import GraphFacts
from retexo_fl.exchange import DEFAULT_MAX_FRAME_BYTES, FIXED8
from retexo_fl.exchange.levels import level_bytes
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.plan.boundary import PLAN_KINDS, PeerPlans, count_sent
from retexo_fl.methods.forecasts import forecast_of
from retexo_fl.training.coded_size import all_sent_bytes, bit_bytes, grid_bytes
from retexo_fl.training.effective_plan import effective_plan
from retexo_fl.training.link_split import counts_by_use
from retexo_fl.training.messages import Counts
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import column_bits

#: Payload bytes by (sender, receiver).
Payloads: TypeAlias = Mapping[tuple[int, int], int]


class PlannedParts:
    """All clients' parts, with what plans of several trainings count of them: each thing once.

    Attributes:
        parts: In client order.
    """

    def __init__(self, parts: Sequence[GraphPartition]) -> None:
        self.parts = parts
        self._plans: dict[tuple[str, tuple[int, ...] | None], list[PeerPlans]] = {}
        self._vectors: dict[str, int] = {}
        self._features: dict[tuple[Any, ...], Payloads] = {}

    def counts(self, config: RunConfig) -> Counts:
        """Return how many nodes, or edges, of each use all clients have."""
        return {part.client: counts_by_use(config, part) for part in self.parts}

    def plans(self, kind: str, read: tuple[int, ...] | None = None) -> Sequence[PeerPlans]:
        """Return the plans of one kind.

        Args:
            kind: ``rows`` or ``cover``.
            read: What :meth:`.ModelShape.read_into` says; None: all that has an edge to a peer.
        """
        if (kind, read) not in self._plans:
            if read is None:
                self.make_plans([kind])
            else:
                both = zip(self.parts, self.plans(kind), strict=True)
                self._plans[kind, read] = [plan.into(part, read) for part, plan in both]
        return self._plans[kind, read]

    def make_plans(self, kinds: Sequence[str]) -> None:
        """Make plans of some kinds where they are not made yet; two are made faster together."""
        kinds = [kind for kind in kinds if (kind, None) not in self._plans]
        made = [PeerPlans.counted(part, kinds) for part in self.parts] if kinds else []
        for kind in kinds:
            self._plans[kind, None] = [plans[kind] for plans in made]

    def vectors(self, kind: str) -> int:
        """Return how many vectors one exchange has under a plan of one kind."""
        if kind not in self._vectors:
            self._vectors[kind] = (
                sum(plan.num_send for plan in self._plans[kind, None])
                if (kind, None) in self._plans
                else sum(count_sent(part, kind) for part in self.parts)
            )
        return self._vectors[kind]

    def features(self, config: RunConfig, kind: str, codec: str) -> Payloads:
        """Return the bytes of input features, as a codec writes them."""
        return self._features_in(config, kind, {**config.feature_coding, "codec": codec})

    def own_features(self, config: RunConfig, kind: str) -> Payloads:
        """Return the bytes of input features, as the run's own codec writes them."""
        return self._features_in(config, kind, config.feature_coding)

    def _features_in(self, config: RunConfig, kind: str, coding: Mapping[str, Any]) -> Payloads:
        way = forecast_of(config)
        has_types = self.parts[0].relations is not None
        read = ModelShape.of_part(config, self.parts[0]).read_into(0) if has_types else None
        key = (kind, read, *coding.values(), type(way).__name__)
        if key not in self._features:
            plans = self.plans(kind, read)
            sizes = all_sent_bytes(
                map(way.part_as_read, self.parts),
                plans,
                frame_bytes=DEFAULT_MAX_FRAME_BYTES,
                **coding,
            )
            self._features[key] = {
                (plan.client, peer.peer): size
                for plan, of_peers in zip(plans, sizes, strict=True)
                for peer, size in zip(plan.peers, of_peers, strict=True)
            }
        return self._features[key]


class PlannedCounts:
    """What all clients have and would send: see :class:`.GraphCounts`.

    Args:
        config: Of the run.
        planned: All clients' parts.
    """

    def __init__(self, config: RunConfig, planned: PlannedParts) -> None:
        self._config = config
        self._planned = planned

    @cached_property
    def facts(self) -> GraphFacts:
        """What a profile is fitted to."""
        return graph_facts(self._planned.parts)

    @property
    def edge_features(self) -> int:
        """Attributes of each edge."""
        return self._planned.parts[0].edge_values.num_attributes

    def vectors(self, kind: str) -> int:
        """Return how many vectors one exchange has."""
        return self._planned.vectors(kind)

    def feature_bytes(self, kind: str) -> int:
        """Return the payload of the exchange of input features."""
        # Whoever counts one kind compares it with the other.
        self._planned.make_plans(PLAN_KINDS)
        return sum(self._planned.own_features(self._config, kind).values())


def stage_payloads(
    config: RunConfig, shape: ModelShape, planned: PlannedParts, stage: int
) -> Payloads:
    """Return the bytes of the vectors that cross before a stage, or each time inside a round.

    Where :func:`is_exact` is false, they are that at most.

    Args:
        config: Of the run.
        shape: Of its model.
        planned: All clients' parts.
        stage: Stage index, or that of the layer which reads them.
    """
    is_column = stage in shape.column_stages
    width = shape.exchange_width(stage)
    row_bits = column_bits(config, shape, stage) if is_column else config.row_bits
    item = np.dtype(config.dtype).itemsize

    def as_they_are(vectors: int) -> int:
        return vectors * width * item

    def in_few_bits(vectors: int) -> int:
        if row_bits == 32:
            return as_they_are(vectors)
        if config.row_codec == FIXED8 and not is_column:
            limit = DEFAULT_MAX_FRAME_BYTES
            return grid_bytes(vectors, width, row_bytes=width * item, frame_bytes=limit)
        return level_bytes(vectors, width, row_bits)

    kind = effective_plan(config)
    counts = {
        (plan.client, peer.peer): peer.send.count
        for plan in planned.plans(kind, shape.read_into(stage))
        for peer in plan.receivers
    }
    if stage and shape.class_bits:
        row_bytes, limit = width * item, DEFAULT_MAX_FRAME_BYTES
        return {
            pair: bit_bytes(vectors, width, row_bytes=row_bytes, frame_bytes=limit)
            for pair, vectors in counts.items()
        }
    if shape.far_types and stage == shape.far_stage:
        # They are sparse; how much so, only who has them knows.
        return {pair: as_they_are(vectors) for pair, vectors in counts.items()}
    if stage or shape.coordinates_cross:
        return {pair: in_few_bits(vectors) for pair, vectors in counts.items()}
    if shape.made_columns:
        # None of them is zero; a basis of sums reads them without loss.
        written = as_they_are if shape.basis_of_sums else in_few_bits
        return {pair: written(vectors) for pair, vectors in counts.items()}
    sizes = planned.own_features(config, kind)
    plain = {pair: sizes[pair] for pair in counts}
    if row_bits == 32 or config.row_codec == FIXED8:
        return plain
    return {pair: min(size, in_few_bits(counts[pair])) for pair, size in plain.items()}


def is_exact(config: RunConfig, shape: ModelShape, stage: int) -> bool:
    """Return whether :func:`stage_payloads` are exact: nothing that is trained decides them."""
    if not stage and not (shape.coordinates_cross or shape.made_columns):
        return config.row_bits == 32
    if stage and shape.class_bits:
        return True
    return config.codec == "dense" and not forecast_of(config).samples_vectors
