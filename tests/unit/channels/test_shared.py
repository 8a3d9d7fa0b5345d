"""A channel between clients that share rows takes and gives blocks, too."""

from __future__ import annotations

import numpy as np

from retexo_fl.channels import Channel, SharingChannel
from retexo_fl.exchange import BlockHeader, decode_block, to_dense
from tests.support.channel_contract import KEY, ChannelContract

ROWS = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)
EDGES = (5, b"p" * 32, 2)


class TestSharingChannel(ChannelContract):
    def ends(self) -> tuple[Channel, Channel]:
        shared = SharingChannel()
        return shared, shared


def _sharing() -> SharingChannel:
    channel = SharingChannel()
    pile = channel.pile(KEY.job, KEY.layer, KEY.weights_digest)
    everything, edges = {KEY.receiver: np.arange(2)}, {KEY.receiver: EDGES}
    shared = pile.share(ROWS, everything, edges, sender=KEY.sender, codec="lossless")
    assert shared is not None
    assert shared[0] == 1
    return channel


def test_what_is_shared_can_be_read_as_a_block() -> None:
    expected = BlockHeader(
        job=KEY.job,
        layer=KEY.layer,
        sender=KEY.sender,
        receiver=KEY.receiver,
        weights_digest=KEY.weights_digest,
        num_edges=5,
        plan_digest=b"p" * 32,
        num_vectors=2,
        width=3,
        dtype="float32",
    )
    decoded = decode_block(expected, _sharing().receive_block(KEY) or b"")
    assert decoded is not None
    np.testing.assert_array_equal(to_dense(decoded[0]), ROWS)


def test_who_shares_is_a_sender_until_the_job_is_forgotten() -> None:
    channel = _sharing()
    exchange = KEY.job, KEY.layer, KEY.weights_digest
    assert channel.senders(*exchange, receiver=KEY.receiver) == {KEY.sender}
    assert channel.senders(KEY.job, 1, KEY.weights_digest, receiver=KEY.receiver) == frozenset()
    channel.forget_job("job-2", KEY.receiver)
    channel.forget_job(KEY.job, KEY.sender)
    assert channel.receive_block(KEY)
    channel.forget_job(KEY.job, KEY.receiver)
    assert channel.receive_block(KEY) is None
    assert channel.senders(*exchange, receiver=KEY.receiver) == frozenset()
