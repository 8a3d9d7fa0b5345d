from __future__ import annotations

import numpy as np
import pytest
import torch

from retexo_fl.additions.devices.workers.share_runner import ShareRunner
from retexo_fl.additions.devices.workers.task import Share, ShareSums
from tests.support.device_pools import ROWS, WEIGHTS, share
from tests.support.late_queues import LateQueue, LateTensor, copy_late, late_returns
from tests.support.watched_copies import watched_copies

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


@pytest.mark.parametrize(("ahead", "preparers"), [(0, 1), (1, 1), (2, 1), (3, 3)])
def test_late_rows_are_waited_for_before_they_are_computed_on(ahead: int, preparers: int) -> None:
    runner = ShareRunner(LateRowSums(), CPU, ahead=ahead, preparers=preparers, make_queue=LateQueue)
    shares = [share([3 * batch, 1], batch=batch) for batch in range(4)]
    runner.announce(0, shares)
    sums = torch.zeros(ROWS.shape[1], dtype=torch.float64)
    orders: list[tuple[Share | int, Share]] = [(0, shares[0]), (1, shares[2])]
    for order, meant in [*orders, (unannounced := share([5, 6]), unannounced)]:
        found = runner.run(order, torch.from_numpy(WEIGHTS), sums)
        np.testing.assert_allclose(sums.numpy(), ROWS[meant.items].sum(axis=0))
        assert found.numbers == {"rows": 2}
    runner.close()


class LateGradient:
    """Answers with the weights that it was given, from a device that copies late."""

    def prepare(self, share: Share) -> object:
        """Nothing."""
        return share

    def sums(self, weights: torch.Tensor, prepared: object) -> ShareSums:
        """Answer where the weights are."""
        del prepared
        gradient = torch.from_numpy(WEIGHTS).as_subclass(LateTensor)
        return ShareSums(gradient_sum=gradient, numbers={"here": float(weights.is_cpu)})


def test_weights_and_gradients_use_locked_pages_and_are_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = torch.device("meta")
    runner = ShareRunner(LateGradient(), device, ahead=0, make_queue=lambda device: None)
    sums = torch.zeros(len(WEIGHTS), dtype=torch.float64)
    late_returns(monkeypatch)
    with watched_copies() as copies:
        found = runner.run(share([1]), torch.from_numpy(WEIGHTS), sums)
    copies.demand_locked()
    assert found.numbers == {"here": 0.0}
    np.testing.assert_array_equal(sums.numpy(), WEIGHTS)
    runner.close()
