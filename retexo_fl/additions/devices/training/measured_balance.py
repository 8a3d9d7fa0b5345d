"""When a client's balancer decides: once its devices were busy long enough to be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from retexo_fl.additions.devices.training.balance_log import log_decision
from retexo_fl.additions.devices.workers.balancer import Balancer

#: Rounds and epochs of a small graph take milliseconds, which depend more on the system than on the
#: devices.
LEAST_MEASURED_S: Final = 0.5


class MeasuredBalance:
    """A client's balancer; rounds or epochs are added up until they make a measurement."""

    def __init__(
        self,
        num_workers: int,
        *,
        mode: str,
        client: int,
        unit: str,
        speeds: Sequence[float] | None = None,
    ) -> None:
        """Begin with equal parts, or with those of speeds that were measured before.

        Args:
            num_workers: W.
            mode: ``dynamic``, ``static`` or ``equal``; see :class:`.Balancer`.
            client: Index, for its log.
            unit: What is measured, for its log: ``epoch``, or ``stage=0 round``.
            speeds: (W,) of any unit, for ``dynamic``; others begin with equal parts.

        Raises:
            ConfigurationError: The mode is unknown.
        """
        given = speeds if mode == "dynamic" else None
        self._balancer = Balancer(num_workers, mode=mode, speeds=given)
        self._client = client
        self._unit = unit
        #: (W,) since the last measurement: seconds, and cost of what was computed in them.
        self._busy_s, self._done = np.zeros((2, num_workers))

    @property
    def ratios(self) -> tuple[float, ...]:
        """(W,) each device's part of what comes; they sum to 1."""
        return self._balancer.ratios

    @property
    def speeds(self) -> list[float] | None:
        """(W,) work per second; None while devices cannot be compared."""
        return self._balancer.speeds

    def learn(self, number: int, *, seconds: Sequence[float], work: Sequence[float]) -> None:
        """Add a round or an epoch; decide if that makes :data:`LEAST_MEASURED_S` of some device.

        Args:
            number: Of the round or epoch.
            seconds: (W,) each device was busy.
            work: (W,) workload that each had, by these ratios.
        """
        self._busy_s += seconds
        self._done += work
        if self._busy_s.max() < LEAST_MEASURED_S:
            return
        busy_s, done = self._busy_s.tolist(), self._done.tolist()
        self._balancer.observe(number, seconds=busy_s, work=done)
        log_decision(self._client, self._unit, self._balancer.decisions[-1])
        self._busy_s[:] = self._done[:] = 0
