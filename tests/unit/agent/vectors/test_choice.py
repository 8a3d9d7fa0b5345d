"""What an agent that may choose takes as datagrams, and what as blocks."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from retexo_fl.agent.vectors.choice import LARGE_BYTES, WayChoice
from retexo_fl.agent.vectors.control import Notice, Way
from retexo_fl.errors import ChannelUnavailable

_WIDTH = 64


def _notice(vectors: int, *, stored: int | None = None, packet_cells: int = 22) -> Notice:
    return Notice(
        exponent=3,
        packet_cells=packet_cells,
        stored=vectors * _WIDTH if stored is None else stored,
        digest=bytes(16),
        streams=np.zeros(vectors, dtype=np.int64),
    )


def _way(choice: WayChoice, notice: Notice) -> Way:
    return choice.ways({1: notice}, _WIDTH, max_cells=22)[1]


def test_who_may_not_choose_takes_everything_as_datagrams() -> None:
    choice = WayChoice(automatic=False)
    large = LARGE_BYTES // (4 * _WIDTH)

    assert _way(choice, _notice(large)) is Way.DATAGRAMS
    assert _way(choice, _notice(50, stored=1)) is Way.DATAGRAMS


def test_what_is_large_or_sparse_comes_as_blocks_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    choice = WayChoice(automatic=True)
    large = LARGE_BYTES // (4 * _WIDTH)

    with caplog.at_level(logging.INFO):
        assert _way(choice, _notice(large - 1)) is Way.DATAGRAMS
        assert _way(choice, _notice(large)) is Way.BLOCK
        assert _way(choice, _notice(large)) is Way.BLOCK
        assert _way(choice, _notice(50, stored=50)) is Way.BLOCK
    assert len([record for record in caplog.records if "instead_of" in record.message]) == 2


@pytest.mark.parametrize("automatic", [True, False])
def test_packets_longer_than_any_that_is_taken_come_as_blocks(automatic: bool) -> None:
    assert _way(WayChoice(automatic=automatic), _notice(5, packet_cells=23)) is Way.BLOCK


def test_no_room_is_an_error_only_where_datagrams_were_demanded() -> None:
    error = ChannelUnavailable("no cells are left")
    WayChoice(automatic=True).no_room(error)
    with pytest.raises(ChannelUnavailable, match="no cells are left; raise datagram-memory-mib"):
        WayChoice(automatic=False).no_room(error)
