"""A depot loses nothing that was whole, whatever ends its process, and keeps nothing unchecked."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.channels import BlockKey, Channel
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.errors import (
    ChannelUnavailable,
    LocalProtocolError,
    PartitionError,
    PeerRefused,
    RemoteProtocolError,
)
from retexo_fl.exchange.link.messages import Offer
from tests.support.peer_networks import Plan, frames_of, header_of

HEADER = header_of(1, 0, rows=40)
KEY = HEADER.key
FRAMES = frames_of(HEADER, frame_bytes=2048)


def _receiver(folder: Path, rows: int = 40) -> BlockDepot:
    depot = BlockDepot(folder, 0)
    depot.admit_job(KEY.job, Plan(rows))
    return depot


def _sender(folder: Path) -> BlockDepot:
    depot = BlockDepot(folder, 1)
    depot.send_block(KEY, FRAMES)
    return depot


def _arrive(depot: BlockDepot, frames: tuple[bytes, ...] = FRAMES) -> None:
    (offer,) = _offers(frames)
    first = depot.begin(offer)
    assert first is not None
    for frame in frames[first:]:
        depot.add_frame(offer.key, frame)


def _offers(frames: tuple[bytes, ...] = FRAMES) -> list[Offer]:
    size_bytes = sum(map(len, frames))
    return [Offer(key=KEY, num_frames=len(frames), num_bytes=size_bytes, is_eager=True)]


def test_a_depot_is_a_channel(tmp_path: Path) -> None:
    assert isinstance(BlockDepot(tmp_path, 0), Channel)


def test_a_sent_block_is_owed_until_delivered_over_restarts(tmp_path: Path) -> None:
    depot = BlockDepot(tmp_path, 1)
    size_bytes = sum(map(len, FRAMES))
    assert depot.send_block(KEY, FRAMES) == size_bytes
    assert depot.send_block(KEY, FRAMES) == 0
    again = BlockDepot(tmp_path, 1)
    assert again.owed()[0].num_blocks == 1
    assert again.owed()[0].num_bytes == size_bytes
    (offer,) = again.offers(0)
    assert (offer.num_frames, offer.num_bytes, offer.is_eager) == (len(FRAMES), size_bytes, False)
    assert [again.read_frame(KEY, n) for n in range(len(FRAMES))] == list(FRAMES)
    again.delivered(KEY)
    for last in (again, BlockDepot(tmp_path, 1)):
        assert not last.owed()
        assert last.send_block(KEY, FRAMES) == 0
    last.delivered(KEY, is_there=False)
    assert BlockDepot(tmp_path, 1).num_owed(0)


def test_a_block_is_offered_eagerly_once(tmp_path: Path) -> None:
    depot = _sender(tmp_path)
    assert [offer.is_eager for offer in depot.offers(0)] == [True]
    depot.offered(KEY)
    assert [offer.is_eager for offer in depot.offers(0)] == [False]
    # Its job may have ended by the time that its offer has left.
    depot.forget_job(KEY.job, 1)
    depot.offered(KEY)
    assert not depot.offers(0)


def test_only_blocks_of_this_client_can_be_sent(tmp_path: Path) -> None:
    depot = BlockDepot(tmp_path, 1)
    with pytest.raises(LocalProtocolError, match="client 1 .* block of client 2"):
        depot.send_block(replace(KEY, sender=2), FRAMES)
    assert not list(tmp_path.rglob("*.frames"))


@settings(max_examples=40, deadline=None)
@given(kept=st.integers(0, sum(map(len, FRAMES))), garbage=st.binary(max_size=40))
def test_a_torn_write_costs_the_torn_frame(
    tmp_path_factory: pytest.TempPathFactory, kept: int, garbage: bytes
) -> None:
    folder = tmp_path_factory.mktemp("depot")
    _arrive(_receiver(folder))
    (path,) = (folder / "inbox").rglob("*.frames")
    stream = path.read_bytes()
    path.write_bytes(stream[:kept] + garbage)
    depot = _receiver(folder)
    whole = 0
    while whole < len(FRAMES) and sum(map(len, FRAMES[: whole + 1])) <= kept:
        whole += 1
    assert depot.receive_block(KEY) == (b"".join(FRAMES[:whole]) or None)
    is_whole = whole == len(FRAMES)
    assert depot.wait_for([KEY], 0.0) == (frozenset() if is_whole else {KEY})
    assert depot.asks(1) == (frozenset() if is_whole else {KEY})
    if not is_whole:
        assert depot.begin(_offers()[0]) == whole
        _arrive(depot)
    assert depot.receive_block(KEY) == stream
    assert depot.begin(_offers()[0]) is None


def test_files_that_were_half_written_are_removed(tmp_path: Path) -> None:
    _sender(tmp_path)
    (path,) = tmp_path.rglob("*.frames")
    beside = path.with_name(path.name + ".77.part")
    beside.write_bytes(b"half")
    path.write_bytes(path.read_bytes()[:-1])
    depot = BlockDepot(tmp_path, 1)
    assert not depot.owed()
    assert not list(tmp_path.rglob("*.part"))
    assert depot.send_block(KEY, FRAMES)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_damaged_block_to_send_is_dropped_by_name(tmp_path: Path, restarted: bool) -> None:
    depot = _sender(tmp_path)
    assert depot.read_frame(KEY, 0) == FRAMES[0]
    (path,) = tmp_path.rglob("*.frames")
    _damage(path, 2500)
    if restarted:
        depot = BlockDepot(tmp_path, 1)
    with pytest.raises(ChannelUnavailable, match=r"\.frames for client 0: frame 2 "):
        depot.read_frame(KEY, 2)
    assert depot.read_frame(KEY, 2) is None
    assert depot.send_block(KEY, FRAMES)


def test_a_block_that_was_only_touched_is_checked_and_sent(tmp_path: Path) -> None:
    depot = _sender(tmp_path)
    (path,) = tmp_path.rglob("*.frames")
    os.utime(path, ns=(0, 0))
    assert [depot.read_frame(KEY, number) for number in range(len(FRAMES))] == list(FRAMES)


@pytest.mark.parametrize("place", [100, 2500, -1])
def test_a_byte_that_changes_in_a_whole_block_is_noticed(tmp_path: Path, place: int) -> None:
    depot = _receiver(tmp_path)
    _arrive(depot)
    (path,) = (tmp_path / "inbox").rglob("*.frames")
    _damage(path, place)
    stream = depot.receive_block(KEY) or b""
    assert b"".join(FRAMES).startswith(stream)
    assert len(stream) < len(b"".join(FRAMES))
    assert depot.asks(1) == {KEY}


def test_a_block_damaged_between_two_frames_begins_anew(tmp_path: Path) -> None:
    depot = _receiver(tmp_path)
    depot.begin(_offers()[0])
    for frame in FRAMES[:2]:
        depot.add_frame(KEY, frame)
    (path,) = (tmp_path / "inbox").rglob("*.frames")
    _damage(path, 50)
    with pytest.raises(RemoteProtocolError, match="frame 0: "):
        depot.add_frame(KEY, FRAMES[2])
    assert depot.begin(_offers()[0]) == 0


def _damage(path: Path, place: int) -> None:
    """Change a byte, later than the file was written by the file system's clock."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))


