"""What a training has to know of all clients' labels, from their hellos; what the user should."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from retexo_fl.client.api import HelloAnswer, LabelsAnswer
from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError, RemoteProtocolError
from retexo_fl.federation.asking import named
from retexo_fl.graph.labels import CLASSES, MULTI_LABEL, REGRESSION
from retexo_fl.training.label_facts import (
    absent_classes,
    facts_of,
    given_weights,
    label_sums_length,
    moments_of,
    number_of_digits,
    only_prediction,
    uses_by_class,
)
from retexo_fl.training.metrics import make_metric
from retexo_fl.units import counted

#: Sums of digits stay exact.
_MOST_DIGITS: Final = 2**53


def check_goal(config: RunConfig, outputs: int) -> None:
    """Check that a run's metric and weights fit so many classes, labels or numbers.

    Raises:
        ConfigurationError: They do not; the message names the key.
    """
    metric = make_metric(config.metric_name, config.task)
    if metric is not None and (reason := metric.unfit_for(outputs)):
        raise ConfigurationError(f"metric: {config.metric_name}: {reason}")
    weights = given_weights(config)
    if weights and len(weights) != outputs:
        what = "label" if config.task == MULTI_LABEL else "class"
        raise ConfigurationError(
            f"class-weights: got {counted(len(weights), 'number')}; expected {outputs}, one for "
            f"each {what}"
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
        """Add up, in client order, what each client has told.

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
        return cls(uses=uses_by_class(answer.uses), sums=answer.sums, train=hello.train)

    def facts(self, config: RunConfig) -> tuple[float, ...]:
        """Return what clients are to know of all labels, or nothing."""
        return facts_of(config, np.asarray(self.sums), self.train)

    def warnings(self) -> tuple[str, ...]:
        """Return what the user should know of the labels before the training."""
        return absent_classes([self.uses])


def prediction_warnings(config: RunConfig, report_sums: np.ndarray) -> tuple[str, ...]:
    """Return what the user should know of the test, from its sums."""
    if config.task != CLASSES or not report_sums.size:
        return ()
    classes = math.isqrt(report_sums.size)
    return only_prediction(report_sums.reshape(classes, classes))


def _check_sums(config: RunConfig, sums: tuple[float, ...], hello: HelloAnswer) -> None:
    """Check that sums over train nodes are of as many as there are."""
    expected = label_sums_length(config, hello.classes)
    if len(sums) != expected:
        found = counted(len(sums), "number")
        raise RemoteProtocolError(f"label-sums has {found}; expected {expected}")
    if config.task == REGRESSION:
        are_digits = all(digit.is_integer() and 0 <= digit < _MOST_DIGITS for digit in sums)
        if not are_digits or moments_of(number_of_digits(sums), hello.train) is None:
            raise RemoteProtocolError(
                f"label-sums is {list(sums)[:9]}; expected digits of a sum, and of one of squares"
            )
        return
    known = np.asarray(sums)
    if config.task == MULTI_LABEL:
        known = known.reshape(2, -1).sum(axis=0) if len(sums) else known
        fits = (known <= hello.train).all()
    else:
        fits = not len(sums) or known.sum() == hello.train
    if not fits or any(count < 0 for count in sums):
        raise RemoteProtocolError(
            f"label-sums add up to {known.tolist()}; expected counts of {hello.train} train nodes"
        )
