"""Questions of a prediction, whose rows stay where the client lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from retexo_fl.client.api.base import Question, Request, Ticket
from retexo_fl.client.api.rounds import NO_SUMS, SparseSums
from retexo_fl.client.schema import FLAT

#: How a job is called that predicts with trained layers.
PREDICTION_PREFIX: Final = "predict-"
#: After that, its name begins with so many digits of the model's digest.
MODEL_DIGITS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest(Request["PredictAnswer"]):
    """Predict all inner nodes with the last layer, and write that down where the client lives.

    The server gets counts only; the client then forgets the job.

    Attributes:
        ticket: The last stage.
        weights: (P,) of the last stage.
        form: Form of the file: ``csv``, ``parquet`` or ``npz``.
        label_facts: Of a regression, mean and scale of the labels that it was trained on.
        set_name: 16 hex digits that name the folder, below the client's own, which the file goes
            to; empty for the client's own.
    """

    ticket: Ticket = field(metadata=FLAT)
    weights: np.ndarray
    form: str
    label_facts: tuple[float, ...] = ()
    set_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictAnswer:
    """How many nodes were predicted and, of the labelled ones by use, how many rightly.

    Attributes:
        validation_metric: Sums of the run's metric over the labelled validation nodes, where it is
            another than accuracy; likewise ``test_metric``.
        validation_types: Of the same nodes what each type adds up (:func:`.sums_by_type`), where
            several have labels; likewise ``test_types``.
    """

    nodes: int
    train: int
    train_correct: int
    validation: int
    validation_correct: int
    test: int
    test_correct: int
    validation_metric: SparseSums = NO_SUMS
    test_metric: SparseSums = NO_SUMS
    validation_types: SparseSums = NO_SUMS
    test_types: SparseSums = NO_SUMS


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRequest(Request["PredictedAnswer"]):
    """Say whether what a job predicted is still there, whole, and of the client's present part.

    Attributes:
        ticket: Names the job.
        form: As in :class:`PredictRequest`; likewise ``set_name``.
    """

    ticket: Ticket = field(metadata=FLAT)
    form: str
    set_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedAnswer:
    """Which client this is, and whether it has the file."""

    client: int
    is_there: bool


PREDICT: Final = Question("predict", "query.predict", PredictRequest, PredictAnswer)
PREDICTED: Final = Question("predicted", "query.predicted", PredictedRequest, PredictedAnswer)