def test_what_damages_a_whole_block_is_noticed_and_asked_for(tmp_path: Path) -> None:
    depot = _receiver(tmp_path)
    _arrive(depot)
    assert not depot.asks(1)
    woken = threading.Event()
    depot.on_outgoing(woken.set)
    (path,) = (tmp_path / "inbox").rglob("*.frames")
    path.unlink()
    assert depot.receive_block(KEY) is None
    assert woken.is_set()
    assert depot.asks(1) == {KEY}
    _arrive(depot)
    assert depot.receive_block(KEY) == b"".join(FRAMES)


def test_frames_are_checked_before_they_are_kept(tmp_path: Path) -> None:
    depot = _receiver(tmp_path)
    assert depot.begin(_offers()[0]) == 0
    damaged = bytearray(FRAMES[0])
    damaged[-1] ^= 1
    with pytest.raises(RemoteProtocolError, match="checksum differs"):
        depot.add_frame(KEY, damaged)
    assert depot.receive_block(KEY) is None
    assert depot.begin(_offers()[0]) == 0
    depot.add_frame(KEY, FRAMES[0])
    with pytest.raises(RemoteProtocolError, match="sequence is 2, expected 1"):
        depot.add_frame(KEY, FRAMES[2])
    assert depot.receive_block(KEY) == FRAMES[0]
    assert depot.senders(KEY.job, 0, KEY.weights_digest, receiver=0) == {1}


def test_what_no_gate_lets_in_is_refused(tmp_path: Path) -> None:
    depot = BlockDepot(tmp_path, 0)
    (offer,) = _offers()
    with pytest.raises(PeerRefused, match="job: client 0 .*'job-1'"):
        depot.begin(offer)
    depot.admit_job("job-1", Plan(40, max_bytes=100))
    with pytest.raises(PeerRefused, match=r"oversize: client 1 .*\d bytes, expected .* 100$"):
        depot.begin(offer)
    with pytest.raises(PeerRefused, match="block of client 1 .*dropped"):
        depot.add_frame(KEY, FRAMES[0])
    assert not list(tmp_path.rglob("*.frames"))


