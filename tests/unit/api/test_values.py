from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.api.values import check_importable, values_of
from retexo_fl.errors import ConfigurationError
from retexo_fl.layers.sage import SageLayer


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
        "model": "retexo_fl.layers.sage:SageLayer",
        "dropout": 0,
    }
    assert all(type(value) in {bool, int, float, str} for value in found.values())


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
        ({"loss": object()}, "loss: got object"),
    ],
)
def test_other_values_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        values_of(keys)
