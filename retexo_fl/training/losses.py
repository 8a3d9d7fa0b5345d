"""The loss of a stage: a sum over nodes, so that clients' losses add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F

from retexo_fl.errors import PluginError
from retexo_fl.plugins import is_plugin, load_callable

#: From (R, C) logits and (R,) int64 classes to the sum of all rows' losses, a scalar tensor. A mean
#: would weigh a node by the size of its client.
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


def make_loss(name: str, class_weights: tuple[float, ...] = ()) -> Loss:
    """Return the loss called ``name``: ``cross-entropy``, ``focal:GAMMA``, ``module:attribute``.

    Args:
        name: Of the loss.
        class_weights: (C,), or empty for none.

    Raises:
        PluginError: There is no such loss.
    """
    loss = _named(name)
    return ClassWeighted(loss, class_weights) if class_weights else loss


def _named(name: str) -> Loss:
    if name == "cross-entropy":
        return cross_entropy
    if name.startswith("focal:") and not is_plugin(name):
        return Focal(float(name.partition(":")[2]))
    if not is_plugin(name):
        raise PluginError(f"loss {name!r}: expected a built-in name, or module:attribute")
    found: Loss = load_callable("loss", name, "logits", "labels")
    return found


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
