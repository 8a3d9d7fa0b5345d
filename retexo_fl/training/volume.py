"""Predicted bytes of a training: closed forms that share no code with the ledger.

Symbols of RETEXO, section 3.2: n clients, K layers, R rounds per layer, H_m width of state m (H_0
the input features), B boundary nodes per client, M parameters of the whole model, C_m of stage
m's head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retexo_fl.training.stage_model import FlatParameters, ModelShape, StageModel


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSize:
    """What the bytes of a training depend on.

    Attributes:
        clients: n.
        training_clients: Clients with train nodes.
        asked_clients: Clients with train or validation nodes: weights go to them in every round.
        validation_clients: Clients with validation nodes.
        vectors: Vectors of one exchange, over all ordered pairs of clients: n B.
        rounds: R of each stage.
    """

    clients: int
    training_clients: int
    asked_clients: int
    validation_clients: int
    vectors: int
    rounds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedVolume:
    """Raw bytes, each counted once, at its sender."""

    boundary: int
    updates_up: int
    weights_down: int

    @property
    def total(self) -> int:
        """All kinds together; messages without tensors have no raw bytes."""
        return self.boundary + self.updates_up + self.weights_down


def stage_parameters(shape: ModelShape) -> tuple[list[int], list[int]]:
    """Return, for each stage, all its parameters and those of its head."""
    whole, heads = [], []
    for stage in range(shape.layers):
        model = StageModel(shape, stage)
        whole.append(FlatParameters(model).size)
        heads.append(0 if model.is_last else sum(p.numel() for p in model.head.parameters()))
    return whole, heads


def lazy_volume(shape: ModelShape, size: TrainingSize) -> PredictedVolume:
    """Predict lazy message passing, every message of the protocol included.

    Boundary: ``n B sum_m H_m``, once per stage. Updates: R of every stage from each training
    client. Weights: with every round; once more to validate w(R); the selected ones with the
    next stage's exchange; those of the last stage for the test.
    """
    parameters, _ = stage_parameters(shape)
    item = np.dtype(shape.dtype).itemsize
    widths = sum(shape.input_width(stage) for stage in range(shape.layers))
    per_round = sum(r * p for r, p in zip(size.rounds, parameters, strict=True))
    down = size.asked_clients * per_round
    down += size.validation_clients * sum(parameters)
    down += size.clients * sum(parameters[:-1])
    down += size.clients * parameters[-1]
    return PredictedVolume(
        boundary=item * size.vectors * widths,
        updates_up=item * size.training_clients * per_round,
        weights_down=item * down,
    )


def standard_volume(shape: ModelShape, size: TrainingSize) -> PredictedVolume:
    """Predict end-to-end training for R rounds (the longest stage's) on the same partitions.

    Boundary: input features once, then in every round an embedding forward and its gradient
    backward for each hidden state: ``n B (H_0 + 2 R sum_{m>=1} H_m)`` (RETEXO, section 3.2).
    """
    parameters, heads = stage_parameters(shape)
    model = sum(parameters) - sum(heads)
    item = np.dtype(shape.dtype).itemsize
    rounds = max(size.rounds)
    hidden = sum(shape.input_width(stage) for stage in range(1, shape.layers))
    reduced = item * size.training_clients * rounds * model
    return PredictedVolume(
        boundary=item * size.vectors * (shape.inputs + 2 * rounds * hidden),
        updates_up=reduced,
        weights_down=reduced,
    )


def gamma(shape: ModelShape, size: TrainingSize) -> float:
    """Return how many times more standard training moves than lazy training.

    Counted as the paper does, at the clients: a vector is sent and received (2 n B), weights come
    down and updates go up (2 n R M). Evaluation messages are left out.

    Source: RETEXO, section 3.2, equation 2, with the heads C_m.
    """
    parameters, heads = stage_parameters(shape)
    rounds = max(size.rounds)
    hidden = sum(shape.input_width(stage) for stage in range(1, shape.layers))
    model = sum(parameters) - sum(heads)
    boundary = size.vectors / size.clients
    standard = boundary * (shape.inputs + 2 * rounds * hidden) + rounds * model
    lazy = boundary * (shape.inputs + hidden) + rounds * (model + sum(heads))
    return standard / lazy
