"""Headers of an exchange's frames, built alike by both ends and where blocks are admitted.

An exchange before a stage is named by its plan. One inside a round is named by its label and its
place in the round, since what crosses then need not be all that the plan lists.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from retexo_fl.exchange import BlockHeader
from retexo_fl.graph import PeerPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StageExchange:
    """The exchange before a stage, as one client sees it.

    Attributes:
        job: Name of the training.
        layer: Stage index.
        weights_digest: 32 bytes naming the weights that made the vectors.
        client: The client.
        width: Values per vector.
        dtype: ``float32`` or ``float64``.
    """

    job: str
    layer: int
    weights_digest: bytes
    client: int
    width: int
    dtype: str

    @property
    def id(self) -> tuple[str, int, bytes]:
        """Job, layer and digest."""
        return self.job, self.layer, self.weights_digest

    def outgoing(self, peer: PeerPlan) -> BlockHeader:
        """Return the header of the block for a peer."""
        return self._header(peer, self.client, peer.peer, peer.send.count)

    def incoming(self, peer: PeerPlan) -> BlockHeader:
        """Return what the header of a peer's block must be."""
        return self._header(peer, peer.peer, self.client, peer.receive.count)

    def _header(self, peer: PeerPlan, sender: int, receiver: int, count: int) -> BlockHeader:
        return BlockHeader(
            job=self.job,
            layer=self.layer,
            sender=sender,
            receiver=receiver,
            weights_digest=self.weights_digest,
            num_edges=peer.num_edges,
            plan_digest=peer.digest,
            num_vectors=count,
            width=self.width,
            dtype=self.dtype,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundName:
    """What the headers of a round's frames contain.

    Attributes:
        job: Name of the training.
        layer: Stage index, 0 for algorithms that train all layers at once.
        codec: How vectors are written.
    """

    job: str
    layer: int = 0
    codec: str = "lossless"


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerBlock:
    """One block of an exchange inside a round.

    Attributes:
        label: Names the exchange within the round.
        number: Its place in the round, from 0.
        sender: Client index.
        receiver: Client index.
        vectors: How many.
        width: Values per vector.
        dtype: ``float32`` or ``float64``.
    """

    label: str
    number: int
    sender: int
    receiver: int
    vectors: int
    width: int
    dtype: str

    def header(self, name: RoundName, exchange: bytes) -> BlockHeader:
        """Return its header in a round of that name.

        Args:
            name: Of the round.
            exchange: 32 bytes that name the exchange among all of a job.
        """
        text = f"{self.label}/{self.number}/{self.sender}/{self.receiver}/{self.vectors}".encode()
        return BlockHeader(
            job=name.job,
            layer=name.layer,
            sender=self.sender,
            receiver=self.receiver,
            weights_digest=exchange,
            # Not by a plan: what goes along which edges is agreed on by the exchange's label.
            num_edges=0,
            plan_digest=hashlib.sha256(b"plan " + text).digest(),
            num_vectors=self.vectors,
            width=self.width,
            dtype=self.dtype,
        )
