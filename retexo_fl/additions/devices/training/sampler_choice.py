"""The sampler that a configuration names, made alike by a client and by each of its devices."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Self

import numpy as np

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.base import Sampler
from retexo_fl.additions.devices.sampling.full import FullSampler
from retexo_fl.additions.devices.sampling.gns import GnsSampler
from retexo_fl.additions.devices.sampling.neighbour import NeighbourSampler
from retexo_fl.additions.devices.sampling.shadow import ShadowSampler
from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError
from retexo_fl.layers.named import layer_class


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerChoice:
    """What is sampled, and by which draws.

    Attributes:
        kind: ``full``, ``neighbour``, ``shadow`` or ``gns``.
        fanouts: The roots' first.
        layers: K.
        seed: Of the draws.
        cache_share: Of ``gns``; likewise ``cache_epochs``.
    """

    kind: str
    fanouts: tuple[int, ...]
    layers: int
    seed: int
    cache_share: float
    cache_epochs: int

    @classmethod
    def of(cls, config: RunConfig, *, client: int) -> Self:
        """Read the choice of a configuration; every client draws by a seed of its own.

        Raises:
            ConfigurationError: The layer cannot be trained on what the sampler draws.
            PluginError: The model is no layer.
        """
        if config.sampler == "gns" and not layer_class(config.model).scales_edges:
            raise ConfigurationError(
                f"sampler: 'gns' draws neighbours unevenly and needs a layer with edge weights, "
                f"which {config.model} does not have; expected another sampler, or model gcn, "
                "sage, gat or gin"
            )
        return cls(
            kind=config.sampler,
            fanouts=tuple(int(fanout) for fanout in config.fanouts.split("/")),
            layers=config.layers,
            seed=_seed_of(config.seed, client),
            cache_share=config.cache_share,
            cache_epochs=config.cache_epochs,
        )

    def make(self, adjacency: Adjacency, train_nodes: np.ndarray) -> Sampler:
        """Return the sampler of a graph whose mini-batches are of (T,) train nodes.

        Raises:
            ConfigurationError: A parameter is out of range.
        """
        return _MAKERS[self.kind](self, adjacency, train_nodes)


def _gns(choice: SamplerChoice, adjacency: Adjacency, train_nodes: np.ndarray) -> Sampler:
    return GnsSampler(
        adjacency,
        choice.fanouts,
        seed=choice.seed,
        cache_share=choice.cache_share,
        cache_epochs=choice.cache_epochs,
        train_nodes=train_nodes,
    )


_MAKERS: Final[MappingProxyType[str, Callable[[SamplerChoice, Adjacency, np.ndarray], Sampler]]] = (
    MappingProxyType(
        {
            "full": lambda choice, adjacency, _: FullSampler(adjacency, choice.layers),
            "neighbour": lambda choice, adjacency, _: NeighbourSampler(
                adjacency, choice.fanouts, seed=choice.seed
            ),
            "shadow": lambda choice, adjacency, _: ShadowSampler(
                adjacency, choice.fanouts, choice.layers, seed=choice.seed
            ),
            "gns": _gns,
        }
    )
)


def _seed_of(seed: int, client: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{client}/mini-batches".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
