"""Where each vector of an exchange lands among the accumulator's rows, and how it is read back.

Vectors that are only ever used in their sum share a row, as long as their senders rounded to the
same exponent and are few enough for 32 bits. Their sum is read back in the place of the first of
them; the others are zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from retexo_fl.additions.kernel_path.carrying.control import Notice
from retexo_fl.exchange.fixed_point import MAX_CONTRIBUTORS, unsnap


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExchangeLayout:
    """Rows of the accumulator for the vectors of some senders.

    Attributes:
        rows: Rows in all.
        places: By sender, [n] int64 the row of each of its vectors.
        exponents: By sender.
        firsts: By sender, [n] bool whether a vector is the first of those in its row.
        shares: Whether any row takes more than one sender's vectors.
    """

    rows: int
    places: Mapping[int, np.ndarray]
    exponents: Mapping[int, int]
    firsts: Mapping[int, np.ndarray]
    shares: bool

    @classmethod
    def of(
        cls, notices: Mapping[int, Notice], targets: Mapping[int, np.ndarray] | None
    ) -> ExchangeLayout:
        """Lay out what some senders have announced.

        Args:
            notices: By sender.
            targets: By sender, [n] int64 what each vector is summed into, -1 for nothing; None
                where nothing is shared.
        """
        exponents = {sender: notice.exponent for sender, notice in notices.items()}
        places, rows = {}, 0
        for sender in sorted(notices):
            count = len(notices[sender].streams)
            places[sender] = np.full(count, -1, dtype=np.int64)
            alone = np.ones(count, bool) if targets is None else targets[sender] < 0
            places[sender][alone] = rows + np.arange(int(alone.sum()))
            rows += int(alone.sum())
        if targets is not None:
            for senders in _together(exponents, targets):
                rows = _share(senders, targets, places, rows)
        firsts = _firsts(places, rows)
        return cls(
            rows=rows,
            places=places,
            exponents=exponents,
            firsts=firsts,
            shares=not all(first.all() for first in firsts.values()),
        )

    def vectors(self, accumulated: np.ndarray, dtype: str) -> dict[int, np.ndarray]:
        """Return each sender's vectors, those that share a row in the place of the first.

        Args:
            accumulated: [rows, width] int32.
            dtype: Of the run; sums of several senders come as float64, which holds them exactly.
        """
        is_wide = self.shares or dtype == "float64"
        found = {}
        for sender, places in self.places.items():
            steps, exponent = accumulated[places], self.exponents[sender]
            values: np.ndarray = (
                unsnap(steps, exponent, np.float64)
                if is_wide
                else unsnap(steps, exponent, np.float32)
            )
            values[~self.firsts[sender]] = 0
            found[sender] = values
        return found


def cache_key(
    notices: Mapping[int, Notice], targets: Mapping[int, np.ndarray] | None, width: int
) -> bytes:
    """Name what would be accumulated: equal keys, equal rows."""
    state = hashlib.sha256(f"retexo accumulated {width}".encode())
    for sender in sorted(notices):
        notice = notices[sender]
        state.update(f"/{sender}/{notice.exponent}/{len(notice.streams)}/".encode())
        state.update(notice.digest)
        if targets is not None:
            state.update(targets[sender].astype("<i8").tobytes())
    return state.digest()


def _together(exponents: Mapping[int, int], targets: Mapping[int, np.ndarray]) -> list[list[int]]:
    """Return the senders that may share rows: of one exponent, and as many as 32 bits hold."""
    by_exponent: dict[int, list[int]] = {}
    for sender in sorted(exponents):
        if (targets[sender] >= 0).any():
            by_exponent.setdefault(exponents[sender], []).append(sender)
    return [
        senders[at : at + MAX_CONTRIBUTORS]
        for _, senders in sorted(by_exponent.items())
        for at in range(0, len(senders), MAX_CONTRIBUTORS)
    ]


def _share(
    senders: list[int],
    targets: Mapping[int, np.ndarray],
    places: Mapping[int, np.ndarray],
    rows: int,
) -> int:
    """Give each target of some senders a row; return the rows in all."""
    wanted = np.unique(np.concatenate([targets[s][targets[s] >= 0] for s in senders]))
    for sender in senders:
        shared = targets[sender] >= 0
        places[sender][shared] = rows + np.searchsorted(wanted, targets[sender][shared])
    return rows + len(wanted)


def _firsts(places: Mapping[int, np.ndarray], rows: int) -> dict[int, np.ndarray]:
    taken = np.zeros(rows, dtype=bool)
    firsts = {}
    for sender in sorted(places):
        firsts[sender] = ~taken[places[sender]]
        taken[places[sender]] = True
    return firsts
