"""How much of every mini-batch each device gets, from how fast it was. Uses no clock.

Source: Lin, Deng, Prasanna, "A Unified CPU-GPU Protocol for GNN Training" (CF'24), section 4.2. The
rule is theirs, a device's share is its part of the sum of speeds, with three additions: speeds are
smoothed, small differences change nothing, and one host decides for all devices. Their static
baseline keeps the ratio of one measured epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from retexo_fl.errors import ConfigurationError
from retexo_fl.units import counted

BalanceMode = Literal["dynamic", "static", "equal"]
MODES: Final[tuple[str, ...]] = ("dynamic", "static", "equal")

#: Least part of the work that any device gets, so that its speed stays known.
LEAST_RATIO: Final = 0.01
#: A new measurement never weighs less than this, or a slow drift would not be followed.
LEAST_GAIN: Final = 0.4
#: A speed that differs by more (22 %) has changed, and what was known before is forgotten. Noise of
#: 10 % stays below.
CHANGE: Final = 0.2
#: An imbalance below changes nothing: cutting at whole items already costs about as much.
DEAD_BAND: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided after an epoch, for log and plot; all tuples are (W,), in worker order.

    Attributes:
        epoch: That was measured.
        seconds: Each worker was busy.
        work: Each worker had.
        imbalance: Of ``seconds``: :func:`imbalance`.
        speeds: Smoothed work per second; 0 where never measured.
        ratios: Of the epochs to come.
        is_changed: These are not those of before.
    """

    epoch: int
    seconds: tuple[float, ...]
    work: tuple[float, ...]
    imbalance: float
    speeds: tuple[float, ...]
    ratios: tuple[float, ...]
    is_changed: bool


class Balancer:
    """Ratios of W workers: of all measured speeds, of the first ones, or of none."""

    def __init__(
        self,
        num_workers: int,
        *,
        mode: str = "dynamic",
        speeds: Sequence[float] | None = None,
        dead_band: float = DEAD_BAND,
    ) -> None:
        """Begin with ratios in proportion to ``speeds``, or equal ones.

        Args:
            num_workers: W.
            mode: ``dynamic`` follows measured speeds. ``static`` keeps ``speeds``, or, where none
                are given, those of the first measured epoch. ``equal`` measures nothing.
            speeds: (W,) positive, of any unit.
            dead_band: Expected imbalance up to which ratios stay.

        Raises:
            ConfigurationError: The mode is unknown, or the speeds are not W positive numbers.
        """
        if mode not in MODES:
            raise ConfigurationError(f"balance is {mode!r}; expected {', '.join(MODES)}")
        given = [1.0] * num_workers if speeds is None else list(speeds)
        if len(given) != num_workers or not all(0 < speed < math.inf for speed in given):
            raise ConfigurationError(
                f"speeds are {given}; expected {counted(num_workers, 'positive number')}, "
                "one for each device"
            )
        self.mode = mode
        self.ratios = _ratios(given)
        self._given = given
        self._is_settled = mode == "equal" or (mode == "static" and speeds is not None)
        self.decisions: list[Decision] = []
        self._dead_band = dead_band
        self._speeds = [_SmoothedSpeed() for _ in range(num_workers)]

    def observe(
        self, epoch: int, *, seconds: Sequence[float], work: Sequence[float]
    ) -> tuple[float, ...]:
        """Learn from an epoch.

        Args:
            epoch: Its number.
            seconds: (W,) each worker was busy.
            work: (W,) workload that each had.

        Returns:
            (W,) ratios of the epochs to come.
        """
        for speed, done, took in zip(self._speeds, work, seconds, strict=True):
            if done > 0 and took > 0:
                speed.observe(done / took)
        ratios = self._decided()
        self.decisions.append(
            Decision(
                epoch=epoch,
                seconds=tuple(seconds),
                work=tuple(work),
                imbalance=imbalance(seconds),
                speeds=tuple(speed.value for speed in self._speeds),
                ratios=ratios,
                is_changed=ratios != self.ratios,
            )
        )
        self.ratios = ratios
        return ratios

    @property
    def speeds(self) -> list[float] | None:
        """(W,) work per second; None before any was measured.

        A device that had nothing to do yet keeps its place among the speeds to begin with.
        """
        found = [speed.value for speed in self._speeds]
        if not any(found):
            return None
        # What is given may be of another unit: work of another stage.
        pairs = zip(found, self._given, strict=True)
        scale = math.exp(np.mean([math.log(now / then) for now, then in pairs if now]))
        return [now or then * scale for now, then in zip(found, self._given, strict=True)]

    def _decided(self) -> tuple[float, ...]:
        known = self.speeds
        if self._is_settled or known is None:
            return self.ratios
        self._is_settled = self.mode == "static"
        expected = [ratio / speed for ratio, speed in zip(self.ratios, known, strict=True)]
        return self.ratios if imbalance(expected) <= self._dead_band else _ratios(known)


