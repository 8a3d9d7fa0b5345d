from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from retexo_fl.api.values import check_importable, values_of
from retexo_fl.errors import ConfigurationError, PluginError
from retexo_fl.layers import LayerShape
from retexo_fl.layers.named import layer_class, make_layer
from retexo_fl.layers.sage import SageLayer
from retexo_fl.training.losses import make_class_loss
from retexo_fl.training.metrics import Metric, make_metric

with warnings.catch_warnings():
    # PyTorch deprecates what PyG does when it is imported.
    warnings.simplefilter("ignore")
    from torch_geometric.nn import APPNP, GATConv, GATv2Conv


def test_values_are_those_of_a_configuration() -> None:
    given: dict[str, Any] = {
        "data_dir": Path("data") / "sets",
        "data-dir": None,
        "hidden": np.int64(8),
        "learning_rate": np.float32(0.5),
        "warm_start": np.bool_(True),
        "fanouts": [15, 10],
        "devices": ("cuda:0", "cpu:2"),
        "class_weights": [1, 2.5],
        "model": SageLayer,
        "dropout": 0,
    }
    found = values_of(given)
    assert found == {
        "data-dir": "data/sets",
        "hidden": 8,
        "learning-rate": 0.5,
        "warm-start": True,
        "fanouts": "15/10",
        "devices": "cuda:0,cpu:2",
        "class-weights": "1,2.5",
        "model": "sage",
        "dropout": 0,
    }
    assert all(type(value) in {bool, int, float, str} for value in found.values())


def test_class_weights_may_have_names() -> None:
    found = values_of({"class_weights": {"spam": np.float32(6), "a: b": 2}})
    assert found == {"class-weights": "spam:6.0,a: b:2"}


def test_what_this_process_alone_knows_is_refused_to_others() -> None:
    check_importable({"model": "gcn", "loss": "mine:loss", "rounds": 3}, where="a sweep")
    with pytest.raises(ConfigurationError, match="loss: own is known to this process alone, and a"):
        check_importable({"model": "gcn", "loss": "__main__:own"}, where="a sweep")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"hiden": 8}, "hiden: unknown configuration key; did you mean 'hidden'"),
        ({"rounds": [1, 2]}, "rounds: got list"),
        ({"hidden": np.zeros(3)}, "hidden: got ndarray"),
        ({"model": lambda: None}, "model: .*<lambda> cannot be found by its name"),
        ({"loss": object()}, "loss: got an object of class object, which has no name to import it"),
        ({"metric": partial(print)}, "metric: got an object of class partial, which has no name"),
        ({"model": torch.nn.Linear(2, 2)}, "model: got an object of class Linear, and a run makes"),
        ({"model": GATConv(2, 2)}, "expected a layer's name or class: pyg:GATConv"),
        ({"model": SageLayer(LayerShape(inputs=1, outputs=1, hidden=1))}, "or class: sage"),
    ],
)
def test_other_values_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        values_of(keys)


class OwnLayer(SageLayer):
    """Of no name but its module's."""


class OwnConv(GATv2Conv):  # type: ignore[misc]
    """Likewise."""


class Hits(Metric):
    """Counts nodes."""

    def sums(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        del logits
        return torch.tensor([float(len(labels))])

    def value(self, totals: np.ndarray) -> float | None:
        return float(totals[0])


def agreement(y_true: np.ndarray, y_pred: np.ndarray) -> float:
    """Return what scikit-learn's metrics do: a number of all nodes' labels."""
    return float((y_true == y_pred).mean())


HERE = __name__


def test_classes_of_layers_have_the_names_that_layers_have() -> None:
    for found, name in (
        (GATv2Conv, "pyg:GATv2Conv"),
        (SageLayer, "sage"),
        (OwnLayer, f"{HERE}:OwnLayer"),
    ):
        assert values_of({"model": found}) == {"model": name}
        assert layer_class(name).__name__ == found.__name__
    for wrong, told in (
        (APPNP, "pyg:APPNP.: reads beyond a node's neighbours"),
        (OwnConv, f"{HERE}:OwnConv.: not a layer; expected one of gcn"),
        (torch.nn.Linear, "Linear.: not a layer; expected one of gcn"),
    ):
        with pytest.raises(PluginError, match=told):
            layer_class(str(values_of({"model": wrong})["model"]))
    with pytest.raises(PluginError, match="GATv2Conv.: has a name of its own; expected pyg:GATv2"):
        layer_class("torch_geometric.nn:GATv2Conv")
    assert make_layer("pyg:GATv2Conv", LayerShape(inputs=2, outputs=2, hidden=2))


def test_functions_are_told_what_a_metric_and_a_loss_must_be() -> None:
    name = str(values_of({"metric": Hits})["metric"])
    assert isinstance(make_metric(name), Hits)
    name = str(values_of({"metric": agreement})["metric"])
    with pytest.raises(PluginError, match="a metric is computed from sums that each client forms"):
        make_metric(name)
    with pytest.raises(PluginError, match="cannot import 'nowhere'.*") as error:
        make_metric("nowhere:metric")
    assert "sums" not in str(error.value)
    name = str(values_of({"loss": torch.nn.CrossEntropyLoss})["loss"])
    with pytest.raises(PluginError, match="is a class of modules; expected a function of .logits"):
        make_class_loss(name)
