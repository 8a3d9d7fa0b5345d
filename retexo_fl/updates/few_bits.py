"""Updates and weights in few bits a value.

Updates of a round are coded with steps that follow from those of the round before, so that every
client has the same: sums of whole numbers are sums of updates. In the first round each client sends
its own. A client keeps nothing.

Of weights, the change is coded from those that clients hold, so that what rounding leaves of one
change is part of the next: the server's weights are never rounded. Clients keep the weights of the
last messages, and can compute those that a stage starts from; weights that they hold are named
instead of sent. One that has others asks for them whole.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from retexo_fl.errors import RemoteProtocolError, TrainingDiverged
from retexo_fl.updates.codec import PlainUpdates, UpdateKey
from retexo_fl.updates.digest import array_digest
from retexo_fl.updates.grid import Grid, block_rms
from retexo_fl.updates.zeros import Groups

#: Bytes that name weights which clients may hold.
_NAME_BYTES: Final = 8


class FewBits(PlainUpdates):
    """See :class:`.UpdateCodec`.

    Args:
        update_bits: Of a value in updates; 32 leaves them as they are.
        weight_bits: The same of weights.
        keeps_zeros: Of updates that are left as they are.
    """

    def __init__(
        self, *, update_bits: int = 32, weight_bits: int = 32, keeps_zeros: bool = False
    ) -> None:
        super().__init__(keeps_zeros=keeps_zeros)
        self._updates = None if update_bits == 32 else Grid(update_bits)
        self._changes = None if weight_bits == 32 else Grid(weight_bits)

    @property
    def sends_changes(self) -> bool:
        """See :class:`UpdateCodec`."""
        return self._changes is not None

    def measure(self, update: np.ndarray, coded: np.ndarray) -> np.ndarray:
        """Return the (blocks,) root mean squares."""
        return super().measure(update, coded) if self._updates is None else block_rms(update)

    def steps(self, largest: np.ndarray, before: bytes) -> bytes:
        """Return the exponents of the steps, one signed byte a block."""
        del before
        return b"" if self._updates is None else self._updates.steps(largest)

    def encode_update(
        self,
        update_sum: np.ndarray,
        key: UpdateKey,
        steps: bytes,
        spans: np.ndarray | None = None,
    ) -> np.ndarray:
        """See :class:`UpdateCodec`.

        Raises:
            TrainingDiverged: A value is not finite.
        """
        if self._updates is None:
            return super().encode_update(update_sum, key, steps, spans)
        if not np.isfinite(update_sum).all():
            raise TrainingDiverged(
                f"client {key.client}: stage {key.stage}, round {key.round}: its update is not "
                "finite; lower learning-rate"
            )
        return self._updates.encode(
            update_sum, f"{key.seed}/{key.stage}/{key.round}/{key.client}/update", steps
        )

    def decode_update(self, coded: np.ndarray, key: UpdateKey, steps: bytes) -> np.ndarray:
        """See :class:`UpdateCodec`."""
        if self._updates is None:
            return super().decode_update(coded, key, steps)
        return self._updates.decode(coded, steps)

    def groups(self, coded: np.ndarray) -> Groups | None:
        """See :class:`UpdateCodec`; in few bits there are none."""
        return super().groups(coded) if self._updates is None else None

    def encode_weights(
        self, weights: np.ndarray, key: UpdateKey, held: np.ndarray | None
    ) -> np.ndarray:
        """See :class:`UpdateCodec`."""
        del key
        if self._changes is None or held is None:
            return weights
        name = np.frombuffer(weights_name(held), np.uint8)
        if weights_name(weights) == name.tobytes():
            return name
        change = self._changes.encode_nearest(weights - held, remembers=True)
        return np.concatenate([name, change])

    def changed(self, coded: np.ndarray) -> bytes:
        """See :class:`UpdateCodec`."""
        return coded[:_NAME_BYTES].tobytes() if coded.dtype == np.uint8 else b""

    def decode_weights(self, coded: np.ndarray, held: np.ndarray | None = None) -> np.ndarray:
        """See :class:`UpdateCodec`."""
        if coded.dtype != np.uint8:
            return coded
        if self._changes is None or held is None:
            raise RemoteProtocolError("got a change of weights; expected weights")
        if len(coded) == _NAME_BYTES:
            return held
        change = self._changes.decode(coded[_NAME_BYTES:])
        if change.shape != held.shape or change.dtype != held.dtype:
            raise RemoteProtocolError(
                f"got a change of {change.dtype} weights of shape {change.shape}; expected "
                f"{held.dtype} of shape {held.shape}"
            )
        decoded: np.ndarray = held + change
        return decoded


def most_held(patience: int) -> int:
    """Return how many of its last messages' weights a client keeps.

    The best of a stage with ``patience`` are among them; else they may be of any round.
    """
    return patience + 2


def weights_name(weights: np.ndarray) -> bytes:
    """Return the bytes that name weights which clients may hold."""
    return array_digest(weights)[:_NAME_BYTES]
