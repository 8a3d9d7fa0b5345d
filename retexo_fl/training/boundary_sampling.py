"""Which boundary nodes take part in a round of ``bns``.

Source: Wan et al. (BNS-GCN), MLSys 2022, section 3.2 and algorithm 1. There the sample of b nodes
has ``floor(p b)``, which is none where b is small; here it has at least one, so that the sampled
sums stay unbiased for every b.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.graph.plan.boundary import BoundaryPlan
from retexo_fl.layers.base import StageInput
from retexo_fl.layers.dropout import splitmix

#: A vector's number travels as one float64: 8 bytes, as in BNS-GCN, exact up to 2^53.
NUMBER_DTYPE: Final = np.float64


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundarySampling:
    """How ``bns`` samples.

    Attributes:
        rate: p in (0, 1].
        scaled: Divide sampled vectors by their share of all: unbiased for sums and means, but a
            shift of attention (GAT) and of maxima (sage-pool).
        seed: Of the training.
    """

    rate: float
    scaled: bool
    seed: int

    def size(self, vectors: int) -> int:
        """Return how many of a pair's vectors are sampled."""
        return min(vectors, max(1, math.floor(self.rate * vectors)))

    def factor(self, vectors: int) -> float:
        """Return what a sampled vector is multiplied by."""
        return vectors / self.size(vectors) if self.scaled and vectors else 1.0

    def draw(
        self, plan: BoundaryPlan, slot_hashes: np.ndarray, round_number: int
    ) -> dict[int, np.ndarray]:
        """Draw what this client asks of each peer: ascending numbers of its vectors.

        Every subset of the right size is equally likely; a node's key, not the process, decides.

        Args:
            plan: The client's.
            slot_hashes: (B,) uint64 of its slots.
            round_number: From 1.
        """
        text = f"{self.seed}/{round_number}/{plan.client}/boundary sample"
        stream = hashlib.blake2b(text.encode(), digest_size=8).digest()
        keys = splitmix(slot_hashes ^ np.frombuffer(stream, dtype="<u8"))
        drawn = {}
        for peer in plan.peers:
            order = np.argsort(keys[peer.receive.slots], kind="stable")
            drawn[peer.peer] = np.sort(order[: self.size(len(order))])
        return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryDraw:
    """What crosses in one round, as numbers of the vectors that would cross without sampling.

    Attributes:
        mine: By peer, the (k,) vectors that this client asked for.
        theirs: By peer, the (k,) vectors that the peer asked for.
    """

    mine: Mapping[int, np.ndarray]
    theirs: Mapping[int, np.ndarray]


def read_numbers(block: np.ndarray, *, vectors: int, peer: int) -> np.ndarray:
    """Read the (k,) int64 numbers of a peer's sample from the (k, 1) block that it sent.

    Raises:
        RemoteProtocolError: They are no ascending numbers of the ``vectors`` that go to it.
    """
    numbers = block[:, 0]
    ascending = bool((np.diff(numbers) > 0).all())
    whole = bool((numbers == np.floor(numbers)).all())
    some = len(numbers) > 0 and numbers[0] >= 0 and numbers[-1] < vectors
    if not (ascending and whole and (some or not vectors)):
        raise RemoteProtocolError(
            f"client {peer}: requested vectors that do not exist, or not in order; expected "
            f"ascending numbers below {vectors}"
        )
    return numbers.astype(np.int64)


def with_slots(inputs: StageInput, plan: BoundaryPlan, draw: BoundaryDraw) -> StageInput:
    """Leave out the plan's edges from slots that were not drawn."""
    absent = np.ones(plan.num_slots, dtype=bool)
    for peer in plan.peers:
        absent[peer.receive.slots[draw.mine[peer.peer]]] = False
    edges = plan.edges.without(absent.nonzero()[0])
    return replace(
        inputs,
        indptr=edges.indptr,
        indices=np.asarray(edges.indices, np.int64),
        neighbours=edges.neighbour_counts,
        edge_weights=edges.values.weights,
        edge_attributes=edges.values.attributes,
    )
