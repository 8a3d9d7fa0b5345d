"""The loss of a stage: a sum over nodes, so that clients' losses add up."""

from __future__ import annotations

from collections.abc import Callable
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


def make_loss(name: str) -> Loss:
    """Return the loss called ``name``: ``cross-entropy``, or ``module:attribute``.

    Raises:
        PluginError: There is no such loss.
    """
    if name == "cross-entropy":
        return cross_entropy
    if not is_plugin(name):
        raise PluginError(f"loss {name!r}: expected cross-entropy, or module:attribute")
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
