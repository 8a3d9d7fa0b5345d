"""The form of updates on their way up, and of weights on their way down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, TypeAlias

import numpy as np

from retexo_fl.updates.zeros import Groups, without_zeros

#: An update as it is added up; one that has few values other than zero may come without the others.
Decoded: TypeAlias = np.ndarray | Groups


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateKey:
    """What randomness in a codec follows from, besides the values themselves.

    Attributes:
        seed: Of the run.
        job: Name of the training.
        stage: Stage index.
        round: Of the stage, from 1; for the ``validation`` and ``test`` after the last round, that
            of the last round.
        client: Its index.
    """

    seed: int
    job: str
    stage: int
    round: int
    client: int


class WeightCodec(Protocol):
    """Turns weights into what crosses the network on their way down, and back.

    As an :class:`UpdateCodec`, it keeps nothing.
    """

    @property
    def sends_changes(self) -> bool:
        """Whether clients have to hold the weights of the last message."""
        ...

    def encode(self, weights: np.ndarray, held: np.ndarray | None) -> np.ndarray:
        """Return what the server sends of (P,) weights, the same to all clients.

        Args:
            weights: The weights.
            held: (P,) weights that clients hold; None has them sent whole. Of those themselves only
                the name is sent.
        """
        ...

    def changed(self, coded: np.ndarray) -> bytes:
        """Return the name of the weights that a client must hold to decode; empty for none."""
        ...

    def decode(self, coded: np.ndarray, held: np.ndarray | None = None) -> np.ndarray:
        """Return the (P,) weights that a client computes with, from those it holds.

        Raises:
            RemoteProtocolError: They cannot be decoded.
        """
        ...


class UpdateCodec(Protocol):
    """Turns updates into what crosses the network, and back; its :attr:`weights` does weights.

    It keeps nothing: what it returns follows from its arguments, so that an answer that was lost
    can be given again, and a resumed training repeats it. Both ends have the same codec, from the
    configuration. What crosses is a flat array of float32, float64 or, for other codes, uint8.
    """

    @property
    def weights(self) -> WeightCodec:
        """How weights travel."""
        ...

    @property
    def cut_share(self) -> float:
        """Which share of a round's values may exceed their steps without a word."""
        ...

    def first_steps(self, size: int, *, most_train: int, terms: int) -> bytes:
        """Return what a stage's first round's updates are encoded by; may be empty.

        Args:
            size: P.
            most_train: Train nodes of the largest client.
            terms: How many clients train.
        """
        ...

    def measure(self, update: np.ndarray, coded: np.ndarray) -> np.ndarray:
        """Return what :meth:`steps` needs to know of a (P,) update, an array to take maxima of.

        Args:
            update: The update, or a sum, decoded; of one without its zeros nothing is measured.
            coded: What it was decoded from.
        """
        ...

    def steps(self, largest: np.ndarray, before: bytes) -> bytes:
        """Return what the next round's updates are encoded by.

        Args:
            largest: Of this round's updates, the maxima of :meth:`measure`.
            before: What they were encoded by.
        """
        ...

    def without(self, steps: bytes, blocks: np.ndarray) -> bytes:
        """Return steps under which what some blocks of values are coded to takes hardly a byte.

        Args:
            steps: Of a round.
            blocks: (k,) of 256 values, of which nothing is read.
        """
        ...

    def encode_update(
        self,
        update_sum: np.ndarray,
        key: UpdateKey,
        steps: bytes,
        spans: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return what a client sends of its (P,) update; the argument is not written to.

        Args:
            update_sum: The update.
            key: Which it is.
            steps: Of the round; empty in the first of a stage.
            spans: Where it may be other than zero, as :func:`.without_zeros` has it; None if that
                is not known. What is returned does not depend on it.
        """
        ...

    def decode_update(self, coded: np.ndarray, key: UpdateKey, steps: bytes) -> Decoded:
        """Return the (P,) update that the server adds up.

        A length or dtype other than the round's is refused by the server after it.

        Raises:
            RemoteProtocolError: It cannot be decoded.
        """
        ...


class WholeWeights:
    """Sends weights as they are."""

    sends_changes: ClassVar[bool] = False

    def encode(self, weights: np.ndarray, held: np.ndarray | None) -> np.ndarray:
        """See :class:`WeightCodec`."""
        del held
        return weights

    def changed(self, coded: np.ndarray) -> bytes:
        """See :class:`WeightCodec`; clients hold nothing."""
        del coded
        return b""

    def decode(self, coded: np.ndarray, held: np.ndarray | None = None) -> np.ndarray:
        """See :class:`WeightCodec`."""
        del held
        return coded


WHOLE_WEIGHTS: Final = WholeWeights()


class PlainUpdates:
    """Sends updates without their zeros where there are many.

    Args:
        keeps_zeros: Sends updates as they are.
        weights: How weights travel.

    Attributes:
        cut_share: See :class:`UpdateCodec`; steps reach all values.
    """

    cut_share: float = 0.0

    def __init__(self, *, keeps_zeros: bool = False, weights: WeightCodec = WHOLE_WEIGHTS) -> None:
        self._keeps_zeros = keeps_zeros
        self.weights = weights

    def first_steps(self, size: int, *, most_train: int, terms: int) -> bytes:
        """See :class:`UpdateCodec`; there are none."""
        del size, most_train, terms
        return b""

    def measure(self, update: np.ndarray, coded: np.ndarray) -> np.ndarray:
        """See :class:`UpdateCodec`; there is nothing to know."""
        del coded
        return np.zeros(0, update.dtype)

    def steps(self, largest: np.ndarray, before: bytes) -> bytes:
        """See :class:`UpdateCodec`; there are none."""
        del largest, before
        return b""

    def without(self, steps: bytes, blocks: np.ndarray) -> bytes:
        """See :class:`UpdateCodec`; values are sent as they are."""
        del blocks
        return steps

    def encode_update(
        self,
        update_sum: np.ndarray,
        key: UpdateKey,
        steps: bytes,
        spans: np.ndarray | None = None,
    ) -> np.ndarray:
        """See :class:`UpdateCodec`."""
        del key, steps
        return update_sum if self._keeps_zeros else without_zeros(update_sum, spans)

    def decode_update(self, coded: np.ndarray, key: UpdateKey, steps: bytes) -> Decoded:
        """See :class:`UpdateCodec`; without its zeros as it came."""
        del key, steps
        return Groups.read(coded) if coded.dtype == np.uint8 else coded
