"""A client's part in label propagation: a step, and how scores are judged.

Symbols: N inner nodes, C classes, n nodes of one use. F (N, C) are the scores of nodes by class, Y
those of train nodes by their labels: one for the class, zero for all others. From F(0), which is Y
at train nodes and zero at others, a step is::

    F(t + 1) = S F(t), then Y at train nodes again

S is what the layer called ``model`` makes of neighbours' rows: of ``sage`` ``D^(-1) A``, the mean
over neighbours, as in Zhu and Ghahramani; of ``gcn`` ``D^(-1/2) (A + I) D^(-1/2)``, where D counts
the node itself. Zhou et al. have it without I.

Source: Zhu and Ghahramani, "Learning from labeled and unlabeled data with label propagation",
CMU-CALD-02-107 (2002), section 2.2; S of ``gcn`` after Zhou et al., "Learning with local and global
consistency", NeurIPS 2003, section 2. These do not put Y back but mix, ``a S F(t) + (1 - a) Y``.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import numpy as np
import torch

from retexo_fl.client.api import TrainRequest
from retexo_fl.config import RunConfig
from retexo_fl.errors import LocalProtocolError
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.aggregate import AggregatedInput
from retexo_fl.layers.base import StageInput, dense_rows
from retexo_fl.methods.lazy.answers import LazyClient
from retexo_fl.methods.propagation.labels import with_labels_as_features
from retexo_fl.training.judging import label_tensor
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.stage_pass import chunks
from retexo_fl.training.tally import Tally, tally

#: A class that no label has reached is at least so likely, so that no loss is infinite.
_LEAST_SHARE: Final = 1e-6


class PropagationTrainer(LayerTrainer):
    """One step, with nothing to train: its weights are none.

    Args:
        shape: Of a model without weights.
        stage: t.
        inputs: F(t) of own and boundary nodes.
        nodes: The client's labelled nodes.
        labels: (N, C) Y; zeros in the rows of all other nodes.
        recipe: Loss and metric that scores are judged by.
    """

    def __init__(
        self,
        shape: ModelShape,
        stage: int,
        inputs: StageInput,
        nodes: NodeSets,
        *,
        labels: torch.Tensor,
        recipe: Recipe,
    ) -> None:
        super().__init__(shape, stage, inputs, nodes, seed=0, recipe=recipe)
        sums = self._facts.prepared
        assert isinstance(sums, AggregatedInput)
        # Own rows, where they are joined to the sum, come before it.
        found = dense_rows(sums.rows, sums.dtype)[:, -shape.classes :]
        is_train = labels.sum(dim=1, keepdim=True) > 0
        self._scores = torch.where(is_train, labels.to(found), found)

    def embed(self, weights: np.ndarray) -> torch.Tensor:
        """Return (N, C) F(t + 1)."""
        del weights
        return self._scores

    def logits(self, weights: np.ndarray) -> torch.Tensor:
        """Return the (N, C) logarithms of each class's share of F(t + 1)."""
        del weights
        return _log_shares(self._scores)

    def evaluate(self, weights: np.ndarray, which: str) -> Tally:
        """Judge F(t + 1) of the ``validation`` or ``test`` nodes."""
        del weights
        total = Tally()
        for rows in chunks(self._nodes.by_use[which]):
            answers = _log_shares(self._scores[torch.from_numpy(rows)])
            labels = label_tensor(self._nodes.labels[rows])
            total += tally(answers, labels, self._facts.recipe, which)
        return total


def _log_shares(scores: torch.Tensor) -> torch.Tensor:
    """Return logarithms of (n, C) scores over their sums; equal ones where no label has come."""
    sums = scores.sum(dim=1, keepdim=True)
    shares = torch.where(sums > 0, scores / sums, torch.zeros_like(scores))
    return shares.clamp_min(_LEAST_SHARE).log()


class PropagationClient(LazyClient):
    """Answers as a :class:`.LazyClient` does; what crosses are scores, and it is never trained."""

    def __init__(self, partition: GraphPartition, config: RunConfig, **kept: Any) -> None:
        super().__init__(with_labels_as_features(partition), config, **kept)

    def train_layer(self, request: TrainRequest) -> NoReturn:
        """Refuse: there is nothing to train.

        Raises:
            LocalProtocolError: Always.
        """
        raise LocalProtocolError(
            f"stage {request.ticket.stage}: asked to train; expected evaluations alone with "
            "algorithm propagation, which has no weights"
        )

    def _new_trainer(self, stage: int, digest: bytes) -> PropagationTrainer:
        return PropagationTrainer(
            self.shape,
            stage,
            self.crossing.stage_input(stage, digest),
            self.part.nodes,
            labels=dense_rows(self.crossing.features(), torch.float32),
            recipe=self._made.recipe,
        )
