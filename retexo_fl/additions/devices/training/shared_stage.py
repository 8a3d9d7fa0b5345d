"""A stage's fixed input as named arrays, for memory that several processes share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from retexo_fl.layers.aggregate import AggregatedInput
from retexo_fl.layers.base import GraphLayer, Rows, StageInput, select_rows
from retexo_fl.training.stage_pass import NodeSets
from retexo_fl.transfers import borrowed

#: Arrays of a :class:`StageInput` that are no rows.
_EDGES = ("indptr", "indices", "neighbours", "degrees", "own_hashes", "slot_hashes")
#: Those that may be absent.
_OF_EDGES = ("edge_scales", "edge_weights", "edge_attributes", "slot_factors", "own_kinds")
_USES = ("train", "validation", "test")
_OF_NODES = (*_USES, "labels", "by_type")


def shared_arrays(inputs: StageInput, prepared: object, nodes: NodeSets) -> dict[str, np.ndarray]:
    """Return by name all that passes over labelled nodes read.

    Args:
        inputs: Of the stage.
        prepared: What its layer made of them. Where messages are passed once, that is enough, and
            only of labelled nodes; other layers prepare again where they compute, as do those in
            which nodes of several types have labels.
        nodes: By use.
    """
    if not isinstance(prepared, AggregatedInput) or nodes.by_type is not None:
        arrays = {name: np.asarray(getattr(inputs, name)) for name in _EDGES}
        there = {name: getattr(inputs, name) for name in _OF_EDGES}
        arrays |= {name: array for name, array in there.items() if array is not None}
        arrays |= _row_arrays("own", inputs.own) | _row_arrays("received", inputs.received)
        return arrays | _node_arrays(nodes)
    labelled = np.unique(np.concatenate([getattr(nodes, use) for use in _USES]))
    places = {use: np.searchsorted(labelled, getattr(nodes, use)) for use in _USES}
    kept = NodeSets(labels=np.asarray(nodes.labels)[labelled], **places)
    arrays = {"hashes": np.asarray(prepared.hashes)[labelled]}
    rows = prepared.rows
    if isinstance(rows, torch.Tensor):
        selected = select_rows(rows, labelled, prepared.dtype)
        assert isinstance(selected, torch.Tensor)
        arrays |= _row_arrays("aggregated", selected)
    else:
        arrays |= _row_arrays("aggregated", csr_array(rows[labelled]))
    return arrays | _node_arrays(kept)


def prepared_of(layer: GraphLayer, arrays: Mapping[str, np.ndarray], dtype: torch.dtype) -> object:
    """Return what a layer has prepared, from :func:`shared_arrays`."""
    if "hashes" in arrays:
        rows = _rows_of("aggregated", arrays)
        return AggregatedInput(rows=rows, hashes=arrays["hashes"], dtype=dtype)
    others: dict[str, Any] = {
        name: arrays[name] for name in (*_EDGES, *_OF_EDGES) if name in arrays
    }
    inputs = StageInput(
        own=_rows_of("own", arrays), received=_rows_of("received", arrays), **others
    )
    return layer.prepare(inputs)


def nodes_of(arrays: Mapping[str, np.ndarray]) -> NodeSets:
    """Return the labelled nodes, from :func:`shared_arrays`."""
    there = {name: arrays[name] for name in _OF_NODES if name in arrays}
    return NodeSets(**there)


def _node_arrays(nodes: NodeSets) -> dict[str, np.ndarray]:
    named = {name: getattr(nodes, name) for name in _OF_NODES}
    return {name: np.asarray(array) for name, array in named.items() if array is not None}


def _row_arrays(name: str, rows: Rows) -> dict[str, np.ndarray]:
    if isinstance(rows, torch.Tensor):
        return {name: rows.numpy()}
    parts = {"data": rows.data, "indices": rows.indices, "indptr": rows.indptr}
    shape = {f"{name}.shape": np.array(rows.shape, np.int64)}
    return shape | {f"{name}.{part}": values for part, values in parts.items()}


def _rows_of(name: str, arrays: Mapping[str, np.ndarray]) -> Rows:
    if name in arrays:
        return borrowed(arrays[name])
    parts = tuple(arrays[f"{name}.{part}"] for part in ("data", "indices", "indptr"))
    return csr_array(parts, shape=tuple(arrays[f"{name}.shape"]))
