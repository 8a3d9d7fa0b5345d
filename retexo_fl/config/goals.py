"""What a model may be for, and which losses and metrics fit it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from retexo_fl.config.value_forms import METRIC, OF_ONE_CLASS
from retexo_fl.errors import ConfigurationError
from retexo_fl.plugins import is_plugin

#: Lets the task choose.
AUTO: Final = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What fits a task; losses and metrics by what stands before a colon, the first by default."""

    losses: tuple[str, ...]
    metrics: tuple[str, ...]
    weighs_classes: bool = True


_RANKINGS: Final = ("roc-auc", "average-precision")
GOALS: Final[Mapping[str, Goal]] = MappingProxyType(
    {
        "classes": Goal(
            losses=("cross-entropy", "focal"),
            metrics=(
                *("accuracy", "balanced-accuracy", "macro-f1", *OF_ONE_CLASS),
                *(*_RANKINGS, "log-loss"),
            ),
        ),
        "multi-label": Goal(
            losses=("cross-entropy", "focal"),
            metrics=(*_RANKINGS, "accuracy", "macro-f1", *OF_ONE_CLASS, "log-loss"),
        ),
        "regression": Goal(
            losses=("squared",), metrics=("rmse", "mae", "r2"), weighs_classes=False
        ),
        "links": Goal(
            losses=("cross-entropy", "focal"),
            metrics=(*_RANKINGS, "hits", "mrr", "accuracy", "log-loss"),
            weighs_classes=False,
        ),
    }
)


def loss_name(task: str, loss: str) -> str:
    """Return the loss of a task, where a configuration leaves it to the task."""
    return GOALS[task].losses[0] if loss == AUTO else loss


def metric_name(task: str, metric: str) -> str:
    """Return the metric of a task, where a configuration leaves it to the task."""
    return GOALS[task].metrics[0] if metric == AUTO else metric


def split_name(task: str, split: str) -> str:
    """Return the split of a task, where a configuration leaves it to the task."""
    if split != AUTO:
        return split
    return "random:0.85/0.05/0.1" if task == "links" else "random:0.2/0.1/0.7"


def check_goal(values: Mapping[str, Any]) -> None:
    """Check that loss, metric and weights fit the task.

    Raises:
        ConfigurationError: One does not.
    """
    task = values["task"]
    goal = GOALS[task]
    for key, fitting in (("loss", goal.losses), ("metric", goal.metrics)):
        value = values[key]
        name, _, target = value.partition(":")
        is_extension = is_plugin(value) and name not in METRIC.names
        if value != AUTO and not is_extension and name not in fitting:
            raise ConfigurationError(
                f"{key}: {value} does not go with task {task}; expected {AUTO}, "
                f"{', '.join(fitting)}, or module:attribute"
            )
    if values["engine"] == "deployment" and name in OF_ONE_CLASS and not target.isdecimal():
        raise ConfigurationError(
            f"metric: {value}: the server of a deployment knows no names of classes; expected the "
            "place of one, from 0, such as f1:1"
        )
    weights = values["class-weights"]
    if weights != "none" and task == "multi-label" and is_plugin(values["loss"]):
        raise ConfigurationError(
            f"class-weights: {weights} does not go with loss {values['loss']} and task {task}; "
            "expected none, or a built-in loss"
        )
    if weights != "none" and not goal.weighs_classes:
        raise ConfigurationError(
            f"class-weights: {weights} does not go with task {task}; expected none"
        )
