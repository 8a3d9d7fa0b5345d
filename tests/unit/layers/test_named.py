"""Layers by their names: what ``config/`` declares of them is so."""

from __future__ import annotations

from retexo_fl.config.value_forms import MODELS, WITH_HEADS
from retexo_fl.layers.named import layer_class
from retexo_fl.layers.pyg import _KINDS


def test_each_name_is_a_layer_and_heads_are_declared() -> None:
    names = (*MODELS, *(f"pyg:{name}" for name in _KINDS))
    assert {name for name in names if layer_class(name).uses_heads} == WITH_HEADS
