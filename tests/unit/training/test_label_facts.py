"""Weights of classes, focal loss, and what the user is warned of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from retexo_fl.training.label_facts import (
    absent_classes,
    balanced_weights,
    classes_by_use,
    only_prediction,
)
from retexo_fl.training.losses import check_loss, make_class_loss

LABELS = torch.tensor([0, 0, 0, 0, 0, 2, 2, 0, 1, 2])


def logits(classes: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(len(LABELS), classes, generator=generator, dtype=torch.float64)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    labels = LABELS.numpy()
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    found = balanced_weights(np.bincount(labels))
    np.testing.assert_allclose(found, expected)
    assert np.mean(np.array(found)[labels]) == pytest.approx(1)


def test_a_class_without_train_nodes_takes_no_weight_from_the_others() -> None:
    assert balanced_weights(np.array([4.0, 0.0, 1.0])) == pytest.approx((5 / 8, 1.0, 5 / 2))


def test_weighted_cross_entropy_counts_nodes_as_their_class_weighs() -> None:
    loss = make_class_loss("cross-entropy", weights=(1.0, 0.0, 2.5))
    each = F.cross_entropy(logits(), LABELS, reduction="none")
    expected = each[LABELS == 0].sum() + 2.5 * each[LABELS == 2].sum()
    assert loss(logits(), LABELS).item() == pytest.approx(expected.item())


def smoothed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1)


@pytest.mark.parametrize("name", ["focal:2", f"{__name__}:smoothed"])
def test_any_loss_can_be_weighed(name: str) -> None:
    plain, weighted = make_class_loss(name), make_class_loss(name, weights=(1.0, 0.0, 2.5))
    parts = [plain(logits()[c == LABELS], LABELS[c == LABELS]).item() for c in (0, 2)]
    assert weighted(logits(), LABELS).item() == pytest.approx(parts[0] + 2.5 * parts[1])
    assert weighted(logits(), LABELS).item() != pytest.approx(plain(logits(), LABELS).item())


@pytest.mark.parametrize("weights", [(), (1.0, 2.0, 3.0)])
@pytest.mark.parametrize("name", ["cross-entropy", "focal:2", "focal:0.5"])
def test_losses_are_sums_over_nodes_with_the_right_gradient(
    name: str, weights: tuple[float, ...]
) -> None:
    loss = make_class_loss(name, weights=weights)
    check_loss(loss, logits(), LABELS)
    leaf = logits().requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: loss(rows, LABELS), (leaf,))


def test_focal_loss_is_that_of_its_paper() -> None:
    share = torch.softmax(logits(), dim=1)[torch.arange(len(LABELS)), LABELS]
    expected = -((1 - share) ** 1.5 * share.log()).sum()
    assert make_class_loss("focal:1.5")(logits(), LABELS).item() == pytest.approx(expected.item())
    plain = F.cross_entropy(logits(), LABELS, reduction="sum")
    assert make_class_loss("focal:0")(logits(), LABELS).item() == pytest.approx(plain.item())


@pytest.mark.parametrize("gamma", ["0.5", "2"])
def test_focal_loss_of_a_node_that_is_certain_is_flat(gamma: str) -> None:
    leaf = torch.tensor([[200.0, 0.0], [0.0, 200.0]], requires_grad=True)
    value = make_class_loss(f"focal:{gamma}")(leaf, torch.tensor([0, 0]))
    (gradient,) = torch.autograd.grad(value, leaf)
    assert gradient.isfinite().all()
    assert gradient[0].abs().max() < 1e-6
    assert gradient[1].tolist() == pytest.approx([-1, 1])


def test_absent_classes_are_named_by_use() -> None:
    def client(train: list[int], validation: list[int], test: list[int]) -> tuple[int, ...]:
        uses = {"train": train, "validation": validation, "test": test}
        return classes_by_use({use: np.array(c, np.int64) for use, c in uses.items()}, 4)

    clients = [client([0, 0, 1], [], [3]), client([2], [], [0, 1, 2])]
    assert clients[0] == (1, 1, 0, 4)
    assert absent_classes(clients) == ("no train node is of class 3",)
    assert absent_classes(clients[:1]) == (
        "no train node is of classes 2, 3",
        "no test node is of classes 0, 1, 2",
    )
    assert absent_classes([client([0, 1, 2, 3], [3], [0, 1, 2, 3])]) == (
        "no validation node is of classes 0, 1, 2",
    )


def test_a_model_that_predicts_one_class_is_named() -> None:
    assert only_prediction(np.array([[9, 0], [1, 0]])) == (
        "the model predicts class 0 for every test node",
    )
    assert only_prediction(np.array([[9, 0], [0, 1]])) == ()
    assert only_prediction(np.array([[9, 0], [0, 0]])) == ()
