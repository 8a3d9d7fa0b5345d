from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.errors import PluginError, RemoteProtocolError
from retexo_fl.federation.aggregators import (
    CheckedAggregator,
    RoundFacts,
    WeightedMean,
    make_aggregator,
)
from tests.support.aggregator_contract import combined, means, round_facts


class Answering(WeightedMean):
    """Returns what it is told to."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    def finish(self) -> np.ndarray:
        return self.answer  # type: ignore[return-value]


class Noting(WeightedMean):
    """Notes who was added."""

    def start(self, begun: RoundFacts) -> None:
        super().start(begun)
        self.added: list[tuple[int, int]] = []

    def add(self, client: int, update_sum: np.ndarray, count: int) -> None:
        super().add(client, update_sum, count)
        self.added.append((client, count))


@pytest.mark.parametrize("update", [np.zeros(3), np.zeros(2, np.float32), np.zeros((2, 1))])
def test_other_shapes_and_types_are_refused(update: np.ndarray) -> None:
    aggregator = make_aggregator("mean")
    aggregator.start(round_facts(2))
    with pytest.raises(RemoteProtocolError, match=r"client 7: got a .* expected float64 of \(2,\)"):
        aggregator.add(7, update, 1)


def test_only_clients_with_train_nodes_are_handed_on() -> None:
    inner = Noting()
    combined(CheckedAggregator("noting", inner), [*means([1.0]), (np.zeros(1), 0), *means([2.0])])
    assert inner.added == [(0, 1), (2, 1)]


def test_gradients_handed_on_without_train_nodes_are_summed() -> None:
    inner = Noting()
    updates = [(np.array([6.0]), 2), (np.array([3.0]), 0)]
    aggregator = CheckedAggregator("noting", inner, takes_uncounted=True)
    assert combined(aggregator, updates).tolist() == [4.5]
    assert inner.added == [(0, 2), (1, 0)]


def test_a_round_without_train_nodes_has_nothing_to_average() -> None:
    aggregator = make_aggregator("mean", takes_uncounted=True)
    with pytest.raises(RemoteProtocolError, match="no client has a train node"):
        combined(aggregator, [(np.array([6.0]), 0), (np.array([3.0]), 0)])


def test_a_client_without_train_nodes_moves_nothing_elsewhere() -> None:
    inner = Noting()
    updates = [(np.array([6.0]), 2), (np.array([3.0]), 0)]
    assert combined(CheckedAggregator("noting", inner), updates).tolist() == [3.0]
    assert inner.added == [(0, 2)]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (None, "finish returned NoneType; expected an array of float64"),
        ([1.0, 2.0], "finish returned list; expected an array of float64"),
        (np.zeros(2, np.float32), "finish returned float32 of shape (2,); expected float64 of"),
        (np.zeros((1, 2)), "finish returned float64 of shape (1, 2); expected float64 of"),
    ],
)
def test_results_of_another_form_are_refused(answer: object, sentence: str) -> None:
    with pytest.raises(PluginError) as caught:
        combined(CheckedAggregator("mine:Own", Answering(answer)), means([1.0, 2.0]))
    assert str(caught.value).startswith(f"aggregator 'mine:Own': {sentence}")


def test_result_can_be_written_to() -> None:
    answer = np.arange(4.0)[::2]
    answer.flags.writeable = False
    result = combined(CheckedAggregator("mine:Own", Answering(answer)), means([1.0, 2.0]))
    assert result.tolist() == [0.0, 2.0]
    assert result.flags.writeable
    assert result.flags.c_contiguous
