"""A block whose header this end does not know is held to its key, its order and its checksums."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.exchange.frames import HEADER_BYTES
from retexo_fl.exchange.link_check import BlockCheck
from tests.unit.exchange.links import block_header, frames_of, key_of

HEADER = block_header(0, 1, layer=2, rows=12)
FRAMES = frames_of(HEADER)


def test_a_whole_block_is_accepted_and_its_last_frame_told() -> None:
    check = BlockCheck(key_of(HEADER))
    assert len(FRAMES) > 4
    assert [check.accept(frame) for frame in FRAMES] == [False] * (len(FRAMES) - 1) + [True]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("job", "job-2"),
        ("layer", 3),
        ("weights_digest", b"v" * 32),
        ("sender", 5),
        ("receiver", 5),
    ],
)
def test_hello_of_another_block_is_refused(name: str, value: object) -> None:
    check = BlockCheck(replace(key_of(HEADER), **{name: value}))  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError, match=f"HELLO: {name} is not that of"):
        check.accept(FRAMES[0])


@pytest.mark.parametrize("second", [0, 2, -1])
def test_a_frame_out_of_order_is_refused(second: int) -> None:
    check = BlockCheck(key_of(HEADER))
    check.accept(FRAMES[0])
    with pytest.raises(RemoteProtocolError, match="sequence is"):
        check.accept(FRAMES[second])


@pytest.mark.parametrize("altered", [1, 2, len(FRAMES) - 1])
def test_an_altered_frame_is_refused_the_last_one_too(altered: int) -> None:
    check = BlockCheck(key_of(HEADER))
    for frame in FRAMES[:altered]:
        check.accept(frame)
    changed = bytearray(FRAMES[altered])
    changed[HEADER_BYTES - 1] ^= 1  # of the checksum, which a frame without rows has as well
    with pytest.raises(RemoteProtocolError, match="checksum differs"):
        check.accept(changed)


def test_frames_of_a_block_with_another_hello_do_not_fit_in() -> None:
    check = BlockCheck(key_of(HEADER))
    check.accept(FRAMES[0])
    other = frames_of(replace(HEADER, plan_digest=b"q" * 32))
    with pytest.raises(RemoteProtocolError, match="checksum differs"):
        check.accept(other[1])
