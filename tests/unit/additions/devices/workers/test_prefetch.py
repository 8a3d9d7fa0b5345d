from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from retexo_fl.additions.devices.workers.prefetch import Prefetcher
from retexo_fl.additions.devices.workers.task import Share

WAIT_S = 10.0


def share(batch: int) -> Share:
    return Share(epoch=0, batch=batch, items=np.arange(3))


class Preparation:
    """Notes who prepares what, and lets it through when told."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.threads: set[str] = set()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.has_begun = threading.Semaphore(0)
        self._inside = threading.Lock()

    def __call__(self, share: Share) -> object:
        assert self._inside.acquire(blocking=False), "prepared twice at once"
        try:
            self.begun.append(share.batch)
            self.threads.add(threading.current_thread().name)
            self.has_begun.release()
            assert self.may_go_on.wait(WAIT_S)
            if share.batch == 13:
                raise ValueError("unlucky")
            if share.batch == 99:
                raise SystemExit(3)
            return f"batch {share.batch}"
        finally:
            self._inside.release()


@pytest.fixture
def preparation() -> Preparation:
    return Preparation()


@pytest.fixture(params=[0, 1, 2])
def prefetcher(request: pytest.FixtureRequest, preparation: Preparation) -> Iterator[Prefetcher]:
    made = Prefetcher(preparation, ahead=request.param)
    yield made
    made.close()


def wait_for(preparation: Preparation, count: int) -> None:
    for _ in range(count):
        assert preparation.has_begun.acquire(timeout=WAIT_S)


def test_announced_shares_come_in_order(prefetcher: Prefetcher, preparation: Preparation) -> None:
    prefetcher.announce(0, [share(n) for n in range(5)])
    assert [prefetcher.take(0).content for _ in range(5)] == [f"batch {n}" for n in range(5)]
    assert preparation.begun == list(range(5))


def test_share_may_come_unannounced(prefetcher: Prefetcher) -> None:
    prefetcher.announce(0, [share(1), share(2)])
    assert prefetcher.take(share(9)).content == "batch 9"
    assert prefetcher.take(0).content == "batch 1"
    assert prefetcher.take(share(8)).content == "batch 8"
    assert prefetcher.take(0).content == "batch 2"


def test_announced_shares_can_be_dropped(prefetcher: Prefetcher) -> None:
    prefetcher.announce(0, [share(n) for n in range(5)])
    assert prefetcher.take(3).content == "batch 3"
    prefetcher.announce(0, [share(7)])
    assert prefetcher.take(0).content == "batch 7"


def test_failure_is_raised_where_the_share_is_asked_for(prefetcher: Prefetcher) -> None:
    prefetcher.announce(0, [share(12), share(13), share(14)])
    assert prefetcher.take(0).content == "batch 12"
    with pytest.raises(ValueError, match="unlucky"):
        prefetcher.take(0)
    assert prefetcher.take(0).content == "batch 14"


def test_preparation_that_ends_its_thread_is_not_waited_for(prefetcher: Prefetcher) -> None:
    prefetcher.announce(0, [share(99)])
    with pytest.raises(SystemExit):
        prefetcher.take(0)


def test_closing_twice_does_nothing(prefetcher: Prefetcher) -> None:
    prefetcher.announce(0, [share(1)])
    prefetcher.close()


def test_no_more_shares_than_announced_ahead_are_prepared(preparation: Preparation) -> None:
    prefetcher = Prefetcher(preparation, ahead=2)
    prefetcher.announce(0, [share(n) for n in range(5)])
    wait_for(preparation, 2)
    # One lot more could only come now: the thread is idle, and says so by waiting.
    assert not preparation.has_begun.acquire(timeout=0.05)
    prefetcher.take(0)
    wait_for(preparation, 1)
    assert preparation.begun == [0, 1, 2]
    prefetcher.close()


def test_next_share_is_prepared_in_a_thread_beside_the_caller(
    preparation: Preparation,
) -> None:
    prefetcher = Prefetcher(preparation, ahead=1)
    prefetcher.announce(0, [share(0), share(1)])
    prefetcher.take(0)
    wait_for(preparation, 2)
    assert preparation.begun == [0, 1]
    assert preparation.threads == {"prepare"}
    prefetcher.close()


def test_share_kept_by_a_new_announcement_is_not_prepared_again(preparation: Preparation) -> None:
    prefetcher = Prefetcher(preparation, ahead=1)
    prefetcher.announce(0, [share(0), share(1)])
    wait_for(preparation, 1)
    prefetcher.announce(1, [share(5)])
    assert [prefetcher.take(0).content for _ in range(2)] == ["batch 0", "batch 5"]
    assert preparation.begun == [0, 5]
    prefetcher.close()


def test_share_dropped_while_it_is_prepared_does_not_come_later(preparation: Preparation) -> None:
    preparation.may_go_on.clear()
    prefetcher = Prefetcher(preparation, ahead=1)
    prefetcher.announce(0, [share(0)])
    wait_for(preparation, 1)
    prefetcher.announce(0, [share(5)])
    preparation.may_go_on.set()
    assert prefetcher.take(0).content == "batch 5"
    prefetcher.close()


def test_preparation_time_and_waiting_time_are_told_apart(
    preparation: Preparation,
) -> None:
    prefetcher = Prefetcher(preparation, ahead=1)
    prefetcher.announce(0, [share(0), share(1)])
    first = prefetcher.take(0)
    assert first.prepare_s > 0
    assert first.waited_s > 0
    prefetcher.close()


def test_several_threads_prepare_and_shares_come_in_order() -> None:
    both, prepared = threading.Barrier(2), threading.Semaphore(0)

    def prepare(share: Share) -> object:
        # Goes on once another share is being prepared, too.
        both.wait(WAIT_S)
        prepared.release()
        return f"batch {share.batch}"

    prefetcher = Prefetcher(prepare, ahead=2, threads=2)
    prefetcher.announce(0, [share(n) for n in range(6)])
    for _ in range(2):
        assert prepared.acquire(timeout=WAIT_S)
    for pair in range(3):
        found = [prefetcher.take(0).content for _ in range(2)]
        assert found == [f"batch {2 * pair + place}" for place in range(2)]
    prefetcher.close()
