"""What a client's trainers found, in the form in which it is answered."""

from __future__ import annotations

from typing import Final

import numpy as np

from retexo_fl.client.api import (
    EvaluateAnswer,
    MaskedAnswer,
    PublishAnswer,
    Sums,
    TrainAnswer,
)
from retexo_fl.training.tally import LayerUpdate, Tally


def train_answer(update: LayerUpdate, coded: np.ndarray) -> TrainAnswer:
    """Say what a round came to on one client; ``coded`` is its update as it travels."""
    return TrainAnswer(
        update_sum=coded,
        examples=update.train.count,
        loss_sum=update.train.loss_sum,
        validation_examples=update.validation.count,
        validation_loss_sum=update.validation.loss_sum,
        validation_correct=update.validation.correct,
        validation_metric=Sums.of(update.validation.metric_sums),
    )


#: Of a client that does not hold the weights which a request changes.
LACKING_TRAIN: Final = TrainAnswer(
    update_sum=np.zeros(0, np.float32),
    examples=0,
    loss_sum=0.0,
    validation_examples=0,
    validation_loss_sum=0.0,
    validation_correct=0,
    lacks_weights=True,
)
LACKING_EVALUATE: Final = EvaluateAnswer(examples=0, loss_sum=0.0, correct=0, lacks_weights=True)
LACKING_MASKED: Final = MaskedAnswer(numbers=np.zeros(0, np.uint8), beside=b"", lacks_weights=True)
#: Of a client that has no masking keys.
KEYLESS: Final = MaskedAnswer(numbers=np.zeros(0, np.uint8), beside=b"", lacks_keys=True)
LACKING_PUBLISH: Final = PublishAnswer(lacks_weights=True)


def is_lacking(answer: object) -> bool:
    """Return whether an answer says that the client lacks the weights, or keys, to answer with."""
    return any(getattr(answer, name, None) for name in ("lacks_weights", "lacks_keys"))


def evaluate_answer(tally: Tally, own: tuple[float, ...]) -> EvaluateAnswer:
    """Say how some nodes were judged; ``own`` is the client's figure, or nothing."""
    return EvaluateAnswer(
        examples=tally.count,
        loss_sum=tally.loss_sum,
        correct=tally.correct,
        metric=Sums.of(tally.metric_sums),
        report=Sums.of(tally.report_sums),
        own=own,
    )
