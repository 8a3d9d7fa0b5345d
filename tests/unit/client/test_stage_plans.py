"""Before a stage cross the rows that it reads, and no others: of a graph with types, fewer."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.channels import MemoryChannel
from retexo_fl.client.api import Ticket
from retexo_fl.client.mailbox import Mailbox
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.exchange import Vectors, to_dense
from retexo_fl.graph import BoundaryPlan, GraphPartition
from tests.support.typed_graphs import BANK

WIDTH = 3
STAGE = 1
TICKET = Ticket(job="job-1", attempt=1, stage=STAGE, weights_digest=b"1" * 32)


@pytest.fixture(scope="module", params=["random", "attribute:type"])
def parts(request: pytest.FixtureRequest) -> list[GraphPartition]:
    keys = {"dataset": BANK["dataset"], "model": "rel-sage", "clients": 3}
    return make_parts(make_config({**keys, "partitioner": request.param}))


def reading(part: GraphPartition, kinds: tuple[int, ...]) -> dict[int, set[bytes]]:
    """Return, by peer, the keys of boundary nodes that nodes of some types read, edge by edge."""
    found: dict[int, set[bytes]] = {}
    assert part.kinds is not None
    for row in range(part.num_inner):
        for end in part.indices[part.indptr[row] : part.indptr[row + 1]]:
            slot = int(end) - part.num_inner
            if slot >= 0 and int(part.kinds[row]) in kinds:
                peer = int(part.boundary_owners[slot])
                found.setdefault(peer, set()).add(part.boundary_keys[slot])
    return found


def narrowed(parts: list[GraphPartition], kinds: tuple[int, ...]) -> list[BoundaryPlan]:
    return [BoundaryPlan.from_partition(part).into(part, kinds) for part in parts]


@pytest.mark.parametrize("kinds", [(0,), (1,), (2, 0), (0, 1, 2), ()])
def test_both_ends_know_which_rows_are_read(
    parts: list[GraphPartition], kinds: tuple[int, ...]
) -> None:
    plans = narrowed(parts, kinds)
    for part, plan in zip(parts, plans, strict=True):
        read, whole = reading(part, kinds), BoundaryPlan.from_partition(part)
        assert plan.num_slots == whole.num_slots == part.num_boundary
        assert [peer.peer for peer in plan.peers] == [peer.peer for peer in whole.peers]
        for peer in plan.peers:
            received = part.boundary_keys[peer.receive.slots].tolist()
            assert received == sorted(read.get(peer.peer, set()))
            there = plans[peer.peer].peer(part.client)
            assert parts[peer.peer].node_keys[there.send.rows].tolist() == received
            assert there.digest == peer.digest
    for part, plan in zip(parts, narrowed(parts, (0, 1, 2)), strict=True):
        assert plan.num_send == BoundaryPlan.from_partition(part).num_send


def mailboxes(
    parts: list[GraphPartition], channel: MemoryChannel, codec: str = "lossless"
) -> list[Mailbox]:
    plans = [BoundaryPlan.from_partition(part) for part in parts]
    fewer = narrowed(parts, (0,))
    return [
        Mailbox(client, "job-1", plan, channel, codec=codec, plans={STAGE: fewer[client]})
        for client, plan in enumerate(plans)
    ]


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("codec", ["lossless", "fixed"])
def test_what_does_not_cross_is_zero_and_awaited_of_nobody(
    parts: list[GraphPartition], codec: str, is_sparse: bool
) -> None:
    channel = MemoryChannel()
    made = mailboxes(parts, channel, codec)
    for stage in (0, STAGE):
        ticket = replace(TICKET, stage=stage)
        messages = 0
        for part, mailbox in zip(parts, made, strict=True):
            dense = 1.0 + np.arange(part.num_inner * WIDTH, dtype=np.float32).reshape(-1, WIDTH)
            rows: Vectors = csr_array(dense) if is_sparse else dense
            messages += mailbox.send(ticket, rows).boundary.messages
        plans = narrowed(parts, (0,) if stage else (0, 1, 2))
        assert messages == sum(len(plan.receivers) for plan in plans)
        for part, plan, mailbox in zip(parts, plans, made, strict=True):
            mailbox.receive(ticket, WIDTH, "float32")
            assert mailbox.missing_peers() == ()
            found = to_dense(mailbox.vectors(WIDTH, "float32", closed_without=()))
            assert found.shape == (part.num_boundary, WIDTH)
            expected = np.zeros_like(found)
            for peer in plan.peers:
                rows = plans[peer.peer].peer(part.client).send.rows
                of_peer = 1.0 + np.arange(parts[peer.peer].num_inner * WIDTH).reshape(-1, WIDTH)
                expected[peer.receive.slots] = of_peer[rows]
            np.testing.assert_array_equal(found, expected)


def test_a_peer_that_sends_what_nobody_reads_is_refused_by_name(
    parts: list[GraphPartition], caplog: pytest.LogCaptureFixture
) -> None:
    whole, plans, refused = narrowed(parts, (0, 1, 2)), narrowed(parts, (0,)), 0
    for receiver, plan in enumerate(plans):
        channel = MemoryChannel()
        mailbox = mailboxes(parts, channel)[receiver]
        for client in {0, 1, 2} - {receiver}:
            # It follows the plan of the first exchange.
            liar = Mailbox(client, "job-1", whole[client], channel)
            liar.send(TICKET, np.ones((parts[client].num_inner, WIDTH), np.float32))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            mailbox.receive(TICKET, WIDTH, "float32")
        told = [record.getMessage() for record in caplog.records]
        for peer in plan.peers:
            count = peer.receive.count
            if count == whole[receiver].peer(peer.peer).receive.count:
                continue
            refused += 1
            (line,) = (one for one in told if f"client {peer.peer} to {receiver}" in one)
            assert re.search(rf"refused: .*expected {count}\b", line)
            assert (peer.peer in mailbox.missing_peers()) == (count > 0)
    assert refused
