from __future__ import annotations

from dataclasses import replace

import pytest

from retexo_fl.methods.forecasts import FORECASTS, LAZY, STANDARD
from retexo_fl.methods.whole.forecast import BnsForecast, CentralForecast, DropForecast
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import (
    PredictedVolume,
    TrainingSize,
    gamma,
    sampled_vectors,
    stage_parameters,
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
HEAD = 256 * 7 + 7
#: Both layers and the LayerNorm between them, without the head.
MODEL = 739_854 - HEAD


def test_parameters_equal_the_authors_count() -> None:
    whole, heads = stage_parameters(CORA)
    assert sum(whole) == 739_854
    assert heads == [HEAD, 0]
    assert MODEL == (2 * 1433 * 256 + 256) + 2 * 256 + (2 * 256 * 7 + 7)


def test_boundary_equals_what_the_authors_code_moved() -> None:
    # Their count at one worker is its sends and receives: all vectors, each once.
    assert LAZY.volume(CORA, SIZE).boundary == 15_065_880


def test_updates_equal_what_the_authors_code_moved() -> None:
    # Their figure counts gather and broadcast at one worker, ours one way at two clients.
    assert LAZY.volume(CORA, SIZE).updates_up == 591_883_200


def test_standard_exchanges_hidden_states_in_every_round() -> None:
    boundary = STANDARD.volume(CORA, SIZE).boundary_training
    assert boundary == 4 * 2230 * (1433 + 2 * 100 * 256)
    # Appendix A.1: message passing alone is about 31 times dearer.
    ratio = boundary / LAZY.volume(CORA, SIZE).boundary
    assert ratio == (1433 + 200 * 256) / (1433 + 256)
    assert round(ratio, 2) == 31.16


def test_standard_evaluates_in_every_round_and_twice_at_the_end() -> None:
    volume = STANDARD.volume(CORA, SIZE)
    assert volume.boundary_evaluation == 4 * 2230 * 256 * 102
    assert volume.updates_up == 4 * 2 * 100 * MODEL
    assert volume.weights_down == 4 * 2 * 102 * MODEL
    assert volume.total == volume.boundary + volume.updates_up + volume.weights_down


def test_clients_of_standard_all_take_part_in_every_round() -> None:
    few = replace(SIZE, training_clients=1, asked_clients=1, validation_clients=0)
    assert STANDARD.volume(CORA, few) == STANDARD.volume(CORA, SIZE)
    assert LAZY.volume(CORA, few).updates_up * 2 == LAZY.volume(CORA, SIZE).updates_up


def test_sampled_vectors_are_at_least_one_of_a_pair() -> None:
    # Of 2,230 vectors a tenth would be 223.
    assert sampled_vectors([1138, 1092], 0.1) == 113 + 109
    assert sampled_vectors([3, 9, 10, 19, 20, 0], 0.1) == 1 + 1 + 1 + 1 + 2
    assert sampled_vectors([5, 7], 1.0) == 12


def test_bns_moves_drawn_vectors_and_their_numbers() -> None:
    drawn = sampled_vectors([1138, 1092], 0.1)
    volume = BnsForecast().volume(CORA, replace(SIZE, sampled_vectors=drawn))
    assert volume is not None
    assert volume.boundary_training == 4 * 2230 * 1433 + 100 * 222 * (2 * 4 * 256 + 8)
    # Appendix A.1: about four times what lazy message passing moves.
    assert volume.boundary_training / LAZY.volume(CORA, SIZE).boundary == pytest.approx(3.88, 2e-3)
    standard = STANDARD.volume(CORA, SIZE)
    assert volume.boundary_evaluation == standard.boundary_evaluation
    assert volume.weights_down == standard.weights_down


def test_bns_of_one_layer_has_nothing_to_draw() -> None:
    one = replace(CORA, layers=1)
    size = replace(SIZE, rounds=(100,), sampled_vectors=222)
    volume = BnsForecast().volume(one, size)
    assert volume is not None
    assert volume.boundary == 4 * 2230 * 1433
    assert STANDARD.volume(one, size).boundary == 4 * 2230 * 1433


def test_bns_is_not_known_without_its_pairs() -> None:
    assert BnsForecast().volume(CORA, SIZE) is None


def test_drop_moves_the_model_without_heads_and_nothing_else() -> None:
    # Clients with train nodes train, those with validation nodes validate, all test.
    size = replace(SIZE, clients=9, training_clients=3, asked_clients=5, validation_clients=4)
    volume = DropForecast().volume(CORA, size)
    assert volume.boundary == 0
    assert volume.updates_up == 4 * 3 * 100 * MODEL
    assert volume.weights_down == 4 * (5 * 100 + 4 + 9) * MODEL


def test_central_is_one_client() -> None:
    volume = CentralForecast().volume(CORA, SIZE)
    assert (volume.boundary, volume.updates_up) == (0, 4 * 100 * MODEL)
    assert volume.weights_down == 4 * 102 * MODEL


def test_volumes_of_three_layers_by_hand() -> None:
    shape = replace(CORA, layers=3, dtype="float64")
    size = replace(SIZE, rounds=(10, 10, 10), sampled_vectors=222)
    model = MODEL + 2 * 256 * 256 + 256 + 2 * 256
    lazy, bns = LAZY.volume(shape, size), BnsForecast().volume(shape, size)
    assert lazy.boundary == 8 * 2230 * (1433 + 2 * 256)
    assert lazy.updates_up == 8 * 2 * 10 * (model + 2 * HEAD)
    standard = STANDARD.volume(shape, size)
    assert standard.boundary_training == 8 * 2230 * (1433 + 2 * 10 * 2 * 256)
    assert standard.boundary_evaluation == 8 * 2230 * 12 * 2 * 256
    assert standard.updates_up == 8 * 2 * 10 * model
    assert bns is not None
    assert bns.boundary_training == 8 * 2230 * 1433 + 10 * 222 * (2 * 8 * 2 * 256 + 8)


def test_volumes_do_not_depend_on_what_the_algorithm_trains() -> None:
    bare = replace(CORA, heads_between=False)
    size = replace(SIZE, sampled_vectors=222)
    for forecast in FORECASTS.values():
        assert forecast.volume(bare, size) == forecast.volume(CORA, size)


def test_gamma_equals_equation_2_by_hand() -> None:
    per_client = 1115
    numerator = 1 + per_client * (2 * 256 / MODEL + 1433 / (MODEL * 100))
    denominator = 1 + HEAD / MODEL + per_client * (256 + 1433) / (MODEL * 100)
    expected = pytest.approx(numerator / denominator, rel=1e-12)
    assert gamma(STANDARD.volume(CORA, SIZE), LAZY.volume(CORA, SIZE)) == expected


def test_gamma_leaves_out_evaluation_and_what_is_published() -> None:
    volume = PredictedVolume(
        boundary_training=10,
        boundary_evaluation=1000,
        updates_up=3,
        weights_training=5,
        weights_beyond=1000,
    )
    assert volume.paper == 2 * 10 + 3 + 5
    assert gamma(replace(volume, boundary_training=24), volume) == 2


def test_gamma_grows_with_rounds() -> None:
    sizes = [replace(SIZE, rounds=(rounds, rounds)) for rounds in (1, 10, 100)]
    values = [gamma(STANDARD.volume(CORA, size), LAZY.volume(CORA, size)) for size in sizes]
    assert values[0] < values[1] < values[2]
