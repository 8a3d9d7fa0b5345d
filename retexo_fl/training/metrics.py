"""How good a model is: what its best weights are selected by, where accuracy does not suit."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch

from retexo_fl.errors import PluginError
from retexo_fl.plugins import is_plugin, load_callable


class Metric(ABC):
    """A number over all nodes of a set, computed from sums that every client can form alone.

    The server gets each client's sums; choose some that reveal no more than they must.
    """

    @abstractmethod
    def sums(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return a (k,) vector whose sum over all nodes decides the metric.

        Args:
            logits: (R, C); R may be 0.
            labels: (R,) int64 classes.
        """

    @abstractmethod
    def value(self, totals: np.ndarray) -> float:
        """Return the metric of (k,) float64 totals; more is better.

        There is at least one node.
        """


def make_metric(name: str) -> Metric | None:
    """Return the metric called ``name``, or None for ``accuracy``, which is always counted.

    Raises:
        PluginError: ``module:attribute`` names no factory of a :class:`Metric`.
    """
    if name == "accuracy":
        return None
    factory = load_callable("metric", name) if is_plugin(name) else None
    found = factory() if factory is not None else None
    if not isinstance(found, Metric):
        raise PluginError(
            f"metric {name!r}: expected accuracy, or module:attribute naming a subclass of "
            "retexo_fl.training.metrics.Metric (or a function that returns one)"
        )
    return found


def metric_sums(metric: Metric, logits: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Return a metric's (k,) float64 sums over some rows.

    Raises:
        PluginError: The metric returned something else.
    """
    found = metric.sums(logits, labels)
    if not isinstance(found, torch.Tensor) or found.ndim != 1 or not found.numel():
        raise PluginError(
            f"metric {type(metric).__name__}: sums returned "
            f"{getattr(found, 'shape', type(found).__name__)}; expected a vector of sums"
        )
    return found.detach().to(torch.float64).numpy()


def metric_value(metric: Metric, totals: np.ndarray) -> float:
    """Return a metric's value.

    Raises:
        PluginError: It is no finite number.
    """
    value = metric.value(totals)
    if not isinstance(value, int | float | np.floating) or not math.isfinite(value):
        raise PluginError(
            f"metric {type(metric).__name__}: value returned {value!r}; expected a finite number"
        )
    return float(value)
