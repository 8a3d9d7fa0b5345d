"""What clients send each other before a stage, pair by pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from retexo_fl.config import RunConfig
from retexo_fl.exchange import DEFAULT_MAX_FRAME_BYTES
from retexo_fl.exchange.levels import level_bytes
from retexo_fl.graph import BoundaryPlan, GraphPartition
from retexo_fl.training.coded_size import lossless_bytes, rounded_features, sent_features
from retexo_fl.training.stage_model import ModelShape

#: Payload bytes by (sender, receiver).
Payloads: TypeAlias = Mapping[tuple[int, int], int]


def stage_payloads(
    config: RunConfig,
    shape: ModelShape,
    parts: Sequence[GraphPartition],
    plans: Sequence[BoundaryPlan],
    stage: int,
) -> Payloads:
    """Return the bytes of the vectors that cross before a stage, or each time inside a round.

    Where :func:`is_exact` is false, they are that at most.

    Args:
        config: Of the run.
        shape: Of its model.
        parts: All clients' parts.
        plans: Their plans, of the kind that the run follows.
        stage: Stage index, or that of the layer which reads them.
    """
    width, row_bits = shape.exchange_width(stage), config.row_bits
    item = np.dtype(config.dtype).itemsize

    def in_few_bits(vectors: int) -> int:
        if row_bits == 32:
            return vectors * width * item
        return level_bytes(vectors, width, row_bits)

    counts = {(plan.client, peer.peer): peer.send.count for plan in plans for peer in plan.peers}
    if stage or not _carries_features(shape):
        return {pair: in_few_bits(vectors) for pair, vectors in counts.items()}
    plain = _features(config, parts, plans)
    if shape.basis_of_sums or row_bits == 32:
        return plain
    return {pair: min(size, in_few_bits(counts[pair])) for pair, size in plain.items()}


def is_exact(config: RunConfig, shape: ModelShape, stage: int) -> bool:
    """Return whether :func:`stage_payloads` are exact: nothing that is trained decides them."""
    if not stage and _carries_features(shape):
        return shape.basis_of_sums or config.row_bits == 32
    return config.codec == "dense" and config.algorithm != "bns"


def _carries_features(shape: ModelShape) -> bool:
    return not shape.has_basis or shape.basis_of_sums


def _features(
    config: RunConfig, parts: Sequence[GraphPartition], plans: Sequence[BoundaryPlan]
) -> Payloads:
    """Return the bytes of input features, as the codec writes them."""
    found: dict[tuple[int, int], int] = {}
    for part, plan in zip(parts, plans, strict=True):
        sent = sent_features(
            part,
            plan,
            model=config.model,
            normalisation=config.feature_normalisation,
            dtype=config.dtype,
        )
        if config.codec == "fixed":
            sent = iter(rounded_features(list(sent)))
        for peer, vectors in zip(plan.peers, sent, strict=True):
            rows, width = vectors.shape
            dense = rows * width * vectors.dtype.itemsize
            found[plan.client, peer.peer] = (
                dense
                if config.codec == "dense"
                else lossless_bytes(vectors, frame_bytes=DEFAULT_MAX_FRAME_BYTES)
            )
    return found