def test_a_block_that_grows_beyond_what_was_admitted_is_refused(tmp_path: Path) -> None:
    depot = BlockDepot(tmp_path, 0)
    most = len(FRAMES[0]) + len(FRAMES[1])
    depot.admit_job("job-1", Plan(40, max_bytes=most))
    depot.begin(replace(_offers()[0], num_bytes=most))
    depot.add_frame(KEY, FRAMES[0])
    depot.add_frame(KEY, FRAMES[1])
    with pytest.raises(PeerRefused, match=f"more than {most} bytes"):
        depot.add_frame(KEY, FRAMES[2])


def test_of_another_plan_only_hello_is_kept_over_restarts(tmp_path: Path) -> None:
    header = replace(HEADER, num_edges=4)
    frames = frames_of(header, frame_bytes=2048)
    depot = _receiver(tmp_path)
    depot.begin(_offers(frames)[0])
    with pytest.raises(PartitionError, match="client 0 .* 3 edges .*client 1.* 4"):
        depot.add_frame(KEY, frames[0])
    with pytest.raises(PartitionError):
        depot.add_frame(KEY, frames[1])
    again = _receiver(tmp_path)
    with pytest.raises(PartitionError):
        again.begin(_offers(frames)[0])
    assert again.receive_block(KEY) == frames[0]


def test_blocks_of_an_earlier_plan_come_again(tmp_path: Path) -> None:
    depot = _receiver(tmp_path)
    depot.begin(_offers()[0])
    depot.add_frame(KEY, FRAMES[0])
    depot.add_frame(KEY, FRAMES[1])
    other = _receiver(tmp_path, rows=8)
    assert other.begin(_offers()[0]) == 0
    assert other.receive_block(KEY) is None


