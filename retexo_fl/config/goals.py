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
    """What a task is, as far as a configuration alone says it.

    Attributes:
        losses: That fit, by the part of their name before a colon; the first by default.
        metrics: Likewise.
        weighs_classes: Classes, or labels, may have weights.
        split: By default.
        splits_nodes: Nodes are split before a training; else each client splits its edges.
        examples: What a loss is summed over, as sentences name one.
        output: What one of several outputs is for, as a table names it.
        few_nodes_studied: It is known what goes with few train nodes.
        outputs: Of a model; None where labels say how many there are.
        counts_right: An answer is right or wrong; not so of numbers.
        at_most_nodes: There are no more examples than nodes.
        sums_suffice: Of its neighbours a layer needs no more than their sum; not so where a loss
            is of both ends of an edge.
        predicts: What is predicted of each node, as a sentence begins; empty for its label.
    """

    losses: tuple[str, ...] = ("cross-entropy", "focal")
    metrics: tuple[str, ...]
    weighs_classes: bool = True
    split: str = "random:0.2/0.1/0.7"
    splits_nodes: bool = True
    examples: str = "node"
    output: str = "label"
    few_nodes_studied: bool = False
    outputs: int | None = None
    counts_right: bool = True
    at_most_nodes: bool = True
    sums_suffice: bool = True
    predicts: str = ""

    def loss_name(self, loss: str) -> str:
        """Return the loss, where a configuration leaves it to the task."""
        return self.losses[0] if loss == AUTO else loss

    def metric_name(self, metric: str) -> str:
        """Return the metric, where a configuration leaves it to the task."""
        return self.metrics[0] if metric == AUTO else metric

    def split_name(self, split: str) -> str:
        """Return the split, where a configuration leaves it to the task."""
        return self.split if split == AUTO else split


_RANKINGS: Final = ("roc-auc", "average-precision")
GOALS: Final[Mapping[str, Goal]] = MappingProxyType(
    {
        "classes": Goal(
            metrics=(
                *("accuracy", "balanced-accuracy", "macro-f1", *OF_ONE_CLASS),
                *(*_RANKINGS, "log-loss"),
            ),
            output="class",
            few_nodes_studied=True,
        ),
        "multi-label": Goal(
            metrics=(*_RANKINGS, "accuracy", "macro-f1", *OF_ONE_CLASS, "log-loss"),
        ),
        "regression": Goal(
            losses=("squared",),
            metrics=("rmse", "mae", "r2"),
            weighs_classes=False,
            outputs=1,
            counts_right=False,
        ),
        "links": Goal(
            metrics=(
                *(*_RANKINGS, "hits", "mrr", "node-hits", "node-ndcg", "node-mrr"),
                *("accuracy", "log-loss"),
            ),
            weighs_classes=False,
            split="random:0.85/0.05/0.1",
            splits_nodes=False,
            examples="edge",
            output="link",
            outputs=1,
            at_most_nodes=False,
            sums_suffice=False,
            predicts="the likeliest links of ",
        ),
    }
)


def goal_of(values: Mapping[str, Any]) -> Goal:
    """Return the goal of values that may lack a task, or name none, which is refused elsewhere."""
    default = GOALS["classes"]
    return GOALS.get(str(values.get("task", "")), default)


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
            f"metric: {value}: the server of a deployment does not know class names; expected the "
            "place of one, from 0, such as f1:1"
        )
    weights = values["class-weights"]
    if values["engine"] == "deployment" and ":" in weights:
        raise ConfigurationError(
            f"class-weights: {weights}: the server of a deployment does not know class names; "
            "expected a number for each class, such as 1,20"
        )
    if weights != "none" and task == "multi-label" and is_plugin(values["loss"]):
        raise ConfigurationError(
            f"class-weights: {weights} does not go with loss {values['loss']} and task {task}; "
            "expected none, or a built-in loss"
        )
    if weights != "none" and not goal.weighs_classes:
        raise ConfigurationError(
            f"class-weights: {weights} does not go with task {task}; expected none"
        )
