from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from retexo_fl.errors import PluginError, RemoteProtocolError
from retexo_fl.training.metrics import Metric, make_metric, metric_sums, metric_value
from retexo_fl.training.selection import Score, add_answer
from retexo_fl.training.tally import Tally


class MacroRecall(Metric):
    """Mean over classes of the share that was found."""

    def sums(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        classes = logits.shape[1]
        found = torch.bincount(labels[logits.argmax(1) == labels], minlength=classes)
        return torch.cat([found, torch.bincount(labels, minlength=classes)])

    def value(self, totals: np.ndarray) -> float:
        found, there = np.split(totals, 2)
        return float((found[there > 0] / there[there > 0]).mean())


class NoVector(MacroRecall):
    def sums(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits.sum()


class NoSums(MacroRecall):
    def sums(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits.new_zeros(0)


class NotFinite(MacroRecall):
    def value(self, totals: np.ndarray) -> float:
        return float("nan")


LOGITS = torch.eye(3)[[0, 1, 2, 0]]
LABELS = torch.tensor([0, 1, 1, 2])


def test_accuracy_needs_no_sums_of_its_own() -> None:
    assert make_metric("accuracy") is None


def test_sums_of_clients_add_up_to_those_of_all_nodes() -> None:
    metric = make_metric(f"{__name__}:MacroRecall")
    assert isinstance(metric, MacroRecall)
    parts = Tally(count=4, correct=2, loss_sum=1.0)
    whole = replace(parts, metric_sums=metric_sums(metric, LOGITS, LABELS))
    for rows in (slice(0, 3), slice(3, 3), slice(3, 4)):
        found = metric_sums(metric, LOGITS[rows], LABELS[rows])
        parts = add_answer(parts, Tally(metric_sums=found))
    assert Score.of(parts, metric) == Score.of(whole, metric)
    assert Score.of(whole, metric).metric == pytest.approx((1 + 1 / 2 + 0) / 3)


def test_the_metric_decides_before_the_loss() -> None:
    low, high = (
        Score(count=4, correct=4 - i, loss_sum=float(i), metric=i / 2, by_metric=True)
        for i in (0, 1)
    )
    assert high.beats(low)
    assert not low.beats(high)
    assert not high.beats(high)


def test_less_of_an_error_is_better_and_any_value_than_none() -> None:
    none, low, high = (
        Score(count=4, correct=0, loss_sum=loss, metric=value, by_metric=True, lower_is_better=True)
        for loss, value in ((0.0, None), (1.0, 0.5), (0.5, 0.7))
    )
    assert low.beats(high)
    assert not high.beats(low)
    assert high.beats(none)
    assert not none.beats(high)
    assert replace(none, loss_sum=-1.0).beats(none)


def test_no_nodes_have_no_metric() -> None:
    assert Score.of(Tally(), MacroRecall()).metric is None


def test_clients_must_send_sums_of_one_length() -> None:
    two = np.array([1.0, 2.0])
    total = add_answer(Tally(), Tally(metric_sums=two))
    assert add_answer(total, Tally(count=1)) == Tally(count=1, metric_sums=two)
    assert total != Tally(metric_sums=two + 1)
    with pytest.raises(RemoteProtocolError, match="3 sums; expected 2"):
        add_answer(total, Tally(metric_sums=np.ones(3)))


@pytest.mark.parametrize(
    "name",
    [
        f"{__name__}:{name}"
        for name in ("LOGITS", "absent", "test_no_nodes_have_no_metric", "Metric")
    ],
)
def test_what_is_no_metric_is_refused_by_name(name: str) -> None:
    with pytest.raises(PluginError, match="metric"):
        make_metric(name)


def test_what_a_metric_returns_is_checked() -> None:
    for kind in (NoVector, NoSums):
        with pytest.raises(PluginError, match=f"{kind.__name__}: sums returned"):
            metric_sums(kind(), LOGITS, LABELS)
    with pytest.raises(PluginError, match="NotFinite: value returned nan"):
        metric_value(NotFinite(), np.zeros(6))
