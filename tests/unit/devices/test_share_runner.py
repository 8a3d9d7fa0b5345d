from __future__ import annotations

import numpy as np
import pytest
import torch

from retexo_fl.devices.share_runner import ShareRunner
from retexo_fl.devices.task import Share, ShareSums
from tests.support.device_pools import ROWS, WEIGHTS, share
from tests.support.late_queues import LateQueue, copy_late

CPU = torch.device("cpu")


class LateRowSums:
    """Has the loss ``sum over items i of (ROWS[i] . weights)``; its rows arrive late."""

    def prepare(self, share: Share) -> object:
        """Ask for the rows."""
        return copy_late(torch.from_numpy(ROWS[share.items]))

    def sums(self, weights: torch.Tensor, prepared: object) -> ShareSums:
        """Add them up."""
        assert isinstance(prepared, torch.Tensor)
        return ShareSums(gradient_sum=prepared.sum(dim=0), numbers={"rows": len(prepared)})


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_rows_that_arrive_late_are_waited_for_before_they_are_computed_on(ahead: int) -> None:
    runner = ShareRunner(LateRowSums(), CPU, ahead=ahead, make_queue=LateQueue)
    shares = [share([3 * batch, 1], batch=batch) for batch in range(4)]
    runner.announce(0, shares)
    sums = torch.zeros(ROWS.shape[1], dtype=torch.float64)
    orders: list[tuple[Share | int, Share]] = [(0, shares[0]), (1, shares[2])]
    for order, meant in [*orders, (unannounced := share([5, 6]), unannounced)]:
        found = runner.run(order, torch.from_numpy(WEIGHTS), sums)
        np.testing.assert_allclose(sums.numpy(), ROWS[meant.items].sum(axis=0))
        assert found.numbers == {"rows": 2}
    runner.close()
