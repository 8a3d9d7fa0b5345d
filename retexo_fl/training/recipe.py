"""What a client trains on, by which steps, and how it is judged, apart from model and data.

An :class:`Objective` knows what its task has of its own: loss, metric, report, and what the loss
knows of all clients' labels. A :class:`Recipe` is that of a run, once this is known, and its steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, Final, Self

import numpy as np
import torch

from retexo_fl.config import GOALS, RunConfig, config_values
from retexo_fl.config.value_forms import ATTENDING
from retexo_fl.errors import ConfigurationError
from retexo_fl.exchange import wire_codec
from retexo_fl.layers.base import LayerShape
from retexo_fl.layers.named import layer_class
from retexo_fl.training.flat_optimizers import FlatAdam, FlatSgd
from retexo_fl.training.judging import NUMBER_SUMS, confusion_length
from retexo_fl.training.label_facts import (
    ClassWeights,
    LabelFacts,
    MeanAndScale,
    NoFacts,
    PositiveWeights,
    only_prediction,
)
from retexo_fl.training.losses import (
    Loss,
    Standardised,
    cross_entropy,
    make_class_loss,
    make_label_loss,
    make_number_loss,
)
from retexo_fl.training.metrics import (
    MeanReciprocalRank,
    Metric,
    NodeRanking,
    make_metric,
    pairs_beside,
)

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
        label_facts: What it knows of all clients' labels (:meth:`.Objective.loss`); may be empty.
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
        return pairs_beside(self.metric)

    @property
    def ranks_beside_own_end(self) -> bool:
        """Whether these begin with the edge's own end, not with any node."""
        return isinstance(self.metric, MeanReciprocalRank)

    @property
    def ranks_nodes(self) -> bool:
        """Whether held-out edges are judged by how nodes rank all others (task ``links``)."""
        return isinstance(self.metric, NodeRanking)

    def in_units(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return (R, C) outputs in the units of labels: those of classes and labels as they are."""
        if not isinstance(self.loss, Standardised):
            return outputs
        return self.loss.mean + self.loss.scale * outputs.double()


# Trying a loss takes longer than making the rest of a client.
@lru_cache(maxsize=4)
def _read(config: RunConfig, label_facts: tuple[float, ...]) -> Recipe:
    objective = objective_of(config)
    facts = label_facts or objective.given_weights
    return Recipe(
        loss=objective.loss(facts),
        label_facts=facts,
        metric=objective.metric(facts),
        local=LocalSteps(
            count=config.local_steps,
            optimizer=config.local_optimizer,
            learning_rate=config.local_learning_rate,
            weight_decay=config.weight_decay,
            proximal_mu=config.proximal_mu,
        ),
    )


# ---- what a task has of its own ------------------------------------------------------------------


def objective_of(config: RunConfig) -> Objective:
    """Return the objective of a run."""
    return _OBJECTIVES[config.task].of(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedTest:
    """What a report says of the test; see the fields of :class:`.Result` of the same names."""

    confusion: tuple[tuple[int, ...], ...] = ()
    labels: tuple[tuple[int, ...], ...] = ()
    errors: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective(ABC):
    """What clients train on, and how they are judged.

    Attributes:
        loss_name: As a configuration has it, or its task where it leaves it to that.
        metric_name: Likewise.
        class_weights: ``none``, ``balanced``, or numbers with commas between them.
        link_head: See :class:`.ModelShape`.
        why_alone: Why devices cannot share its work; empty where they can.
    """

    loss_name: str = "cross-entropy"
    metric_name: str = "accuracy"
    class_weights: str = "none"
    link_head: str = ""

    why_alone: ClassVar[str] = ""

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Read a configuration."""
        return cls(
            loss_name=config.loss_name,
            metric_name=config.metric_name,
            class_weights=config.class_weights,
        )

    @abstractmethod
    def loss(self, facts: tuple[float, ...] = ()) -> Loss:
        """Return the loss, by what is known of all clients' labels.

        Raises:
            PluginError: There is no such loss.
        """

    @property
    @abstractmethod
    def label_facts(self) -> LabelFacts:
        """What the loss knows of all clients' labels, where a configuration leaves it to them."""

    @property
    def given_weights(self) -> tuple[float, ...]:
        """The weights that a configuration gives, or none, or none yet of classes by name."""
        if self.class_weights in {"none", "balanced"} or ":" in self.class_weights:
            return ()
        return tuple(float(text) for text in self.class_weights.split(","))

    def metric(self, facts: tuple[float, ...] = ()) -> Metric | None:
        """Return the metric, or None for accuracy; ``facts`` as of :meth:`loss`.

        Raises:
            PluginError: There is no such metric.
        """
        return make_metric(self.metric_name, facts, of_classes=False)

    @abstractmethod
    def report_length(self, outputs: int) -> int:
        """Return how many sums a report of the test is made of (:func:`.report_sums`)."""

    @abstractmethod
    def report(self, sums: np.ndarray, outputs: int, facts: tuple[float, ...]) -> JudgedTest:
        """Return what these sums say; there is at least one."""

    def warnings(self, sums: np.ndarray) -> tuple[str, ...]:
        """Return what the user should know of the test, from these sums."""
        del sums
        return ()

    def micro_f1(self, accuracy: float | None) -> float | None:
        """Return the F1 of all classes' counts together; None where it is not accuracy."""
        del accuracy
        return None

    @property
    def ranks_nodes(self) -> bool:
        """Whether held-out edges are judged by how nodes rank all others."""
        return False

    def group_size(self, use: str) -> int:
        """Return how many examples are counted for each node, or edge, of a use."""
        del use
        return 1

    def check_model(self, model: str) -> None:
        """Refuse a model that cannot be trained for it.

        Raises:
            ConfigurationError: It cannot.
            PluginError: The model is no layer.
        """
        del model


class _Classes(Objective):
    """One class for each node."""

    __slots__ = ()

    def loss(self, facts: tuple[float, ...] = ()) -> Loss:
        """See :class:`Objective`."""
        return make_class_loss(self.loss_name, facts)

    @property
    def label_facts(self) -> LabelFacts:
        """See :class:`Objective`."""
        return ClassWeights() if self.class_weights == "balanced" else NoFacts()

    def metric(self, facts: tuple[float, ...] = ()) -> Metric | None:
        """See :class:`Objective`."""
        return make_metric(self.metric_name, facts)

    def report_length(self, outputs: int) -> int:
        """See :class:`Objective`."""
        return confusion_length(outputs)

    def report(self, sums: np.ndarray, outputs: int, facts: tuple[float, ...]) -> JudgedTest:
        """See :class:`Objective`."""
        del facts
        rows = sums.reshape(-1, outputs).astype(np.int64)
        return JudgedTest(confusion=tuple(map(tuple, rows.tolist())))

    def warnings(self, sums: np.ndarray) -> tuple[str, ...]:
        """See :class:`Objective`."""
        classes = math.isqrt(sums.size)
        return only_prediction(sums.reshape(classes, classes))

    def micro_f1(self, accuracy: float | None) -> float | None:
        """See :class:`Objective`."""
        return accuracy


class _Labels(Objective):
    """Several labels for each node."""

    __slots__ = ()

    def loss(self, facts: tuple[float, ...] = ()) -> Loss:
        """See :class:`Objective`."""
        return make_label_loss(self.loss_name, facts)

    @property
    def label_facts(self) -> LabelFacts:
        """See :class:`Objective`."""
        return PositiveWeights() if self.class_weights == "balanced" else NoFacts()

    def report_length(self, outputs: int) -> int:
        """See :class:`Objective`."""
        return 3 * outputs

    def report(self, sums: np.ndarray, outputs: int, facts: tuple[float, ...]) -> JudgedTest:
        """See :class:`Objective`."""
        del facts
        rows = sums.reshape(-1, outputs).astype(np.int64)
        return JudgedTest(labels=tuple(map(tuple, rows.T.tolist())))


class _Numbers(Objective):
    """A number for each node."""

    __slots__ = ()

    def loss(self, facts: tuple[float, ...] = ()) -> Loss:
        """See :class:`Objective`."""
        return make_number_loss(self.loss_name, facts)

    @property
    def label_facts(self) -> LabelFacts:
        """See :class:`Objective`."""
        return MeanAndScale()

    def report_length(self, outputs: int) -> int:
        """See :class:`Objective`."""
        del outputs
        return NUMBER_SUMS

    def report(self, sums: np.ndarray, outputs: int, facts: tuple[float, ...]) -> JudgedTest:
        """See :class:`Objective`."""
        del outputs
        metrics = {name: make_metric(name, facts) for name in GOALS["regression"].metrics}
        errors = {name: m.value(sums) for name, m in metrics.items() if m is not None}
        return JudgedTest(errors=errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Links(_Labels):
    """Whether two nodes have an edge: one label of each pair.

    Attributes:
        negatives: Pairs without an edge that are drawn for each train edge.
    """

    negatives: int = 1

    why_alone: ClassVar[str] = "pairs of nodes are not shared among devices"

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Read a configuration."""
        return cls(
            loss_name=config.loss_name,
            metric_name=config.metric_name,
            link_head=config.link_head,
            negatives=config.negatives,
        )

    @property
    def ranks_nodes(self) -> bool:
        """See :class:`Objective`."""
        return isinstance(self.metric(), NodeRanking)

    def group_size(self, use: str) -> int:
        """Return how many pairs are counted for each edge: with those without one."""
        return 1 + (self.negatives if use == "train" else pairs_beside(self.metric()))

    def check_model(self, model: str) -> None:
        """Refuse a layer whose sums not both ends of an edge could know."""
        crossing_width = layer_class(model).crossing_width
        is_known = crossing_width(LayerShape(inputs=1, outputs=1, hidden=1)) is not None
        if not is_known and model not in ATTENDING:
            raise ConfigurationError(
                f"task: links does not go with model {model}, which makes no fixed sums over "
                "neighbours that both ends of an edge could know; expected classes, or a model as "
                "gcn, sage, gin, gat, dir-sage, or rel-sage"
            )


_OBJECTIVES: Final[Mapping[str, type[Objective]]] = MappingProxyType(
    {"classes": _Classes, "multi-label": _Labels, "regression": _Numbers, "links": _Links}
)


def check_factors(config: RunConfig) -> None:
    """Refuse to round numbers that rows are multiplied by as if they were values of the rows.

    Raises:
        ConfigurationError: They would be.
    """
    if not layer_class(config.model).num_factors:
        return
    values = config_values(config)
    for key, exact in (("row-bits", 32), ("codec", wire_codec(config.codec))):
        if (given := values[key]) != exact:
            raise ConfigurationError(
                f"{key}: {given} does not go with model {config.model}, whose rows have their "
                f"nodes' degrees beside them; expected {exact}"
            )
