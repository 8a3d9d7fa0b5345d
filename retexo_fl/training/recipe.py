"""How a client trains on its own data, apart from the model and the data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import torch

from retexo_fl.config import RunConfig
from retexo_fl.training.flat_optimizers import FlatAdam, FlatSgd
from retexo_fl.training.label_facts import given_weights
from retexo_fl.training.losses import Loss, Standardised, cross_entropy, make_loss
from retexo_fl.training.metrics import MRR_PAIRS, MeanReciprocalRank, Metric, make_metric

_OPTIMIZERS: Final[dict[str, type[FlatAdam | FlatSgd]]] = {"adam": FlatAdam, "sgd": FlatSgd}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSteps:
    """Steps that a client takes in a round, each over all its train nodes.

    Attributes:
        count: 1 sends the gradient of the incoming weights; more send a change of weights.
        optimizer: ``adam`` or ``sgd``, with a new state in every round.
        learning_rate: Its step size.
        weight_decay: Coupled L2; with one step the server adds it instead.
        proximal_mu: Pull towards the weights that a round starts from (Li et al., MLSys 2020,
            equation 2).
    """

    count: int = 1
    optimizer: str = "adam"
    learning_rate: float = 0.01
    weight_decay: float = 0.0
    proximal_mu: float = 0.0

    def begin(self, weights: np.ndarray) -> FlatAdam | FlatSgd:
        """Return a fresh optimizer at (P,) ``weights``."""
        return _OPTIMIZERS[self.optimizer](
            weights, learning_rate=self.learning_rate, weight_decay=self.weight_decay
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained on, by which steps, and how it is judged.

    Attributes:
        loss: Summed over nodes.
        label_facts: What it knows of all clients' labels (:func:`.make_loss`); may be empty.
        metric: Selects the best weights; None for accuracy.
        local: Steps of a round.
    """

    loss: Loss = cross_entropy
    label_facts: tuple[float, ...] = ()
    metric: Metric | None = None
    local: LocalSteps = LocalSteps()

    @classmethod
    def of(cls, config: RunConfig, label_facts: tuple[float, ...] = ()) -> Recipe:
        """Read the recipe of a configuration; the same object for all clients of a process.

        Args:
            config: Of the run.
            label_facts: What the configuration leaves to the clients' labels; empty before that is
                known.

        Raises:
            PluginError: Its loss or metric cannot be used.
        """
        return _read(config, label_facts)

    @property
    def judged_beside(self) -> int:
        """How many pairs without an edge each held-out edge is judged beside (task ``links``)."""
        return MRR_PAIRS if self.ranks_beside_own_end else 1

    @property
    def ranks_beside_own_end(self) -> bool:
        """Whether these begin with the edge's own end, not with any node."""
        return isinstance(self.metric, MeanReciprocalRank)

    def in_units(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return (R, C) outputs in the units of labels: those of classes and labels as they are."""
        if not isinstance(self.loss, Standardised):
            return outputs
        return self.loss.mean + self.loss.scale * outputs.double()


# Trying a loss takes longer than making the rest of a client.
@lru_cache(maxsize=4)
def _read(config: RunConfig, label_facts: tuple[float, ...]) -> Recipe:
    facts = label_facts or given_weights(config)
    return Recipe(
        loss=make_loss(config.loss_name, config.task, facts),
        label_facts=facts,
        metric=make_metric(config.metric_name, config.task, facts),
        local=LocalSteps(
            count=config.local_steps,
            optimizer=config.local_optimizer,
            learning_rate=config.local_learning_rate,
            weight_decay=config.weight_decay,
            proximal_mu=config.proximal_mu,
        ),
    )
