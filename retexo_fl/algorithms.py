"""The training algorithms by name, and what sets them apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What the parts of a training ask about its algorithm.

    Attributes:
        end_to_end: All layers are one stage, trained together and without heads in between.
        exchanges_in_rounds: Clients pass embeddings and gradients in every round, so that all take
            part in every round, and an engine must run them side by side.
        drops_edges: Edges between clients are ignored.
        takes_samplers: Rounds may be of mini-batches, since no client waits for another in one.
        trains: Layers have weights. Without any, rows of classes cross once for each layer.
    """

    end_to_end: bool
    exchanges_in_rounds: bool = False
    drops_edges: bool = False
    takes_samplers: bool = False
    trains: bool = True


ALGORITHMS: Final[Mapping[str, Algorithm]] = MappingProxyType(
    {
        "lazy": Algorithm(end_to_end=False),
        "standard": Algorithm(end_to_end=True, exchanges_in_rounds=True),
        "bns": Algorithm(end_to_end=True, exchanges_in_rounds=True),
        "drop": Algorithm(end_to_end=True, drops_edges=True, takes_samplers=True),
        "central": Algorithm(end_to_end=True, takes_samplers=True),
        "propagation": Algorithm(end_to_end=False, trains=False),
    }
)
