"""Layers by their names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from retexo_fl.errors import PluginError
from retexo_fl.layers.base import GraphLayer, LayerShape
from retexo_fl.layers.directed import DirGatLayer, DirGcnLayer, DirGinLayer, DirSageLayer
from retexo_fl.layers.gat import GatLayer
from retexo_fl.layers.gcn import GcnLayer
from retexo_fl.layers.gin import GinLayer
from retexo_fl.layers.gine import GineLayer
from retexo_fl.layers.pyg import is_pyg, pyg_layer
from retexo_fl.layers.rel_gat import RelGatLayer
from retexo_fl.layers.relational import RelGcnLayer, RelSageLayer
from retexo_fl.layers.sage import SageLayer
from retexo_fl.layers.sage_pool import SagePoolLayer
from retexo_fl.plugins import PYG, is_plugin, load_plugin

#: Where PyG defines them.
_CONVOLUTIONS: Final = "torch_geometric.nn.conv."

_BUILT_IN: Final[Mapping[str, type[GraphLayer]]] = MappingProxyType(
    {
        "gcn": GcnLayer,
        "sage": SageLayer,
        "gat": GatLayer,
        "gin": GinLayer,
        "sage-pool": SagePoolLayer,
        "gine": GineLayer,
        "dir-gcn": DirGcnLayer,
        "dir-sage": DirSageLayer,
        "dir-gat": DirGatLayer,
        "dir-gin": DirGinLayer,
        "rel-sage": RelSageLayer,
        "rel-gcn": RelGcnLayer,
        "rel-gat": RelGatLayer,
    }
)


def make_layer(name: str, shape: LayerShape) -> GraphLayer:
    """Build the layer called ``name``: a built-in one, one of PyG's, or ``module:attribute``.

    Raises:
        PluginError: The attribute is not a :class:`GraphLayer` class, or PyG's convolution is none
            that can be trained layer by layer.
    """
    return layer_class(name)(shape)


def layer_class(name: str) -> type[GraphLayer]:
    """Return the class of a layer name; see :func:`make_layer`."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    if is_pyg(name):
        return pyg_layer(name)
    found = load_plugin("layer", name) if is_plugin(name) else None
    if isinstance(found, type) and (known := name_of(found)) and is_pyg(known):
        raise PluginError(f"model {name!r}: has a name of its own; expected {known}")
    if not (isinstance(found, type) and issubclass(found, GraphLayer)):
        raise PluginError(
            f"model {name!r}: not a layer; expected one of {', '.join(_BUILT_IN)}, pyg:NAME of "
            "PyG, or module:attribute naming a subclass of retexo_fl.layers.GraphLayer"
        )
    return found


def name_of(found: type) -> str | None:
    """Return the name that a class has as a layer; None where it has none but its module's.

    Args:
        found: One of ours, or a convolution of PyG, be it one that can be trained or not.
    """
    if found.__module__.startswith(_CONVOLUTIONS):
        return f"{PYG}{found.__name__}"
    return next((name for name, layer in _BUILT_IN.items() if layer is found), None)
