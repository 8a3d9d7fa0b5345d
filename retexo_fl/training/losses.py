"""The loss of a stage: a sum over nodes, so that clients' losses add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from retexo_fl.errors import PluginError
from retexo_fl.plugins import is_plugin, load_callable

#: From (R, C) logits and (R,) int64 classes, or what else a task has (:mod:`.judging`), to the sum
#: of all rows' losses, a scalar tensor. A mean would weigh a node by the size of its client.
Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the summed negative log likelihood of softmax, natural logarithm."""
    return F.cross_entropy(logits, labels, reduction="sum")


@dataclass(frozen=True, slots=True)
class Focal:
    """Cross entropy in which nodes that are classified well count less: ``(1 - p)^gamma -log p``.

    Attributes:
        gamma: From 0, which is cross entropy.

    Source: Lin, Goyal, Girshick, He and Dollar, ICCV 2017, equation 4.
    """

    gamma: float

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum over (R, C) logits and (R,) classes."""
        likelihood = -F.cross_entropy(logits, labels, reduction="none")
        # At p = 1 a power below 1 has no slope.
        missed = -torch.expm1(likelihood.clamp(max=-torch.finfo(logits.dtype).tiny))
        return -(missed**self.gamma * likelihood).sum()


@dataclass(frozen=True, slots=True)
class ClassWeighted:
    """A loss in which each class counts as much as its weight says.

    Attributes:
        loss: Of nodes of one class, as of any: a sum over them.
        weights: (C,).
    """

    loss: Loss
    weights: tuple[float, ...]

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum over (R, C) logits and (R,) classes."""
        weights = torch.tensor(self.weights, dtype=logits.dtype, device=logits.device)
        if self.loss is cross_entropy:
            return F.cross_entropy(logits, labels, weight=weights, reduction="sum")
        total = logits.new_zeros(())
        for c in torch.bincount(labels).nonzero().flatten().tolist():
            rows = labels == c
            total = total + weights[c] * self.loss(logits[rows], labels[rows])
        return total


@dataclass(frozen=True, slots=True)
class OfLabels:
    """Binary cross entropy of each known label, over L: the mean over labels where all are known.

    Attributes:
        gamma: As of :class:`Focal`; 0 for cross entropy.
        weights: (L,) by which positives of each label count; empty for none.
    """

    gamma: float
    weights: tuple[float, ...] = ()

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum over (R, L) logits and (R, L) labels, -1 for unknown."""
        known, positive = labels >= 0, labels == 1
        likelihood = F.logsigmoid(torch.where(positive, logits, -logits))
        losses = -likelihood
        if self.gamma:
            missed = -torch.expm1(likelihood.clamp(max=-torch.finfo(logits.dtype).tiny))
            losses = missed**self.gamma * losses
        if self.weights:
            weights = torch.tensor(self.weights, dtype=logits.dtype, device=logits.device)
            losses = torch.where(positive, weights * losses, losses)
        return torch.where(known, losses, losses.new_zeros(())).sum() / labels.shape[1]


def squared(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the sum of squared errors of (R, 1) outputs and (R,) numbers."""
    return ((outputs[:, 0] - labels) ** 2).sum()


@dataclass(frozen=True, slots=True)
class Standardised:
    """A loss of numbers in units in which train nodes' labels have a mean of 0, a deviation of 1.

    Attributes:
        loss: Of (R, 1) outputs and (R,) labels in these units.
        mean: Of the labels.
        scale: Their standard deviation.
    """

    loss: Loss
    mean: float
    scale: float

    def __call__(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum over (R, 1) outputs and (R,) labels in units of their own."""
        return self.loss(outputs, ((labels - self.mean) / self.scale).to(outputs.dtype))


def make_class_loss(name: str, weights: tuple[float, ...] = ()) -> Loss:
    """Return the loss of classes called ``name``: a built-in one, or ``module:attribute``.

    Args:
        name: Of the loss.
        weights: (C,), or nothing.

    Raises:
        PluginError: There is no such loss.
    """
    gamma = _focal_gamma(name)
    loss: Loss
    if gamma is not None:
        loss = Focal(gamma)
    else:
        loss = cross_entropy if name == "cross-entropy" else _plugin(name)
    return ClassWeighted(loss, weights) if weights else loss


def make_label_loss(name: str, weights: tuple[float, ...] = ()) -> Loss:
    """Return the loss of several labels, as :func:`make_class_loss`.

    Args:
        name: Of the loss.
        weights: (L,) of positives, or nothing; one of the user's own has none.

    Raises:
        PluginError: There is no such loss.
    """
    if is_plugin(name):
        return _plugin(name)
    return OfLabels(_focal_gamma(name) or 0.0, weights)


def make_number_loss(name: str, units: tuple[float, ...] = ()) -> Loss:
    """Return the loss of numbers, as :func:`make_class_loss`.

    Args:
        name: Of the loss.
        units: Mean and scale of the train nodes' labels; nothing before they are known.

    Raises:
        PluginError: There is no such loss.
    """
    mean, scale = units or (0.0, 1.0)
    return Standardised(squared if name == "squared" else _plugin(name), mean, scale)


def _focal_gamma(name: str) -> float | None:
    """Return the power of the focal loss; None of another one."""
    kind, _, gamma = name.partition(":")
    return float(gamma) if kind == "focal" and not is_plugin(name) else None


def _plugin(name: str) -> Loss:
    if not is_plugin(name):
        raise PluginError(f"loss {name!r}: expected a built-in name, or module:attribute")
    found: Any = load_callable("loss", name, "logits", "labels")
    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        raise PluginError(
            f"loss {name!r}: is a class of modules; expected a function of (logits, labels) that "
            "returns the sum over nodes"
        )
    made: Loss = found
    return made


def check_loss(loss: Loss, logits: torch.Tensor, labels: torch.Tensor) -> None:
    """Check on real rows that a loss is a scalar, can be differentiated, and is a sum over nodes.

    Args:
        loss: An extension.
        logits: (R, C).
        labels: (R,).

    Raises:
        PluginError: It is not.
    """
    leaf = logits.detach().requires_grad_()
    whole = _tried(loss, leaf, labels)
    if len(labels) < 2:
        return
    parts = _tried(loss, leaf[:1], labels[:1]) + _tried(loss, leaf[1:], labels[1:])
    if not torch.allclose(whole, parts, rtol=1e-3, atol=1e-6):
        raise PluginError(
            f"loss {_name(loss)}: {len(labels)} nodes cost {whole.item():g} together and "
            f"{parts.item():g} in two parts; expected a sum over nodes (reduction='sum')"
        )


def _tried(loss: Loss, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    value = loss(logits, labels)
    if not isinstance(value, torch.Tensor) or value.shape != () or not value.requires_grad:
        raise PluginError(
            f"loss {_name(loss)}: got {type(value).__name__}; expected a scalar tensor that can be "
            "differentiated with respect to the logits"
        )
    return value


def _name(loss: Loss) -> str:
    return getattr(loss, "__qualname__", type(loss).__name__)
