from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from retexo_fl.channels import BlockKey
from retexo_fl.channels.depot import BlockDepot, block_depot
from retexo_fl.channels.depot.outgoing import DeliveryTimes
from tests.support.peer_networks import frames_of, header_of


def key(receiver: int, *, layer: int = 0, job: str = "job-1") -> BlockKey:
    return BlockKey(job=job, layer=layer, weights_digest=bytes(32), sender=0, receiver=receiver)


def test_blocks_that_are_owed_at_once_count_once() -> None:
    times = DeliveryTimes()
    times.begin(key(1), 100, 1.0)
    times.begin(key(2), 200, 2.0)
    first = times.end(key(1), 4.0)
    assert first is not None
    assert not first.nothing_owed
    last = times.end(key(2), 6.0)
    assert last is not None
    assert last.nothing_owed
    times.begin(key(3), 300, 10.0)
    times.end(key(3), 11.0)
    (told,) = times.facts()
    assert told["blocks"] == 3
    assert told["bytes"] == 600
    assert told["seconds"] == pytest.approx(6.0)
    assert told["longest_s"] == pytest.approx(4.0)


def test_a_block_that_was_dropped_was_not_delivered() -> None:
    times = DeliveryTimes()
    times.begin(key(1), 100, 1.0)
    times.end(key(1), 2.0, delivered=False)
    assert times.end(key(1), 3.0) is None
    (told,) = times.facts()
    assert (told["blocks"], told["bytes"], told["longest_s"]) == (0, 0, 0.0)


def test_jobs_and_layers_are_told_apart_and_old_ones_forgotten() -> None:
    times = DeliveryTimes()
    for one in (key(1), key(1, layer=1), key(1, job="job-2")):
        times.begin(one, 1, 0.0)
        times.end(one, 1.0)
    assert [(told["job"], told["layer"]) for told in times.facts()] == [
        ("job-1", 0),
        ("job-1", 1),
        ("job-2", 0),
    ]
    for number in range(3, 10):
        times.begin(key(1, job=f"job-{number}"), 1, 2.0)
    assert [told["job"] for told in times.facts()] == [f"job-{n}" for n in range(2, 10)]


def test_what_an_earlier_process_owed_is_not_timed() -> None:
    assert DeliveryTimes().end(key(1), 5.0) is None


def test_a_depot_times_what_it_was_given_until_the_peer_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    header = header_of(0, 1)
    block = header.key
    depot = BlockDepot(tmp_path, 0)
    size_bytes = depot.send_block(block, frames_of(header))
    with caplog.at_level(logging.INFO, logger="retexo_fl.channels.depot"):
        depot.delivered(block)
        depot.delivered(block)
    (told,) = depot.deliveries()
    assert (told["job"], told["layer"], told["blocks"]) == (header.job, header.layer, 1)
    assert told["bytes"] == size_bytes
    assert 0 < told["longest_s"] <= told["seconds"]
    assert len(caplog.records) == 1
    assert f"delivered job={header.job} layer=0 blocks=1 bytes={size_bytes}" in caplog.text
    depot.forget_job(header.job, 0)
    assert depot.deliveries() == [told]


def test_what_a_depot_drops_is_owed_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = iter([1.0, 2.0, 500.0, 504.0])
    monkeypatch.setattr(block_depot, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    depot, header = BlockDepot(tmp_path, 0), header_of(0, 1)
    depot.send_block(header.key, frames_of(header))
    depot.forget_job(header.job, 0)
    depot.send_block(header.key, frames_of(header))
    depot.delivered(header.key)
    (told,) = depot.deliveries()
    assert (told["blocks"], told["seconds"], told["longest_s"]) == (1, 1.0 + 4.0, 4.0)
