from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retexo_fl.additions.devices.workers.announcements import Announcements
from retexo_fl.additions.devices.workers.task import Share


def share(batch: int, *items: int) -> Share:
    return Share(epoch=0, batch=batch, items=np.array(items or (1, 2)))


def test_announced_share_is_asked_for_by_its_place() -> None:
    announced = Announcements()
    announced.replace([share(0), share(1), share(2), share(3)])
    assert announced.order(share(0)) == 0
    assert announced.order(share(2)) == 1
    assert announced.order(share(3)) == 0


def test_unannounced_share_is_given_in_full_and_drops_nothing() -> None:
    announced = Announcements()
    announced.replace([share(0)])
    other = share(0, 1, 3)
    assert announced.order(other) is other
    assert announced.order(share(0)) == 0
    assert isinstance(announced.order(share(0)), Share)


def test_empty_shares_are_no_announcements() -> None:
    announced = Announcements()
    empty = replace(share(0), items=np.zeros(0, np.int64))
    assert announced.replace([empty, share(1)]) == (0, (announced._shares[0],))
    assert announced.order(share(1)) == 0


def test_new_announcement_keeps_what_both_begin_with() -> None:
    announced = Announcements()
    announced.replace([share(0), share(1), share(2)])
    keep, added = announced.replace([share(0), share(1), share(5)])
    assert keep == 2
    assert [one.batch for one in added] == [5]
    assert announced.order(share(5)) == 2


@pytest.mark.parametrize(
    "change",
    [{"epoch": 1}, {"batch": 1}, {"purpose": "validate"}, {"numbers": {"round": 2}}],
)
def test_shares_that_differ_are_not_the_same(change: dict[str, object]) -> None:
    assert share(0).same_as(share(0))
    assert not share(0).same_as(replace(share(0), **change))  # type: ignore[arg-type]
