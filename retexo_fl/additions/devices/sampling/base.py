"""What a sampler is, and what every sampler asks of its input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.sample import Sample
from retexo_fl.errors import ConfigurationError, DatasetError


@runtime_checkable
class Sampler(Protocol):
    """Draws what the loss of some roots is computed from.

    What a root gets is a function of the sampler's parameters, the epoch, the batch and the root:
    not of the other roots of the call, nor of the process, the thread or the calls before. A
    mini-batch that is cut into shares in any way has the same gradient.

    A sampler may be called from several threads at once.
    """

    @property
    def adjacency(self) -> Adjacency:
        """The graph."""
        ...

    @property
    def num_layers(self) -> int:
        """Blocks of each sample."""
        ...

    @property
    def spec(self) -> str:
        """Kind and parameters as a canonical line; with the graph, they decide every sample."""
        ...

    def sample(self, roots: np.ndarray, *, epoch: int, batch: int) -> Sample:
        """Draw for (B,) distinct roots, possibly none.

        Args:
            roots: Node ids.
            epoch: At least 0; other epochs draw anew.
            batch: Number of the mini-batch in the epoch, at least 0; others draw anew. All shares
                of one mini-batch are drawn with the same.

        Raises:
            DatasetError: A root is no node of the graph, or given twice.
        """
        ...


@runtime_checkable
class CountingSampler(Sampler, Protocol):
    """A sampler that can compute what roots cost without making their samples."""

    def count_aggregations(self, roots: np.ndarray, *, epoch: int, batch: int) -> np.ndarray:
        """Return (B,) int64: ``sample([root]).num_aggregations`` of each root."""
        ...


def checked_roots(roots: np.ndarray, num_nodes: int) -> np.ndarray:
    """Return roots as (B,) int64 that no caller changes later.

    Raises:
        DatasetError: A root is no node, or given twice.
    """
    found = np.array(roots, dtype=np.int64)
    if found.ndim != 1:
        raise DatasetError(f"roots: got an array of {found.shape}; expected one of (B,)")
    if not len(found):
        return found
    ordered = np.sort(found)
    for end in (ordered[0], ordered[-1]):
        if not 0 <= end < num_nodes:
            raise DatasetError(f"roots: {end} is no node; expected 0 to {num_nodes - 1}")
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise DatasetError(f"roots: {twice[0]} is given twice; expected each root once")
    return found


def checked_fanouts(fanouts: Sequence[int]) -> tuple[int, ...]:
    """Return fanouts, roots' first.

    Raises:
        ConfigurationError: There are none, or one is not positive.
    """
    found = tuple(int(fanout) for fanout in fanouts)
    if not found or min(found) < 1:
        raise ConfigurationError(
            f"fanouts: got '{fanouts_text(found)}'; expected numbers from 1, such as 15/10/5"
        )
    return found


def fanouts_text(fanouts: Sequence[int]) -> str:
    """Write fanouts as a configuration has them: ``15/10/5``."""
    return "/".join(str(fanout) for fanout in fanouts)


def checked_layers(layers: int) -> int:
    """Return a number of layers.

    Raises:
        ConfigurationError: It is not positive.
    """
    if layers < 1:
        raise ConfigurationError(f"layers: got {layers}; expected 1 or more")
    return layers


def checked_seed(seed: int) -> int:
    """Return a seed.

    Raises:
        ConfigurationError: It is negative or does not fit 63 bits.
    """
    if not 0 <= seed < 2**63:
        raise ConfigurationError(f"seed: got {seed}; expected 0 to 2^63 - 1")
    return seed
