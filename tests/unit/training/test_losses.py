from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from retexo_fl.errors import PluginError
from retexo_fl.training.losses import (
    Loss,
    check_loss,
    cross_entropy,
    make_class_loss,
    make_label_loss,
)


def smoothed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1)


def averaged(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels)


def as_number(logits: torch.Tensor, labels: torch.Tensor) -> float:
    return float(smoothed(logits, labels).detach())


def for_each_row(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def detached(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return smoothed(logits, labels).detach()


def of_logits_alone(logits: torch.Tensor) -> torch.Tensor:
    return logits.sum()


def test_losses_by_name() -> None:
    assert make_class_loss("cross-entropy") is cross_entropy
    assert make_class_loss(f"{__name__}:smoothed") is smoothed


LOGITS, LABELS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 3


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("task", ["classes", "multi-label"])
def test_focal_loss_has_a_slope_where_a_node_is_certain(
    gamma: float, dtype: torch.dtype, task: str
) -> None:
    """A power below 1 has none at 0, where a probability is 1; a node that is wrong pulls."""
    certain = torch.tensor([[900.0, -900.0], [-900.0, 900.0]], dtype=dtype, requires_grad=True)
    right, wrong = torch.tensor([0, 1]), torch.tensor([1, 0])
    loss = make_class_loss(f"focal:{gamma}")
    if task == "multi-label":
        loss = make_label_loss(f"focal:{gamma}")
        right, wrong = (F.one_hot(classes, 2) for classes in (right, wrong))
    (slope,) = torch.autograd.grad(loss(certain, right), certain)
    assert torch.equal(slope, torch.zeros_like(slope))
    (slope,) = torch.autograd.grad(loss(certain, wrong), certain)
    assert (slope.abs() >= 0.5).all()
    assert slope.isfinite().all()


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_loss_of_classes_is_that_of_its_paper(gamma: float) -> None:
    share = torch.softmax(LOGITS.double(), dim=1).gather(1, LABELS[:, None])
    expected = -((1 - share) ** gamma * share.log()).sum()
    found = make_class_loss(f"focal:{gamma}")(LOGITS.double(), LABELS)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("name", ["cross-entropy", "focal:2", f"{__name__}:smoothed"])
def test_weights_of_classes_count_with_any_loss(name: str) -> None:
    weights, plain = (0.5, 2.0, 7.0), make_class_loss(name)
    rows = [plain(LOGITS[n : n + 1], LABELS[n : n + 1]) for n in range(5)]
    expected = sum(weights[int(LABELS[n])] * row.item() for n, row in enumerate(rows))
    loss = make_class_loss(name, weights=weights)
    assert loss(LOGITS, LABELS).item() == pytest.approx(expected, rel=1e-5)
    check_loss(loss, LOGITS, LABELS)


@pytest.mark.parametrize("loss", [cross_entropy, smoothed])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_sums_over_nodes_are_losses(loss: Loss, rows: int) -> None:
    check_loss(loss, LOGITS[:rows], LABELS[:rows])


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (averaged, r"loss averaged: 5 nodes cost .* expected a sum over nodes"),
        (as_number, "loss as_number: got float; expected a scalar tensor"),
        (for_each_row, "expected a scalar tensor"),
        (detached, "can be differentiated"),
    ],
)
def test_what_is_no_loss_is_refused_by_name(loss: Loss, sentence: str) -> None:
    with pytest.raises(PluginError, match=sentence) as caught:
        check_loss(loss, LOGITS, LABELS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("of_logits_alone", r"expected a callable \(logits, labels\)"),
        ("absent", "has no 'absent'"),
        ("LOGITS", "got Tensor"),
    ],
)
def test_what_cannot_be_called_is_refused_by_name(name: str, sentence: str) -> None:
    with pytest.raises(PluginError, match=sentence):
        make_class_loss(f"{__name__}:{name}")
