"""What label propagation moves, and what ``retexo plan`` says of it.

Symbols as in :mod:`retexo_fl.training.volume`; C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retexo_fl.config import RunConfig
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.methods.propagation.labels import with_labels_as_features
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import Forecast, PredictedVolume, TrainingSize, item_bytes
from retexo_fl.units import format_counted


class PropagationForecast(Forecast):
    """Scores of classes cross once before each step."""

    trains = False

    def part_as_read(self, part: GraphPartition) -> GraphPartition:
        """See :class:`.Forecast`."""
        return with_labels_as_features(part)

    def volume(self, shape: ModelShape, size: TrainingSize) -> PredictedVolume:
        """Predict K exchanges of C values a vector: ``V K C``. There are no weights."""
        values = size.vectors * shape.layers * shape.classes
        return PredictedVolume(
            boundary_training=item_bytes(shape) * values,
            boundary_evaluation=0,
            updates_up=0,
            weights_training=0,
            weights_beyond=0,
        )

    def sentence(self, config: RunConfig, *, vectors: int, drawn: int | None) -> str:
        """See :class:`.Forecast`."""
        del vectors, drawn
        steps = format_counted(config.layers, "step")
        return f"{steps}, an exchange before each: labels of train nodes first, then scores"

    def parameters(self, shape: ModelShape) -> Sequence[int]:
        """See :class:`.Forecast`."""
        return (0,) * shape.layers

    def first_reach(self, shape: ModelShape) -> int:
        """See :class:`.Forecast`."""
        del shape
        return 0

    def is_comparable(self, shape: ModelShape) -> bool:
        """Return False: no other way has a shape without weights."""
        del shape
        return False

    def exchanges(self, config: RunConfig, shape: ModelShape) -> Sequence[int]:
        """See :class:`.Forecast`."""
        del config
        return (1,) * shape.layers

    def boundary_at_most(
        self, shape: ModelShape, size: TrainingSize, coded: Callable[[int], int]
    ) -> int:
        """See :class:`.Forecast`."""
        del size
        return sum(map(coded, range(shape.layers)))
