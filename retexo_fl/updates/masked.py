"""Updates as whole numbers on a grid that all clients share, so that masked sums are sums.

In the first round the grid has 32 bits and spans a bound that no update should reach; later it
follows from the sizes of the round before, in as many bits as configured. Beside its numbers a
client adds, for each block of 256, the fourth power of its size in parts of what the grid reaches:
the fourth root of their sum is at least the largest client's, and at most n**(1/4) times that.
Updates that noise is added to (:class:`NoisedUpdates`) have a step that follows from no update.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.masking.ring import Ring
from retexo_fl.updates.codec import WHOLE_WEIGHTS, PlainUpdates, UpdateKey, WeightCodec
from retexo_fl.updates.grid import BLOCK, LEFT_OUT, Grid, WideGrid, block_rms

#: Bits of a number, how many are added; then one exponent a block.
_HEAD: Final = struct.Struct("<BI")
_WIDE_BITS: Final = 32
#: A gradient of the loss of one node with respect to one weight is smaller, as far as was seen.
_FIRST_REACH: Final = 16.0
#: Fourth powers of sizes add up below this.
_MOST_SUM: Final = 2**62
#: One counts up to twice what the grid reaches at least.
_LEAST_POWER: Final = 16
#: On a grid of few bits, which reaches little, one is counted in parts of so many for each client:
#: from 1/64 of what the grid reaches, so that steps may shrink, up to 360 times that with 4 clients
#: and 22 times with 1,000. Then the next steps reach 1,800 and 450 times as far.
_FEW_UNIT: Final = 2**24
_MOST_CLIENTS: Final = 2**20
#: Rounding (P,) values moves them by sqrt(P) / 2 steps at most; a contribution that noise hides has
#: so many times sqrt(P) steps at least.
_FINENESS: Final = 256
#: Of noise at most, in parts of what it hides.
MOST_SIGMA: Final = 2.0**13
#: More standard deviations than a number of any run is away from 0.
_MOST_DEVIATIONS: Final = 16
#: Of a noised number, whole bytes: enough for 500,000 train nodes and a million values.
NOISED_BITS: Final = 40
_MOST_NOISED_BITS: Final = 56
_ALL_BITS: Final = frozenset({32, 8, 4, 2, 1, *range(NOISED_BITS, _MOST_NOISED_BITS + 1, 8)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGrid:
    """What clients code updates by that are added up.

    Attributes:
        grid: Of their numbers.
        terms: How many updates are added at most.
        ring: Of the sums of their numbers.
        unit: What a fourth power of 1 counts as.
    """

    grid: Grid | WideGrid
    terms: int
    ring: Ring
    unit: float

    @staticmethod
    @lru_cache(maxsize=8)
    def of_bits(bits: int, terms: int) -> SharedGrid:
        """Return the grid of numbers of so many bits, of which sums of so many do not overflow.

        Of :class:`NoisedUpdates` only the ring is shared here: their bits are those of sums.
        """
        if bits >= NOISED_BITS:
            return SharedGrid(grid=WideGrid(1), terms=terms, ring=Ring(bits), unit=1.0)
        finest = _MOST_SUM // (_LEAST_POWER * terms)
        grid: Grid | WideGrid
        if bits == _WIDE_BITS:
            grid, unit = WideGrid((2**31 - 1) // terms), finest
        else:
            grid, unit = Grid(bits), min(_FEW_UNIT * terms, finest)
        ring = Ring.of_sums(grid.most, terms)
        return SharedGrid(grid=grid, terms=terms, ring=ring, unit=float(unit))


class MaskedUpdates(PlainUpdates):
    """See :class:`.UpdateCodec`; of updates, what is coded are int64 numbers.

    They are (P,) numbers, then for each block its power, then how many values were cut. Decoding
    takes sums of such arrays.

    Args:
        update_bits: Of a value from the second round on; 32 rounds to the nearest of 2**32 / n.
        weights: How weights travel.
    """

    def __init__(self, *, update_bits: int = 32, weights: WeightCodec = WHOLE_WEIGHTS) -> None:
        super().__init__(weights=weights)
        self._bits = update_bits
        # Grids of few bits leave out the largest values.
        self.cut_share = 0.0 if update_bits == _WIDE_BITS else 0.01

    @staticmethod
    @lru_cache(maxsize=4)
    def shared(steps: bytes) -> tuple[SharedGrid, bytes]:
        """Read steps: the grid, and one exponent a block, each a signed byte.

        Raises:
            RemoteProtocolError: They are none.
        """
        if len(steps) < _HEAD.size:
            raise RemoteProtocolError("steps of a masked update are missing")
        bits, terms = _HEAD.unpack_from(steps)
        if bits not in _ALL_BITS or not 0 < terms <= _MOST_CLIENTS:
            raise RemoteProtocolError(f"steps are of {bits} bits and {terms} clients")
        return SharedGrid.of_bits(bits, terms), steps[_HEAD.size :]

    def first_steps(self, size: int, *, most_train: int, terms: int) -> bytes:
        """Return the steps of a stage's first round.

        Args:
            size: P.
            most_train: Train nodes of the largest client.
            terms: How many clients train.
        """
        most = (2**31 - 1) // terms
        exponent = math.ceil(math.log2(_FIRST_REACH * max(1, most_train) / most))
        blocks = -(-size // BLOCK)
        return _HEAD.pack(_WIDE_BITS, terms) + np.full(blocks, exponent, np.int8).tobytes()

    def measure(self, update: np.ndarray, coded: np.ndarray) -> np.ndarray:
        """Return the (blocks + 1,) powers and how many values were cut."""
        return coded[len(update) :].astype(np.float64)

    def steps(self, largest: np.ndarray, before: bytes) -> bytes:
        """Return the steps that follow from the sum of a round's powers."""
        shared, exponents = self.shared(before)
        powers = largest[:-1] / shared.unit
        sizes = np.sqrt(np.sqrt(np.maximum(powers, 0))) * shared.grid.reach(exponents)
        # Of values that were made zeros nothing is known.
        sizes[np.frombuffer(exponents, np.int8) == LEFT_OUT] = 0
        grid = SharedGrid.of_bits(self._bits, shared.terms).grid
        return _HEAD.pack(self._bits, shared.terms) + grid.steps(sizes)

    def without(self, steps: bytes, blocks: np.ndarray) -> bytes:
        """See :class:`.UpdateCodec`: they are zeros then, though masks give them their width."""
        shared, exponents = self.shared(steps)
        return steps[: _HEAD.size] + shared.grid.without(exponents, blocks)

    def encode_update(
        self,
        update_sum: np.ndarray,
        key: UpdateKey,
        steps: bytes,
        spans: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the (P + blocks + 1,) int64 numbers of a client's update.

        A value that is not finite is cut to 0: a refusal would reveal whose it is.

        Raises:
            RemoteProtocolError: Steps are of another number of values.
        """
        del spans
        sizes, lost = block_rms(update_sum), 0
        if not np.isfinite(sizes).all():
            finite = np.isfinite(update_sum)
            lost = int(np.count_nonzero(~finite))
            update_sum = np.where(finite, update_sum, update_sum.dtype.type(0))
            sizes = block_rms(update_sum)
        shared, exponents = self.shared(steps)
        if len(exponents) != len(sizes):
            raise RemoteProtocolError(f"got {len(exponents)} steps for {len(update_sum)} values")
        numbers, cut = shared.grid.numbers(
            update_sum, f"{key.seed}/{key.stage}/{key.round}/{key.client}/update", exponents
        )
        square = np.square(sizes / shared.grid.reach(exponents))
        most_power = _MOST_SUM / (shared.unit * shared.terms)
        powers = np.minimum(np.square(square), most_power) * shared.unit
        return np.concatenate([numbers, np.ceil(powers).astype(np.int64), [cut + lost]])

    def decode_update(self, coded: np.ndarray, key: UpdateKey, steps: bytes) -> np.ndarray:
        """Return the (P,) float64 sum of updates from sums of numbers."""
        del key
        shared, exponents = self.shared(steps)
        size = len(coded) - len(exponents) - 1
        if size < 0 or -(-size // BLOCK) != len(exponents):
            raise RemoteProtocolError(f"a masked update has {len(coded)} numbers")
        return shared.grid.values(coded[:size], exponents)


def is_noised(steps: bytes) -> bool:
    """Return whether steps are of :class:`NoisedUpdates`.

    Raises:
        RemoteProtocolError: They are none.
    """
    shared, exponents = MaskedUpdates.shared(steps)
    return shared.ring.bits >= NOISED_BITS and not exponents


def step_of(clip: float, size: int) -> float:
    """Return the step of (size,) updates of which one contribution has a norm of ``clip``."""
    return float(2.0 ** math.floor(math.log2(clip / (_FINENESS * math.sqrt(size)))))


def steps_changed(clip: float, size: int) -> float:
    """Return by how many steps, in the Euclidean norm, a contribution changes an update at most.

    Two updates that differ by it are rounded by half a step in each value. One step more is for
    what float64 loses in their sums.
    """
    return clip / step_of(clip, size) + math.sqrt(size) + 1


class NoisedUpdates(PlainUpdates):
    """See :class:`.UpdateCodec`; of updates, what is coded are int64 numbers.

    They are (P,) numbers, then how many values were cut: 0. Decoding takes sums of such arrays.

    One step for all values, which follows from what a contribution may be and not from what updates
    were: sizes of updates would reveal of train nodes what no noise hides. It is so fine that
    rounding adds little to what one contribution can change. Nothing is cut, since how much was
    would reveal it, too: numbers wrap around, in as many bits as their sums need.

    Args:
        clip: Norm of one contribution at most.
        weights: How weights travel.
    """

    def __init__(self, clip: float, *, weights: WeightCodec = WHOLE_WEIGHTS) -> None:
        super().__init__(weights=weights)
        self._clip = clip

    def first_steps(self, size: int, *, most_train: int, terms: int) -> bytes:
        """See :class:`.MaskedUpdates`; these are the steps of all rounds of a stage."""
        most = terms * max(1, most_train) + _MOST_DEVIATIONS * math.sqrt(terms) * MOST_SIGMA
        bits = 8 * math.ceil((math.log2(most * steps_changed(self._clip, size)) + 1) / 8)
        return _HEAD.pack(min(max(bits, NOISED_BITS), _MOST_NOISED_BITS), terms)

    def measure(self, update: np.ndarray, coded: np.ndarray) -> np.ndarray:
        """Return the (1,) count of values that were cut."""
        return coded[len(update) :].astype(np.float64)

    def steps(self, largest: np.ndarray, before: bytes) -> bytes:
        """See :class:`.UpdateCodec`; they stay."""
        del largest
        return before

    def encode_update(
        self,
        update_sum: np.ndarray,
        key: UpdateKey,
        steps: bytes,
        spans: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the (P + 1,) int64 numbers of a client's (P,) update, without noise.

        Raises:
            RemoteProtocolError: Steps are of other updates.
        """
        del key, spans
        if not is_noised(steps):
            raise RemoteProtocolError("steps of a noised update are missing")
        numbers = np.rint(update_sum.astype(np.float64) / step_of(self._clip, len(update_sum)))
        return np.concatenate([numbers.astype(np.int64), [0]])

    def decode_update(self, coded: np.ndarray, key: UpdateKey, steps: bytes) -> np.ndarray:
        """Return the (P,) float64 sum of updates from sums of numbers."""
        del key, steps
        size = len(coded) - 1
        if size < 1:
            raise RemoteProtocolError(f"a noised update has {len(coded)} numbers")
        values: np.ndarray = coded[:size] * step_of(self._clip, size)
        return values
