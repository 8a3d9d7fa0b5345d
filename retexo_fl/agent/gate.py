"""Which blocks of a job may come to this client, how they must begin, and how long they may be."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from retexo_fl.channels import BlockKey
from retexo_fl.channels.gate import Admission
from retexo_fl.client.peer_exchange import StageExchange
from retexo_fl.client.vector_carrier import MOST_GRANTS, is_control, most_control_bytes, split_layer
from retexo_fl.config import RunConfig
from retexo_fl.exchange import HEADER_BYTES
from retexo_fl.exchange.link.reasons import Reason, refused
from retexo_fl.graph.plan.boundary import BoundaryPlan
from retexo_fl.graph.plan.vectors import PeerPlan
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.units import counted

#: A stage has one exchange; a run that resumes from an older checkpoint may make another.
_DIGESTS_PER_STAGE: Final = 4
#: A frame holds at least one vector, each frame a header; HELLO and DONE fit the rest.
_FIXED_BYTES: Final = 4096
#: The bytes of a number in the sample of ``bns``.
_NUMBER_BYTES: Final = 8


class JobGate:
    """Implements :class:`~retexo_fl.channels.gate.Gate` for one client and job; thread-safe.

    Args:
        job: Name of the training.
        plan_before: Returns what the client and its peers send each other before a stage: never
            more than before stage 0, and nothing to others than these peers.
        config: Of the run.
        shape: Sizes of the model.
        first: Returns what names the features (:meth:`.Crossing.first_digest`).
        clients: How many the partitioning has.
        stages: How many there are: one where all layers are trained together, but not in a job
            that predicts.
    """

    def __init__(
        self,
        job: str,
        plan_before: Callable[[int], BoundaryPlan],
        config: RunConfig,
        shape: ModelShape,
        *,
        first: Callable[[], bytes],
        clients: int,
        stages: int,
    ) -> None:
        self._job = job
        self._client = plan_before(0).client
        self._peers = {peer.peer for peer in plan_before(0).peers}
        self._plan_before = plan_before
        self._clients = clients
        self._dtype = config.dtype
        self._stages = stages
        # After all others, too, before which columns of the edges cross, or sums of far types.
        every = (*range(self._stages), *shape.later_stages)
        self._widths = {stage: shape.exchange_width(stage) for stage in every}
        # What layer 0 reads is made by nothing that is trained, unless by a basis.
        self._unmade = "a block of layer 0 that no features made"
        if config.secure_aggregation == "masked":
            self._unmade += ", or by another configuration or agreement of the owners"
        self._maps_first = shape.coordinates_cross
        self._first = first
        #: Vectors that cross inside rounds have this many bytes; 0 where none do.
        inside = stages < shape.layers and config.traits.exchanges_in_rounds
        row_bytes = shape.state_width * (8 if config.dtype == "float64" else 4)
        self._inner_row_bytes = max(row_bytes, _NUMBER_BYTES) if inside else 0
        # A round and its validation exchange 3 (K - 1) + 1 times, an evaluation K - 1 times; a peer
        # may be a message ahead.
        self._most_inner = 8 * shape.layers
        self._lock = threading.Lock()
        self._digests: dict[tuple[int, int], set[bytes]] = defaultdict(set)

    def admission(self, key: BlockKey) -> Admission:
        """Say how a block must begin.

        Raises:
            PeerRefused: It may not come; the message names the peer and the reason.
        """
        _, kind = split_layer(key.layer)
        if kind:
            return self._admit_control(key, kind)
        self._check(key)
        peer = self._peer(key)
        if key.sender in self._peers and self._is_unmade(key):
            return self._admit_inner(key, peer)
        return self._admit_stage(key, peer)

    def _peer(self, key: BlockKey) -> PeerPlan:
        if key.sender not in self._peers:
            return PeerPlan.of_stranger(key.sender)
        return self._plan_before(key.layer).peer(key.sender)

    def _is_unmade(self, key: BlockKey) -> bool:
        """Return whether a block is of layer 0 and not of the features."""
        return not (key.layer or self._maps_first) and key.weights_digest != self._first()

    def forget(self, keys: Iterable[BlockKey]) -> None:
        """Take no more account of blocks that were dropped."""
        with self._lock:
            for key in keys:
                self._digests[key.sender, key.layer].discard(key.weights_digest)

    def _check(self, key: BlockKey) -> None:
        if key.job != self._job or key.receiver != self._client:
            raise refused(
                Reason.JOB,
                f"client {key.sender}: a block of {key.job[:64]!r} for client {key.receiver}; "
                f"expected {self._job!r} and client {self._client}",
            )
        if key.layer not in self._widths:
            raise refused(
                Reason.PLAN,
                f"client {key.sender}: a block of layer {key.layer}; expected one below "
                f"{self._stages}",
            )
        if not 0 <= key.sender < self._clients or key.sender == self._client:
            raise refused(
                Reason.PLAN,
                f"client {key.sender}: expected another client from 0 to {self._clients - 1}",
            )

    def _admit_control(self, key: BlockKey, kind: int) -> Admission:
        """Admit a notice or a grant of datagrams; its content is checked when it is read."""
        stage, _ = split_layer(key.layer)
        self._check(replace(key, layer=stage))
        peer = self._peer(replace(key, layer=stage))
        if not is_control(kind):
            raise refused(
                Reason.PLAN,
                f"client {key.sender}: more than {MOST_GRANTS} grants of one exchange",
            )
        self._note(key, max(self._most_inner, _DIGESTS_PER_STAGE))
        vectors = max(peer.send.count, peer.receive.count)
        return Admission(header=None, max_bytes=most_control_bytes(vectors))

    def _admit_stage(self, key: BlockKey, peer: PeerPlan) -> Admission:
        if self._is_unmade(key):
            raise refused(Reason.PLAN, f"client {key.sender}: {self._unmade}")
        self._note(key, _DIGESTS_PER_STAGE)
        header = StageExchange(
            job=self._job,
            layer=key.layer,
            weights_digest=key.weights_digest,
            client=self._client,
            width=self._widths[key.layer],
            dtype=self._dtype,
        ).incoming(peer)
        return Admission(header=header, max_bytes=_most_bytes(header.num_vectors, header.row_bytes))

    def _admit_inner(self, key: BlockKey, peer: PeerPlan) -> Admission:
        if not self._inner_row_bytes:
            raise refused(Reason.PLAN, f"client {key.sender}: {self._unmade}")
        self._note(key, self._most_inner)
        vectors = max(peer.send.count, peer.receive.count)
        return Admission(header=None, max_bytes=_most_bytes(vectors, self._inner_row_bytes))

    def _note(self, key: BlockKey, most: int) -> None:
        """Take account of one more exchange of a peer and layer."""
        with self._lock:
            known = self._digests[key.sender, key.layer]
            if key.weights_digest not in known and len(known) >= most:
                raise refused(
                    Reason.FLOOD,
                    f"client {key.sender}: more than {counted(most, 'exchange')} of layer "
                    f"{key.layer} at once",
                )
            known.add(key.weights_digest)


def _most_bytes(vectors: int, row_bytes: int) -> int:
    """Return the most bytes of a block: no coding is longer than the dense values."""
    return _FIXED_BYTES + vectors * (row_bytes + HEADER_BYTES)
