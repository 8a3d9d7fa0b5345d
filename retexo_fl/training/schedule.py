"""Which layers a stage trains: one after the other (lazy), or all of them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retexo_fl.training.stage_model import (
    FlatParameters,
    ModelShape,
    StageModel,
    flat_weights,
    initial_weights,
    named_weights,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The stages of a training.

    Attributes:
        shape: Sizes of the model. Without heads between its layers they are trained together.
    """

    shape: ModelShape

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.shape.trained_stages if self.shape.heads_between else 1

    def layers(self, stage: int) -> Sequence[int]:
        """Return the layers that a stage trains: none, where it only has features cross."""
        if not self.shape.heads_between:
            return range(self.shape.layers)
        if stage == self.shape.refinement:
            return range(self.shape.layers - 2, self.shape.layers)
        return [layer for layer in range(self.shape.layers) if self.shape.stage_of(layer) == stage]

    def initial(self, stage: int, *, seed: int, before: np.ndarray | None = None) -> np.ndarray:
        """Return the (P,) weights that a stage starts from, layer after layer.

        ``before``, of a stage with one layer, are the weights of the stage before that its
        classifier starts with; None draws it.
        """
        return self._joined(
            [
                initial_weights(self.shape, layer, seed=seed, before=before)
                for layer in self.layers(stage)
            ]
        )

    def named(self, stage: int, flat: np.ndarray) -> dict[int, dict[str, np.ndarray]]:
        """Split a stage's (P,) weights into the named tensors of each of its layers."""
        layers = self.layers(stage)
        sizes = [FlatParameters(StageModel(self.shape, layer)).size for layer in layers]
        parts = np.split(flat, np.cumsum(sizes, dtype=np.int64)[:-1])[: len(layers)]
        return {
            layer: named_weights(self.shape, layer, part)
            for layer, part in zip(layers, parts, strict=True)
        }

    def flat(self, stage: int, named: Mapping[int, dict[str, np.ndarray]]) -> np.ndarray:
        """Join the named tensors of a stage's layers: the inverse of :meth:`named`."""
        parts = [flat_weights(self.shape, layer, named[layer]) for layer in self.layers(stage)]
        return self._joined(parts)

    def _joined(self, parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.zeros(0, self.shape.dtype), *parts])
