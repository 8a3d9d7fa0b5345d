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

from typing import ClassVar, Final

import numpy as np

from retexo_fl.errors import RemoteProtocolError, TrainingDiverged
from retexo_fl.updates.codec import WHOLE_WEIGHTS, PlainUpdates, UpdateKey, WeightCodec
from retexo_fl.updates.digest import array_digest
from retexo_fl.updates.grid import Grid, block_rms

#: Bytes that name weights which clients may hold.
_NAME_BYTES: Final = 8
#: The last weights that were decoded, and bits, change and digest that they follow from: thousands
#: of clients of one process decode the same in a round.
_DECODED: Final[list[tuple[tuple[int, bytes, bytes], np.ndarray]]] = []


class FewBits(PlainUpdates):
    """See :class:`.UpdateCodec`.

    Args:
        update_bits: Of a value in updates.
        weights: How weights travel.
    """

    def __init__(self, *, update_bits: int, weights: WeightCodec = WHOLE_WEIGHTS) -> None:
        super().__init__(weights=weights)
        self._grid = Grid(update_bits)

    def measure(self, update: np.ndarray, coded: np.ndarray) -> np.ndarray:
        """Return the (blocks,) root mean squares."""
        return block_rms(update)

    def steps(self, largest: np.ndarray, before: bytes) -> bytes:
        """Return the exponents of the steps, one signed byte a block."""
        del before
        return self._grid.steps(largest)

    def without(self, steps: bytes, blocks: np.ndarray) -> bytes:
        """See :class:`.UpdateCodec`; in a first round, without shared steps, as they are."""
        return self._grid.without(steps, blocks) if steps else steps

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
        if not np.isfinite(update_sum).all():
            raise TrainingDiverged(
                f"client {key.client}: stage {key.stage}, round {key.round}: its update is not "
                "finite; lower learning-rate"
            )
        return self._grid.encode(
            update_sum, f"{key.seed}/{key.stage}/{key.round}/{key.client}/update", steps
        )

    def decode_update(self, coded: np.ndarray, key: UpdateKey, steps: bytes) -> np.ndarray:
        """See :class:`UpdateCodec`."""
        return self._grid.decode(coded, steps)


class WeightChanges:
    """See :class:`.WeightCodec`.

    Args:
        bits: Of a value in changes.
    """

    sends_changes: ClassVar[bool] = True

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._grid = Grid(bits)

    def encode(self, weights: np.ndarray, held: np.ndarray | None) -> np.ndarray:
        """See :class:`.WeightCodec`."""
        if held is None:
            return weights
        name = np.frombuffer(weights_name(held), np.uint8)
        if weights_name(weights) == name.tobytes():
            return name
        change = self._grid.encode_nearest(weights - held, remembers=True)
        return np.concatenate([name, change])

    def changed(self, coded: np.ndarray) -> bytes:
        """See :class:`.WeightCodec`."""
        return coded[:_NAME_BYTES].tobytes() if coded.dtype == np.uint8 else b""

    def decode(self, coded: np.ndarray, held: np.ndarray | None = None) -> np.ndarray:
        """See :class:`.WeightCodec`."""
        if coded.dtype != np.uint8:
            return coded
        if held is None:
            raise RemoteProtocolError("got a change of weights; expected weights")
        if len(coded) == _NAME_BYTES:
            return held
        made_of = self._bits, coded[_NAME_BYTES:].tobytes(), array_digest(held)
        for key, decoded in _DECODED:
            if key == made_of:
                return decoded
        change = self._grid.decode(coded[_NAME_BYTES:])
        if change.shape != held.shape or change.dtype != held.dtype:
            raise RemoteProtocolError(
                f"got a change of {change.dtype} weights of shape {change.shape}; expected "
                f"{held.dtype} of shape {held.shape}"
            )
        # Of bytes, which nobody can write to, and which are hashed once.
        weights = np.frombuffer((held + change).tobytes(), held.dtype)
        _DECODED[:] = [(made_of, weights)]
        return weights


def most_held(patience: int) -> int:
    """Return how many of its last messages' weights a client keeps.

    The best of a stage with ``patience`` are among them; else they may be of any round.
    """
    return patience + 2


def weights_name(weights: np.ndarray) -> bytes:
    """Return the bytes that name weights which clients may hold."""
    return array_digest(weights)[:_NAME_BYTES]
