"""Carries rows that are trained to the peers' slots, and their gradients back.

Written as parts of a client's :data:`~retexo_fl.training.rounds.Steps`. Symbols: N inner nodes, B
slots, H width of the rows.

Source: RETEXO (Kolluri et al.), section 2.2: the exchanges of standard training.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from retexo_fl.errors import TrainingDiverged
from retexo_fl.graph.plan.boundary import BoundaryPlan
from retexo_fl.training.boundary_sampling import (
    NUMBER_DTYPE,
    BoundaryDraw,
    BoundarySampling,
    read_numbers,
)
from retexo_fl.training.linear_step import all_finite
from retexo_fl.training.rounds import InnerExchange, Steps


class BoundaryRows:
    """One client's end of the exchanges inside its rounds.

    Without a :class:`BoundaryDraw` every vector of the plan crosses; with one, those drawn.

    Attributes:
        plan: Which vectors there are.
    """

    def __init__(
        self, plan: BoundaryPlan, scale: np.ndarray | None, sampling: BoundarySampling | None
    ) -> None:
        """Prepare the exchanges.

        Args:
            plan: Which vectors there are.
            scale: (N,) factors by which a sender multiplies its rows, or None.
            sampling: How ``bns`` samples; None for all vectors.
        """
        self.plan = plan
        self._scale = scale
        self._sampling = sampling
        self._incoming_targets = plan.incoming_targets
        self._returning_targets = plan.returning_targets

    def draw(self, slot_hashes: np.ndarray, round_number: int) -> Steps[BoundaryDraw | None]:
        """Draw the vectors of a round and ask their owners for them; None where all cross."""
        if self._sampling is None:
            return None
        mine = self._sampling.draw(self.plan, slot_hashes, round_number)
        asked = {peer: numbers.astype(NUMBER_DTYPE)[:, None] for peer, numbers in mine.items()}
        expected = {p.peer: self._sampling.size(p.send.count) for p in self.plan.peers}
        received = yield InnerExchange(
            label="sample",
            purpose="train",
            outgoing=asked,
            expected=expected,
            width=1,
            is_exact=True,
        )
        theirs = {
            peer.peer: read_numbers(received[peer.peer], vectors=peer.send.count, peer=peer.peer)
            for peer in self.plan.peers
        }
        return BoundaryDraw(mine=mine, theirs=theirs)

    def forward(
        self, rows: np.ndarray, draw: BoundaryDraw | None, *, label: str, purpose: str
    ) -> Steps[np.ndarray]:
        """Send (N, H) own rows; return the (B, H) rows received, zero where none was drawn."""
        if not all_finite(rows):
            raise TrainingDiverged(f"{label}: embeddings are not finite; lower learning-rate")
        scaled = self._scaled(rows)
        outgoing = {}
        for peer in self.plan.peers:
            vectors = peer.send.gather(scaled)
            outgoing[peer.peer] = vectors if draw is None else vectors[draw.theirs[peer.peer]]
        received = yield self._exchange(label, purpose, outgoing, draw, forward=True)
        block = np.zeros((self.plan.num_slots, rows.shape[1]), dtype=rows.dtype)
        for peer in self.plan.peers:
            slots, factor = self._slots(peer.peer, peer.receive.slots, draw)
            block[slots] = received[peer.peer] * rows.dtype.type(factor)
        return block

    def backward(
        self, gradients: np.ndarray, into: np.ndarray, draw: BoundaryDraw | None, *, label: str
    ) -> Steps[None]:
        """Send the gradients of received rows to their owners; add what comes back.

        Args:
            gradients: (B, H) with respect to what :meth:`forward` returned.
            into: (N, H) gradients with respect to the own rows; added to in place, in peer order.
            draw: That of the forward pass.
            label: Names the exchange.
        """
        if not all_finite(gradients):
            raise TrainingDiverged(f"{label}: gradients are not finite; lower learning-rate")
        outgoing = {}
        for peer in self.plan.peers:
            slots, factor = self._slots(peer.peer, peer.receive.slots, draw)
            outgoing[peer.peer] = gradients[slots] * gradients.dtype.type(factor)
        received = yield self._exchange(label, "train", outgoing, draw, forward=False)
        found = np.zeros_like(into)
        for peer in self.plan.peers:
            block = received[peer.peer]
            if draw is not None:
                whole = np.zeros((peer.send.count, into.shape[1]), dtype=into.dtype)
                whole[draw.theirs[peer.peer]] = block
                block = whole
            peer.send.spread(block, found)
        into += self._scaled(found)

    def _scaled(self, rows: np.ndarray) -> np.ndarray:
        if self._scale is None:
            return rows
        scaled: np.ndarray = rows * self._scale.astype(rows.dtype)[:, None]
        return scaled

    def _slots(
        self, peer: int, slots: np.ndarray, draw: BoundaryDraw | None
    ) -> tuple[np.ndarray, float]:
        """Return where a peer's vectors land and what they are multiplied by."""
        if draw is None or self._sampling is None:
            return slots, 1.0
        return slots[draw.mine[peer]], self._sampling.factor(len(slots))

    def _exchange(
        self,
        label: str,
        purpose: str,
        outgoing: Mapping[int, np.ndarray],
        draw: BoundaryDraw | None,
        *,
        forward: bool,
    ) -> InnerExchange:
        expected = {}
        for peer in self.plan.peers:
            if draw is None:
                count = peer.receive.count if forward else peer.send.count
            else:
                count = len((draw.mine if forward else draw.theirs)[peer.peer])
            expected[peer.peer] = count
        widths = {block.shape[1] for block in outgoing.values()}
        return InnerExchange(
            label=label,
            purpose=purpose,
            outgoing=outgoing,
            expected=expected,
            width=widths.pop() if widths else 0,
            targets=self._targets(draw, forward=forward),
        )

    def _targets(
        self, draw: BoundaryDraw | None, *, forward: bool
    ) -> Mapping[int, np.ndarray] | None:
        """Return what received vectors are only ever added to.

        Sampled ones each have a factor of their peer's before they are.
        """
        if forward:
            return self._incoming_targets if draw is None else None
        if draw is None:
            return self._returning_targets
        return {p: places[draw.theirs[p]] for p, places in self._returning_targets.items()}
