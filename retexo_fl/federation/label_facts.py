"""What a training has to know of all clients' labels, from their hellos."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from retexo_fl.client.api import HelloAnswer
from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError, RemoteProtocolError
from retexo_fl.training.class_balance import (
    absent_classes,
    balanced_weights,
    given_weights,
    only_prediction,
)
from retexo_fl.training.metrics import make_metric
from retexo_fl.units import counted


def check_goal(config: RunConfig, classes: int) -> None:
    """Check that a run's metric and weights fit so many classes.

    Raises:
        ConfigurationError: They do not; the message names the key.
    """
    metric = make_metric(config.metric)
    if metric is not None and (reason := metric.unfit_for(classes)):
        raise ConfigurationError(f"metric: {config.metric}: {reason}")
    weights = given_weights(config)
    if weights and len(weights) != classes:
        raise ConfigurationError(
            f"class-weights: got {counted(len(weights), 'number')}; expected {classes}, one for "
            "each class"
        )


def label_facts(config: RunConfig, hellos: Sequence[HelloAnswer]) -> tuple[float, ...]:
    """Return what clients are to know of all labels: class weights, or nothing.

    Sums are added in client order.

    Raises:
        RemoteProtocolError: A client did not say how many train nodes it has of each class.
    """
    if config.class_weights != "balanced":
        return ()
    for hello in hellos:
        if not hello.label_sums:
            raise RemoteProtocolError(
                f"client {hello.client}: label-sums is missing; expected its train nodes by class"
            )
    counts = np.sum([hello.label_sums for hello in hellos], axis=0)
    return balanced_weights(np.asarray(counts))


def label_warnings(hellos: Sequence[HelloAnswer]) -> tuple[str, ...]:
    """Return what the user should know of the labels before the training."""
    return absent_classes([hello.label_uses for hello in hellos])


def prediction_warnings(confusion: np.ndarray) -> tuple[str, ...]:
    """Return what the user should know of the test, from its (C * C,) counts, if there are any."""
    if not confusion.size:
        return ()
    classes = math.isqrt(confusion.size)
    return only_prediction(confusion.reshape(classes, classes))