@pytest.mark.parametrize("job", [".", "..", "a/b", "x" * 64, "~*? [0]%2E", "." * 64])
def test_every_name_of_a_job_is_a_folder_of_its_own(tmp_path: Path, job: str) -> None:
    header = replace(HEADER, job=job)
    key, frames = header.key, frames_of(header)
    depot = _sender(tmp_path / "depot")
    depot.send_block(key, frames)
    again = BlockDepot(tmp_path / "depot", 1)
    assert again.jobs() == {job, "job-1"}
    assert again.read_frame(key, 1) == frames[1]
    again.forget_job(job, 1)
    assert BlockDepot(tmp_path / "depot", 1).jobs() == {"job-1"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["depot"]


def test_forgetting_a_job_drops_both_directions_and_its_gate(tmp_path: Path) -> None:
    depot = _receiver(tmp_path)
    _arrive(depot)
    header = header_of(0, 1)
    depot.send_block(header.key, frames_of(header))
    depot.forget_job("job-1", 1)
    assert depot.num_owed(1)
    depot.forget_job("job-1", 0)
    depot.forget_job("job-1", 0)
    assert not depot.owed()
    assert not depot.knows_job("job-1")
    assert depot.receive_block(KEY) is None
    assert not BlockDepot(tmp_path, 0).jobs()


def test_a_block_of_which_nothing_has_come_can_be_forgotten(tmp_path: Path) -> None:
    depot = _receiver(tmp_path)
    (offer,) = _offers()
    assert depot.begin(offer) == 0
    depot.forget_job(KEY.job, 0)
    assert not depot.knows_job(KEY.job)


def test_dropped_blocks_leave_others_alone(tmp_path: Path) -> None:
    depot = _sender(tmp_path)
    other = header_of(1, 0, layer=1)
    depot.send_block(other.key, frames_of(other))
    depot.drop_blocks("job-2", [KEY])
    depot.drop_blocks("job-1", [KEY, replace(KEY, layer=9)])
    assert [offer.key for offer in BlockDepot(tmp_path, 1).offers(0)] == [other.key]


def test_waiting_ends_when_the_last_block_is_whole(tmp_path: Path) -> None:
    depot = _receiver(tmp_path)
    later = threading.Timer(0.05, _arrive, (depot,))
    later.start()
    assert depot.wait_for([KEY], 20.0) == frozenset()
    later.join()
    other = replace(KEY, layer=1)
    assert depot.wait_for([KEY, other], 0.0) == {other}


def test_a_peer_is_awaited_until_all_that_is_looked_for_has_come(tmp_path: Path) -> None:
    one, two = _receiver(tmp_path / "one"), _receiver(tmp_path / "two")
    other = replace(KEY, layer=1)
    for depot, keys, left in ((one, [KEY], set[BlockKey]()), (two, [KEY, other], {other})):
        depot.wait_for(keys, 0.0)
        assert depot.awaits(1)
        _arrive(depot)
        assert depot.asks(1) == left
        assert depot.awaits(1) == bool(left)


@contextmanager
def _small_files(most_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes: a write fails as on a full disk."""
    signal = pytest.importorskip("signal")
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with _limit("RLIMIT_FSIZE", most_bytes):
            yield
    finally:
        signal.signal(signal.SIGXFSZ, handler)


@contextmanager
def _limit(name: str, most: int) -> Iterator[None]:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(getattr(resource, name))
    resource.setrlimit(getattr(resource, name), (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(getattr(resource, name), before)


def test_what_cannot_be_read_now_stays_in_the_outbox(tmp_path: Path) -> None:
    depot = _sender(tmp_path)
    with (
        _limit("RLIMIT_NOFILE", 3),
        pytest.raises(ChannelUnavailable, match=r"read for client 0 \(Too many open files\)"),
    ):
        depot.read_frame(KEY, 1)
    assert depot.num_owed(0)
    assert depot.read_frame(KEY, 1) == FRAMES[1]


def test_a_mark_that_cannot_be_kept_costs_one_offer_on_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    depot = _sender(tmp_path)
    with _limit("RLIMIT_NOFILE", 3):
        depot.delivered(KEY)
    assert re.search(r"outbox: .*client 0 .*\(Too many open files\)", caplog.text)
    assert not depot.num_owed(0)
    again = BlockDepot(tmp_path, 1)
    assert again.num_owed(0)
    again.delivered(KEY)
    assert not BlockDepot(tmp_path, 1).num_owed(0)


def test_a_frame_beyond_the_end_of_a_block_is_not_there(tmp_path: Path) -> None:
    assert _sender(tmp_path).read_frame(KEY, len(FRAMES)) is None


def test_a_shorter_block_of_the_same_name_begins_anew(tmp_path: Path) -> None:
    depot = _receiver(tmp_path)
    depot.begin(_offers()[0])
    for frame in FRAMES[:-1]:
        depot.add_frame(KEY, frame)
    shorter = frames_of(HEADER)
    assert len(shorter) < len(FRAMES) - 1
    _arrive(depot, shorter)
    assert depot.receive_block(KEY) == b"".join(shorter)


def test_what_is_gone_from_a_block_that_arrives_comes_again(tmp_path: Path) -> None:
    depot = _receiver(tmp_path)
    depot.begin(_offers()[0])
    depot.add_frame(KEY, FRAMES[0])
    depot.add_frame(KEY, FRAMES[1])
    (path,) = (tmp_path / "inbox").rglob("*.frames")
    path.write_bytes(FRAMES[0])
    assert depot.begin(_offers()[0]) == 1
    path.unlink()
    assert depot.begin(_offers()[0]) == 0
    _arrive(depot)
    assert depot.receive_block(KEY) == b"".join(FRAMES)


def test_a_look_between_offer_and_first_frame_refuses_nothing(tmp_path: Path) -> None:
    depot = _receiver(tmp_path)
    assert depot.begin(_offers()[0]) == 0
    assert depot.receive_block(KEY) is None
    for frame in FRAMES:
        depot.add_frame(KEY, frame)
    assert depot.receive_block(KEY) == b"".join(FRAMES)


def test_a_job_forgotten_while_it_is_asked_begins_nothing(tmp_path: Path) -> None:
    depot = _receiver(tmp_path)
    (offer,) = _offers()
    admission = depot.admission(offer)
    depot.forget_job(KEY.job, 0)
    with pytest.raises(PeerRefused, match="^job: client 0 .*job-1"):
        depot.begin(offer, admission)
    assert not depot.jobs()


def test_a_full_disk_is_named_and_leaves_nothing_half(tmp_path: Path) -> None:
    sender, receiver = BlockDepot(tmp_path / "out", 1), _receiver(tmp_path / "in")
    receiver.begin(_offers()[0])
    receiver.add_frame(KEY, FRAMES[0])
    with _small_files(1000):
        with pytest.raises(ChannelUnavailable, match=r"written .*client 0 \(File too large\)"):
            sender.send_block(KEY, FRAMES)
        with pytest.raises(ChannelUnavailable, match=r"client 1 .*written \(File too large\)"):
            receiver.add_frame(KEY, FRAMES[1])
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert receiver.receive_block(KEY) == FRAMES[0]
    assert sender.send_block(KEY, FRAMES)
    _arrive(receiver)
    assert receiver.receive_block(KEY) == b"".join(FRAMES)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ChannelUnavailable, match="the folder could not be used"):
        BlockDepot(tmp_path / "file" / "depot", 0)
    BlockDepot(tmp_path / "mine", 0)
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700


def test_keys_of_other_receivers_are_not_here(tmp_path: Path) -> None:
    depot = _receiver(tmp_path)
    other: BlockKey = replace(KEY, receiver=3)
    assert depot.receive_block(other) is None
    assert not depot.awaits(1)
    assert depot.senders("job-1", 0, KEY.weights_digest, receiver=3) == frozenset()
