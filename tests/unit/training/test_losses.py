from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from retexo_fl.errors import PluginError
from retexo_fl.training.losses import Loss, check_loss, cross_entropy, make_loss


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
    assert make_loss("cross-entropy") is cross_entropy
    assert make_loss(f"{__name__}:smoothed") is smoothed


LOGITS, LABELS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 3


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
        make_loss(f"{__name__}:{name}")
