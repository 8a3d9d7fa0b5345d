"""GNN layers, one per file, on plain PyTorch."""

from retexo_fl.layers.base import GraphLayer, LayerShape, StageInput
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.named import make_layer

__all__ = ["GraphLayer", "KeyedDropout", "LayerShape", "StageInput", "make_layer"]
