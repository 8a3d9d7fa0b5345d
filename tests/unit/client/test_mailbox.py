"""An exchange goes on without a peer whose rows are none, and says which peer that is."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from retexo_fl.channels import MemoryChannel
from retexo_fl.client.api import Ticket, chain_digest
from retexo_fl.client.mailbox import Mailbox
from retexo_fl.client.peer_exchange import StageExchange
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.vector_carrier import VectorCarrier
from retexo_fl.config import make_config
from retexo_fl.errors import ExchangeIncomplete
from retexo_fl.exchange import BlockHeader, EncodedBlock, Vectors, encode_block, to_dense
from retexo_fl.exchange.frames import encode_frame, parse_frame
from retexo_fl.graph import BoundaryPlan
from retexo_fl.ledger import Traffic

TICKET = Ticket(job="job-1", attempt=1, weights_digest=chain_digest(b"", None))
WIDTH = 3


def test_a_peer_whose_rows_are_none_is_named_and_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    channel = MemoryChannel()
    parts = make_parts(make_config({"clients": 3}))
    plans = [BoundaryPlan.from_partition(part) for part in parts]
    rows = [np.ones((part.num_inner, WIDTH), np.float32) for part in parts]
    Mailbox(1, "job-1", plans[1], channel).send(TICKET, rows[1])
    _send_nothing_finite(channel, plans[2])
    watched: list[tuple[int, int, Traffic, str]] = []
    mailbox = Mailbox(0, "job-1", plans[0], channel)
    mailbox.watch = lambda *told: watched.append(told)
    with caplog.at_level(logging.WARNING):
        first = mailbox.receive(TICKET, WIDTH, "float32")
        again = mailbox.receive(TICKET, WIDTH, "float32")
    assert mailbox.missing_peers() == (2,)
    (told,) = (record.getMessage() for record in caplog.records)
    assert re.match("refused: .*layer 0 from client 2 to 0, frame 1: .*NaN.*expected finite", told)
    assert (first.boundary.messages, again) == (1, Traffic())
    assert watched == [(0, 1, first, "in")]
    with pytest.raises(ExchangeIncomplete, match="2"):
        mailbox.vectors(WIDTH, "float32", closed_without=())
    vectors = to_dense(mailbox.vectors(WIDTH, "float32", closed_without=(2,)))
    for peer, value in ((1, 1.0), (2, 0.0)):
        assert (vectors[plans[0].peer(peer).receive.slots] == value).all()


@pytest.mark.parametrize("carried", [(), (1,), (1, 2)])
def test_blocks_are_encoded_once_and_what_is_carried_is_sent_again(
    carried: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, part = MemoryChannel(), make_parts(make_config({"clients": 3}))[0]
    sent: list[int] = []
    encoded: list[int] = []

    def encode(header: BlockHeader, rows: Vectors, *, codec: str) -> EncodedBlock:
        encoded.append(header.receiver)
        return encode_block(header, rows, codec=codec)

    def send(headers: Mapping[int, BlockHeader], *_: object, **__: object) -> dict[int, Traffic]:
        sent.extend(headers)
        return dict.fromkeys(carried, Traffic())

    monkeypatch.setattr("retexo_fl.client.peer_exchange.encode_block", encode)
    plan = BoundaryPlan.from_partition(part)
    mailbox = Mailbox(0, "job-1", plan, channel, codec="fixed")
    mailbox.datagrams = cast(VectorCarrier, SimpleNamespace(reaches=lambda peer: True, send=send))
    rows = np.ones((part.num_inner, WIDTH), np.float32)
    for _ in range(2):
        mailbox.send(TICKET, rows)
    # Datagrams may be lost, so a repeated request sends them again; and blocks beside them.
    times = 2 if carried else 1
    assert sent == [1, 2] * times
    assert encoded == [peer for peer in (1, 2) if peer not in carried] * times


def _send_nothing_finite(channel: MemoryChannel, plan: BoundaryPlan) -> None:
    """Send client 0 a block of client 2 with sound frames and no sound value."""
    exchange = StageExchange(
        job="job-1",
        layer=0,
        weights_digest=TICKET.weights_digest,
        client=2,
        width=WIDTH,
        dtype="float32",
    )
    block = exchange.outgoing(plan.peer(0))
    honest = np.ones((block.num_vectors, WIDTH), np.float32)
    hello, rows, done = encode_block(block, honest, codec="dense").frames
    payload = np.full_like(honest, np.nan).tobytes()
    forged = encode_frame(parse_frame(rows).header, payload, block_seed=block.seed())
    channel.send_block(block.key, (hello, forged, done))
