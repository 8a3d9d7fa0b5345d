"""Notices and grants: what crosses is what was said, and nothing else is believed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.additions.kernel_path.carrying.control import (
    MOST_TICKETS,
    Book,
    Grant,
    Notice,
    Way,
    control_frames,
    grant_header,
    notice_header,
)
from retexo_fl.additions.kernel_path.carrying.traffic import grant_bytes
from retexo_fl.client.vector_carrier import (
    CONTROL_LAYERS,
    MOST_GRANTS,
    MOST_STREAMS,
    is_control,
    split_layer,
)
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.exchange import BlockHeader, decode_block, to_dense

_HEADER = BlockHeader(
    job="job-0123456789ab",
    layer=1,
    sender=3,
    receiver=8,
    weights_digest=bytes(32),
    num_edges=9,
    plan_digest=bytes(range(32)),
    num_vectors=4,
    width=64,
    dtype="float32",
)


def _crossed(header: BlockHeader, frames: tuple[bytes, ...]) -> np.ndarray:
    decoded = decode_block(header, b"".join(frames))
    assert decoded is not None
    return to_dense(decoded[0])


@given(
    exponent=st.integers(-104, 126),
    digest=st.binary(min_size=16, max_size=16),
    stored=st.integers(0, 2**40),
    streams=st.sampled_from([[0, 0, 0, 0], [0, 1, 0, 2], [1, 0, 1, 1]]),
    by_ticket=st.booleans(),
    forms=st.none() | st.lists(st.integers(0, 18) | st.integers(128, 146), min_size=4, max_size=4),
)
def test_a_notice_crosses_whole(
    exponent: int,
    digest: bytes,
    stored: int,
    streams: list[int],
    by_ticket: bool,
    forms: list[int] | None,
) -> None:
    by_ticket = by_ticket and forms is None
    sent = Notice(
        exponent=exponent,
        packet_cells=22,
        stored=stored,
        digest=digest,
        streams=np.array(streams, dtype=np.int64),
        by_ticket=by_ticket,
        forms=None if forms is None else np.array(forms, dtype=np.uint8),
    )
    header = notice_header(_HEADER)

    came = Notice.read(_crossed(header, control_frames(header, sent.numbers())), 3)

    np.testing.assert_array_equal(came.streams, sent.streams)
    assert (came.exponent, came.stored, came.digest) == (exponent, stored, digest)
    assert (came.num_streams, came.by_ticket) == (max(streams) + 1, by_ticket)
    assert (None if came.forms is None else came.forms.tolist()) == forms


@pytest.mark.parametrize("count", [1, 5, 6, 7, 12, 13, 600])
def test_a_notice_has_a_form_for_each_vector(count: int) -> None:
    forms = (np.arange(count) % 19).astype(np.uint8)
    sent = Notice(
        exponent=3,
        packet_cells=22,
        stored=4,
        digest=bytes(16),
        streams=np.zeros(count, np.int64),
        forms=forms,
    )
    came = Notice.read(sent.numbers(), 3)
    assert len(came.streams) == count
    np.testing.assert_array_equal(came.forms, forms)


@pytest.mark.parametrize(
    ("place", "value"), [(9, 1), (10, 0), (10, 2), (-1, 2.0**48), (-1, 19), (-1, 256.0 * 147)]
)
def test_a_notice_of_forms_that_are_none_is_refused(place: int, value: float) -> None:
    numbers = Notice(
        exponent=3,
        packet_cells=22,
        stored=4,
        digest=bytes(16),
        streams=np.zeros(4, np.int64),
        forms=np.full(4, 130, dtype=np.uint8),
    ).numbers()
    numbers[0, place] = value

    with pytest.raises(RemoteProtocolError, match="client 3"):
        Notice.read(numbers, 3)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), min_size=1))
def test_a_grant_crosses_whole_and_is_as_long_as_any(streams: list[tuple[int, int]]) -> None:
    sent = Grant(way=Way.DATAGRAMS, streams=tuple(streams[:64]))
    number = len(sent.streams)
    header = grant_header(_HEADER, 5, number)
    frames = control_frames(header, sent.numbers(number), codec="dense")

    assert Grant.read(_crossed(header, frames), 8) == sent
    assert sum(map(len, frames)) == grant_bytes(len(_HEADER.job), number)
    book = Book(secret=bytes(range(16)), places=tuple(range(2**16 - MOST_TICKETS, 2**16)))
    for held in (book, replace(book, places=(7,))):
        lasting = replace(sent, book=held)
        frames = control_frames(header, lasting.numbers(number), codec="dense")
        assert Grant.read(_crossed(header, frames), 8) == lasting
        assert sum(map(len, frames)) == grant_bytes(len(_HEADER.job), number)
    refused = Grant(way=Way.BLOCK)
    frames = control_frames(header, refused.numbers(number), codec="dense")
    assert Grant.read(_crossed(header, frames), 8) == refused
    assert sum(map(len, frames)) == grant_bytes(len(_HEADER.job), number)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((0, 1), (1, 0), (1, 5000), (2, 0), (2, 54), (2, 0.5), (3, 2), (3, 0), (5, 2.0**32)),
        *((4, -1), (4, 2.0**53), (9, 2)),
    ],
)
def test_a_notice_that_says_what_none_says_is_refused(place: int, value: float) -> None:
    numbers = Notice(
        exponent=3, packet_cells=22, stored=4, digest=bytes(16), streams=np.zeros(4, np.int64)
    ).numbers()
    numbers[0, place] = value

    with pytest.raises(RemoteProtocolError, match="client 3"):
        Notice.read(numbers, 3)


def test_a_notice_has_no_more_streams_than_a_grant_may_name() -> None:
    for count in (MOST_STREAMS, MOST_STREAMS + 1):
        told = Notice(
            exponent=3, packet_cells=22, stored=4, digest=bytes(16), streams=np.arange(count)
        ).numbers()
        if count == MOST_STREAMS:
            assert Notice.read(told, 3).num_streams == count
        else:
            with pytest.raises(RemoteProtocolError, match="client 3: a notice"):
                Notice.read(told, 3)


@pytest.mark.parametrize(
    ("place", "value"), [(0, 9), (1, 0), (1, 6), (2, 25), (3, 2.0**32), (16, 2.0**32), (18, 1.5)]
)
def test_a_grant_that_says_what_none_says_is_refused(place: int, value: float) -> None:
    numbers = Grant(way=Way.DATAGRAMS, streams=((1, 2),)).numbers(1)
    numbers[0, place] = value

    with pytest.raises(RemoteProtocolError, match="client 8"):
        Grant.read(numbers, 8)


def test_control_mailboxes_differ_from_blocks_and_each_other() -> None:
    keys = [_HEADER.key, notice_header(_HEADER).key]
    keys += [grant_header(_HEADER, number, 1).key for number in range(MOST_GRANTS)]

    assert len(set(keys)) == len(keys)
    assert [split_layer(key.layer)[0] for key in keys] == [1] * len(keys)
    assert [is_control(split_layer(key.layer)[1]) for key in keys] == [False] + [True] * (
        len(keys) - 1
    )
    assert not is_control(split_layer(CONTROL_LAYERS * (2 + MOST_GRANTS))[1])
    assert keys[1].sender == 3
    assert keys[2].sender == 8
