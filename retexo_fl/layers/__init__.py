"""GNN layers, one per file, on plain PyTorch."""

from retexo_fl.layers.base import GraphLayer, LayerShape, StageInput, make_layer
from retexo_fl.layers.dropout import KeyedDropout

__all__ = ["GraphLayer", "KeyedDropout", "LayerShape", "StageInput", "make_layer"]
