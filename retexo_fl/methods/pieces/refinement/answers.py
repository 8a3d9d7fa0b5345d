"""A client's part in training the last two layers together: what crossed, and both layers."""

from __future__ import annotations

from retexo_fl.client.client import GraphClient
from retexo_fl.training.joint import JointTrainer
from retexo_fl.training.layer_trainer import StageTrainer


class RefiningClient(GraphClient):
    """A client that trains the last two layers together, in this process alone."""

    def _new_trainer(self, stage: int, digest: bytes) -> StageTrainer:
        if stage != self.shape.refinement:
            return super()._new_trainer(stage, digest)
        self._made.close()
        crossed = self.crossing.stage_input(stage, digest)
        seed, recipe = self._config.seed, self._made.recipe
        return JointTrainer(self.shape, crossed, self.part.nodes, seed=seed, recipe=recipe)
