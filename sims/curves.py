"""Validation accuracy against the bytes moved until then."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from sims.trained import COUNTED_PURPOSES, MODEL_KINDS, Trained, bytes_of


class Point(NamedTuple):
    """After a round: MB sent and received at all clients so far, and validation accuracy."""

    megabytes: float
    accuracy: float


def accuracy_curve(trained: Trained, measure: str = "payload") -> list[Point]:
    """Return a point for each round of a training.

    A stage's exchange is counted before its first round, and what its rounds moved in equal parts.
    A vector is counted at both ends, weights and updates at the client, as RETEXO counts.
    """
    exchanged, trained_bytes = _by_stage(trained, measure)
    rounds = Counter(event["stage"] for event in trained.history)
    points = []
    moved = 0.0
    for event in trained.history:
        stage = event["stage"]
        if event["round"] == 1:
            moved += exchanged[stage]
        moved += trained_bytes[stage] / rounds[stage]
        points.append(Point(moved / 1e6, event["val_accuracy"]))
    return points


def _by_stage(trained: Trained, measure: str) -> tuple[Counter[int], Counter[int]]:
    exchanged: Counter[int] = Counter()
    in_rounds: Counter[int] = Counter()
    for line in trained.moved:
        if line["purpose"] not in COUNTED_PURPOSES:
            continue
        if line["kind"] not in ("boundary", *MODEL_KINDS):
            continue
        of = exchanged if line["purpose"] == "exchange" else in_rounds
        of[line["layer"]] += bytes_of(line, measure) * (2 if line["kind"] == "boundary" else 1)
    return exchanged, in_rounds


def bytes_until(points: list[Point], accuracy: float) -> float | None:
    """Return the MB after which the validation accuracy first is so high; None if it never is."""
    return next((point.megabytes for point in points if point.accuracy >= accuracy), None)
