"""What trainings of the whole model move, and what ``retexo plan`` says of each.

Symbols as in :mod:`retexo_fl.training.volume`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from retexo_fl.config import RunConfig
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import (
    Forecast,
    PredictedVolume,
    TrainingSize,
    column_values,
    item_bytes,
    model_parameters,
)
from retexo_fl.units import format_count, format_counted

#: What BNS draws in a round is sent as float64 numbers.
_ID_BYTES: Final = 8


class _EndToEnd(Forecast):
    """One stage trains all layers."""

    def parameters(self, shape: ModelShape) -> Sequence[int]:
        """See :class:`.Forecast`."""
        return [model_parameters(shape)]

    def first_reach(self, shape: ModelShape) -> int:
        """See :class:`.Forecast`: through all later layers."""
        return shape.layers - 1


class _InRounds(_EndToEnd):
    """Clients exchange inside every round."""

    exchanges_in_rounds = True

    def exchanges(self, config: RunConfig, shape: ModelShape) -> Sequence[int]:
        """See :class:`.Forecast`."""
        # Forward and backward in each round; forward once more for each validation and the test.
        return (1, *[3 * config.stage_rounds[0] + 2] * (shape.layers - 1))


class StandardForecast(_InRounds):
    """End-to-end training for R rounds (the longest stage's) on the same partitions."""

    def volume(self, shape: ModelShape, size: TrainingSize) -> PredictedVolume:
        """Predict rounds of which each passes hidden states forward and gradients backward.

        Boundary: input features once, then in every round an embedding forward and its gradient
        backward for each hidden state: ``V (H_0 + 2 R sum_{m>=1} H_m)`` (RETEXO, section 3.2). All
        clients take part in every round. Evaluation passes embeddings forward: of the weights that
        begin each round, of w(R), and of the selected ones for the test.
        """
        moved = size.vectors * shape.exchange_width(0)
        moved += 2 * max(size.rounds) * _hidden_values(shape, size)
        return _exchanging_volume(shape, size, item_bytes(shape) * moved)

    def sentence(self, config: RunConfig, *, vectors: int, drawn: int | None) -> str:
        """See :class:`.Forecast`."""
        del vectors, drawn
        rounds = format_counted(config.rounds, "round")
        return f"end to end, {rounds}: exchanges forward and backward in each"

    def rounds_alike(self, config: RunConfig) -> int:
        """See :class:`.Forecast`."""
        return config.stage_rounds[0]


class BnsForecast(_InRounds):
    """Boundary node sampling."""

    samples_vectors = True

    def volume(self, shape: ModelShape, size: TrainingSize) -> PredictedVolume | None:
        """Predict rounds as of :class:`StandardForecast`, but of the drawn vectors only.

        Their numbers cross once in each. Evaluation is not sampled. One layer has no exchange
        inside its rounds, hence nothing to draw.

        Source: BNS-GCN (Wan et al.), algorithm 1; RETEXO, section 4.1.
        """
        if size.sampled_vectors is None:
            return None
        item = item_bytes(shape)
        hidden = sum(_hidden(shape).values())
        per_vector = 2 * item * hidden + _ID_BYTES if shape.layers > 1 else 0
        drawn = max(size.rounds) * size.sampled_vectors * per_vector
        features = item * size.vectors * shape.exchange_width(0)
        return _exchanging_volume(shape, size, features + drawn)

    def sentence(self, config: RunConfig, *, vectors: int, drawn: int | None) -> str:
        """See :class:`.Forecast`."""
        del config
        if drawn is None:
            return "as standard, with sampled boundary nodes; only with the plan of rows"
        every = format_counted(vectors, "vector")
        return f"as standard, but {format_count(drawn)} of {every} in a round"


class DropForecast(_EndToEnd):
    """Federated averaging of the whole model, edges between clients ignored."""

    ignores_peers = True

    def volume(self, shape: ModelShape, size: TrainingSize) -> PredictedVolume:
        """Predict weights and updates; nothing else crosses."""
        parameters = item_bytes(shape) * model_parameters(shape)
        rounds = max(size.rounds)
        up, down, _ = (item_bytes(shape) * values for values in column_values(shape))
        return PredictedVolume(
            boundary_training=0,
            boundary_evaluation=0,
            updates_up=size.training_clients * rounds * parameters + size.clients * up,
            weights_training=size.weights_of_rounds(rounds, parameters),
            weights_beyond=(size.validation_clients + size.clients) * parameters
            + size.clients * down,
        )

    def sentence(self, config: RunConfig, *, vectors: int, drawn: int | None) -> str:
        """See :class:`.Forecast`."""
        del config, vectors, drawn
        return "end to end, edges between clients ignored"


class CentralForecast(DropForecast):
    """End-to-end training on one client that has the whole graph."""

    ignores_peers = False

    def volume(self, shape: ModelShape, size: TrainingSize) -> PredictedVolume:
        """Predict what goes to one client and comes back."""
        alone = replace(
            size,
            clients=1,
            training_clients=min(1, size.training_clients),
            asked_clients=min(1, size.asked_clients),
            validation_clients=min(1, size.validation_clients),
        )
        return super().volume(shape, alone)

    def sentence(self, config: RunConfig, *, vectors: int, drawn: int | None) -> str:
        """See :class:`.Forecast`."""
        del config, vectors, drawn
        return "end to end on one client that has the whole graph"


def _exchanging_volume(
    shape: ModelShape, size: TrainingSize, boundary_training: int
) -> PredictedVolume:
    """Complete the volume of a training whose clients exchange in every round."""
    rounds, item = max(size.rounds), item_bytes(shape)
    parameters = item * size.clients * model_parameters(shape)
    up, down, columns = (item * values for values in column_values(shape))
    return PredictedVolume(
        boundary_training=boundary_training + size.vectors * columns,
        boundary_evaluation=item * (rounds + 2) * _hidden_values(shape, size),
        updates_up=rounds * parameters + size.clients * up,
        weights_training=rounds * parameters,
        weights_beyond=2 * parameters + size.clients * down,
    )


def _hidden_values(shape: ModelShape, size: TrainingSize) -> int:
    """Return what all hidden states that cross have together: sum of V H_m for 1 <= m < K."""
    return sum(size.vectors_before(m) * width for m, width in _hidden(shape).items())


def _hidden(shape: ModelShape) -> dict[int, int]:
    """Return H_m for 1 <= m < K."""
    trained = replace(shape, passes_sums=False)
    return {stage: trained.input_width(stage) for stage in range(1, shape.layers)}
