"""What a training has to know of all clients' labels, from their hellos; what the user should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from retexo_fl.client.api import HelloAnswer, LabelsAnswer
from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError, RemoteProtocolError
from retexo_fl.federation.asking import named
from retexo_fl.training.label_facts import TRAIN, absent_classes, uses_by_class
from retexo_fl.training.recipe import objective_of
from retexo_fl.units import counted


def check_goal(config: RunConfig, outputs: int) -> None:
    """Check that a run's metric and weights fit so many classes, labels or numbers.

    Raises:
        ConfigurationError: They do not; the message names the key.
    """
    objective = objective_of(config)
    metric = objective.metric()
    if metric is not None and (reason := metric.unfit_for(outputs)):
        raise ConfigurationError(f"metric: {config.metric_name}: {reason}")
    weights = objective.given_weights
    if weights and len(weights) != outputs:
        raise ConfigurationError(
            f"class-weights: got {counted(len(weights), 'number')}; expected {outputs}, one for "
            f"each {config.goal.output}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTotals:
    """What is known of all clients' labels together.

    Attributes:
        uses: (C,) by class the uses that any client has nodes of.
        sums: Over all train nodes, where the loss depends on them.
        train: How many train nodes there are.
    """

    uses: tuple[int, ...]
    sums: tuple[float, ...]
    train: int

    @classmethod
    def of_hellos(cls, config: RunConfig, hellos: Sequence[HelloAnswer]) -> Self:
        """Add up, in client order, what each client has sent.

        Raises:
            RemoteProtocolError: A client's sums over its labels are none.
        """
        for hello in hellos:
            with named(hello.client):
                _check_sums(config, hello.label_sums, hello)
        uses = np.bitwise_or.reduce([hello.label_uses for hello in hellos], axis=0)
        sums = np.sum([hello.label_sums for hello in hellos], axis=0)
        return cls(
            uses=tuple(uses.tolist()),
            sums=tuple(np.asarray(sums).tolist()),
            train=sum(hello.train for hello in hellos),
        )

    @classmethod
    def of_counts(cls, answer: LabelsAnswer, config: RunConfig, hello: HelloAnswer) -> Self:
        """Take a masked sum.

        Raises:
            RemoteProtocolError: It does not fit the counts of the clients' hellos.
        """
        is_odd = any(not 0 <= count <= hello.nodes for count in answer.uses)
        if is_odd and config.goal.at_most_nodes:
            raise RemoteProtocolError(
                f"class counts are {list(answer.uses)[:9]}; expected counts of {hello.nodes} nodes"
            )
        _check_sums(config, answer.sums, hello)
        uses = uses_by_class(answer.uses)
        if config.update_dp:
            # Which classes train nodes have is not known: none counts as missing.
            uses = tuple(of | TRAIN for of in uses)
        return cls(uses=uses, sums=answer.sums, train=hello.train)

    def facts(self, config: RunConfig) -> tuple[float, ...]:
        """Return what clients are to know of all labels, or nothing."""
        return objective_of(config).label_facts.of_sums(np.asarray(self.sums), self.train)

    def warnings(self) -> tuple[str, ...]:
        """Return what the user should know of the labels before the training."""
        return absent_classes([self.uses])


def _check_sums(config: RunConfig, sums: tuple[float, ...], hello: HelloAnswer) -> None:
    """Check that sums over train nodes are of as many as there are."""
    label_facts = objective_of(config).label_facts
    expected = label_facts.num_sums(hello.classes)
    if len(sums) != expected:
        raise RemoteProtocolError(
            f"label-sums has {counted(len(sums), 'number')}; expected {expected}"
        )
    if why := label_facts.why_none(sums, hello.train):
        raise RemoteProtocolError(f"label-sums {why}")
