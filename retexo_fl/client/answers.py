"""What a client's trainers found, in the form in which it is answered."""

from __future__ import annotations

import numpy as np

from retexo_fl.client.api import EvaluateAnswer, TrainAnswer
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
        validation_metric=update.validation.metric_sums,
    )


def evaluate_answer(tally: Tally) -> EvaluateAnswer:
    """Say how some nodes were judged."""
    return EvaluateAnswer(
        examples=tally.count,
        loss_sum=tally.loss_sum,
        correct=tally.correct,
        metric=tally.metric_sums,
    )
