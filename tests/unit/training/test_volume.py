from __future__ import annotations

from dataclasses import replace

import pytest

from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import (
    TrainingSize,
    gamma,
    lazy_volume,
    stage_parameters,
    standard_volume,
)

#: Cora, SAGE, 2 layers, 2 parts, 100 rounds: measured on the authors' code.
CORA = ModelShape(
    model="sage", layers=2, inputs=1433, hidden=256, heads=8, classes=7, dtype="float32"
)
SIZE = TrainingSize(
    clients=2,
    training_clients=2,
    asked_clients=2,
    validation_clients=2,
    vectors=1138 + 1092,
    rounds=(100, 100),
)


def test_parameters_equal_the_authors_count() -> None:
    whole, heads = stage_parameters(CORA)
    assert sum(whole) == 739_854
    assert heads == [256 * 7 + 7, 0]


def test_boundary_equals_what_the_authors_code_moved() -> None:
    # Their count at one worker is its sends and receives: all vectors, each once.
    assert lazy_volume(CORA, SIZE).boundary == 15_065_880


def test_updates_equal_what_the_authors_code_moved() -> None:
    # Their figure counts gather and broadcast at one worker, ours one way at two clients.
    assert lazy_volume(CORA, SIZE).updates_up == 591_883_200


def test_standard_exchanges_hidden_states_in_every_round() -> None:
    boundary = standard_volume(CORA, SIZE).boundary
    assert boundary == 4 * 2230 * (1433 + 2 * 100 * 256)
    # Appendix A.1: message passing alone is about 31 times dearer.
    assert boundary / lazy_volume(CORA, SIZE).boundary == pytest.approx(31.2, abs=0.1)


def test_gamma_equals_equation_2_by_hand() -> None:
    model, heads, per_client = 739_854 - 1799, 1799, 1115
    numerator = 1 + per_client * (2 * 256 / model + 1433 / (model * 100))
    denominator = 1 + heads / model + per_client * (256 + 1433) / (model * 100)
    assert gamma(CORA, SIZE) == pytest.approx(numerator / denominator, rel=1e-12)


def test_gamma_grows_with_rounds() -> None:
    values = [gamma(CORA, replace(SIZE, rounds=(rounds, rounds))) for rounds in (1, 10, 100)]
    assert values[0] < values[1] < values[2]