def imbalance(seconds: Sequence[float]) -> float:
    """Return ``(longest - shortest) / longest``: how much of an epoch the fastest device idles."""
    longest = max(seconds, default=0.0)
    return (longest - min(seconds)) / longest if longest > 0 else 0.0


def cut(workloads: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Cut items into contiguous shares.

    An item belongs to the share in which the middle of its workload lies.

    Args:
        workloads: (n,) not negative.
        borders: (W - 1,) ascending, where shares are to end, in workload from the first item on.

    Returns:
        (W + 1,) int64 bounds: share w is ``bounds[w]:bounds[w + 1]``, and may be empty.
    """
    middles = np.cumsum(workloads, dtype=np.float64) - workloads / 2
    inner = np.searchsorted(middles, borders)
    return np.concatenate(([0], inner, [len(workloads)])).astype(np.int64)


def assign(costs: np.ndarray, speeds: Sequence[float]) -> list[np.ndarray]:
    """Give each of a few whole pieces of work to the device that would be done with it first.

    Heaviest first. The longest time is never above that of the fastest device alone, so a device
    that is too slow for even one piece gets none.

    Args:
        costs: (n,) work of each piece, not negative.
        speeds: (W,) positive.

    Returns:
        Of each device, (k,) int64 numbers of its pieces, ascending.
    """
    busy = np.zeros(len(speeds))
    per_work = 1 / np.asarray(speeds, np.float64)
    owners = np.empty(len(costs), np.int64)
    for piece in np.argsort(-costs, kind="stable"):
        done = busy + costs[piece] * per_work
        owner = owners[piece] = done.argmin()
        busy[owner] = done[owner]
    return [np.flatnonzero(owners == device) for device in range(len(speeds))]


class _SmoothedSpeed:
    """A mean of logarithms of speeds that forgets: twice as fast and half as fast cancel out.

    A measurement weighs less only once another has contradicted the one before: noise goes to and
    fro, while a speed that depends on the share itself, because roots together cost less than each
    alone, goes one way until shares are right. Source: Kesten, "Accelerated Stochastic
    Approximation" (1958).
    """

    def __init__(self) -> None:
        self._logarithm = 0.0
        self._turns = 0
        self._difference = 0.0

    @property
    def value(self) -> float:
        """The speed; 0 while unknown."""
        return math.exp(self._logarithm) if self._turns else 0.0

    def observe(self, speed: float) -> None:
        difference = math.log(speed) - self._logarithm
        if not self._turns or abs(difference) > CHANGE:
            self._turns = 1
        elif difference * self._difference < 0:
            self._turns += 1
        self._logarithm += max(1 / self._turns, LEAST_GAIN) * difference
        self._difference = difference


def _ratios(speeds: Sequence[float]) -> tuple[float, ...]:
    """Return each speed's part of their sum, none below :data:`LEAST_RATIO`."""
    least = min(LEAST_RATIO, 0.5 / len(speeds))
    parts = np.array(speeds, np.float64) / sum(speeds)
    while (low := parts < least).any():
        # What the slow ones get too much, the others give in proportion.
        parts = np.where(low, least, parts * (1 - least * low.sum()) / parts[~low].sum())
    return tuple(parts.tolist())
