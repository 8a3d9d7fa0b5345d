from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retexo_fl.agent.gate import JobGate
from retexo_fl.channels import BlockKey, MemoryChannel
from retexo_fl.client.api import Ticket, chain_digest
from retexo_fl.client.mailbox import Mailbox
from retexo_fl.client.part import without_peers
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.vector_carrier import CONTROL_LAYERS, MOST_GRANTS, most_control_bytes
from retexo_fl.config import make_config
from retexo_fl.errors import PeerRefused
from retexo_fl.exchange import HEADER_BYTES, decode_block
from retexo_fl.graph import BoundaryPlan, GraphPartition
from retexo_fl.training.stage_model import ModelShape

JOB = "job-0123456789ab"
FIRST = chain_digest(b"", None)
KEY = BlockKey(job=JOB, layer=0, weights_digest=FIRST, sender=0, receiver=1)


@pytest.fixture(scope="module")
def parts() -> list[GraphPartition]:
    return make_parts(make_config({"clients": 3}))


def gate(part: GraphPartition, **keys: Any) -> JobGate:
    config = make_config({"clients": 3, "hidden": 8, **keys})
    return JobGate(
        JOB,
        lambda stage: BoundaryPlan.from_partition(part),
        config,
        ModelShape.of(config, inputs=part.num_features, classes=part.num_classes),
        first=lambda: FIRST,
        clients=part.num_clients,
        stages=1 if config.traits.end_to_end else config.layers,
    )


def test_it_admits_what_a_peer_sends_and_nothing_longer(parts: list[GraphPartition]) -> None:
    """The header is that of the peer's own mailbox, whose block fits the bound."""
    channel = MemoryChannel()
    plan = BoundaryPlan.from_partition(parts[0])
    ticket = Ticket(job=JOB, attempt=1, weights_digest=FIRST)
    for codec in ("lossless", "dense"):
        channel.forget_job(JOB, 1)
        mailbox = Mailbox(0, JOB, plan, channel, codec=codec)
        mailbox.send(ticket, parts[0].features.astype("float32"))
        stream = channel.receive_block(KEY)
        admission = gate(parts[1]).admission(KEY)
        assert stream is not None
        assert admission.header is not None
        decoded = decode_block(admission.header, stream)
        assert decoded is not None
        assert decoded[1].wire_bytes == len(stream)
        assert len(stream) <= admission.max_bytes < 4 * admission.header.raw_bytes


def test_a_stranger_may_say_hello_only(parts: list[GraphPartition]) -> None:
    admission = gate(without_peers(parts[1])).admission(KEY)
    assert admission.header is not None
    assert (admission.header.num_vectors, admission.header.num_edges) == (0, 0)
    assert admission.max_bytes < 10_000


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (replace(KEY, job="job-x"), "^job: client 0: .*'job-x' .*; expected 'job-0123456789ab'"),
        (replace(KEY, receiver=2), "^job: client 0: .*client 2; expected .*client 1"),
        (replace(KEY, layer=2), "^plan: client 0: .*layer 2; expected .*below 2"),
        (replace(KEY, sender=3), "^plan: client 3: expected .*0 to 2"),
        (replace(KEY, sender=1), "^plan: client 1: expected another client"),
        (replace(KEY, weights_digest=b"x" * 32), "^plan: client 0: .*layer 0 .*features"),
    ],
)
def test_blocks_that_do_not_follow_from_the_plan_are_refused(
    parts: list[GraphPartition], key: BlockKey, expected: str
) -> None:
    with pytest.raises(PeerRefused, match=expected):
        gate(parts[1]).admission(key)


def test_a_later_layer_has_few_exchanges_until_some_are_dropped(
    parts: list[GraphPartition],
) -> None:
    made = gate(parts[1])
    keys = [replace(KEY, layer=1, weights_digest=bytes([n]) * 32) for n in range(6)]
    for key in keys[:4] * 2:
        assert made.admission(key).header is not None
    with pytest.raises(PeerRefused, match="^flood: client 0: more than 4 exchanges of layer 1"):
        made.admission(keys[4])
    assert made.admission(replace(keys[4], sender=2)).header is not None
    made.forget(keys[:1])
    made.admission(keys[4])


@pytest.mark.parametrize("algorithm", ["standard", "bns"])
def test_rounds_that_exchange_bring_blocks_of_bounded_length(
    parts: list[GraphPartition], algorithm: str
) -> None:
    made = gate(parts[1], algorithm=algorithm)
    plan = BoundaryPlan.from_partition(parts[1]).peer(0)
    vectors = max(plan.send.count, plan.receive.count)
    inner = made.admission(replace(KEY, weights_digest=b"x" * 32))
    assert inner.header is None
    assert vectors * 8 * 4 < inner.max_bytes < vectors * (8 * 4 + 30) + 5000
    assert made.admission(KEY).header is not None
    # Vectors go and gradients come: of either client's pair whichever are more, each in a frame.
    for client in (0, 1):
        peer = BoundaryPlan.from_partition(parts[client]).peer(1 - client)
        most = max(peer.send.count, peer.receive.count)
        key = replace(KEY, sender=1 - client, receiver=client, weights_digest=b"x" * 32)
        narrow_bytes, wide_bytes = (
            gate(parts[client], algorithm=algorithm, dtype=dtype).admission(key).max_bytes
            for dtype in ("float32", "float64")
        )
        assert wide_bytes - narrow_bytes == most * 8 * 4
        assert narrow_bytes > most * (8 * 4 + HEADER_BYTES)
    for number in range(14):
        made.admission(replace(KEY, weights_digest=bytes([number]) * 32))
    with pytest.raises(PeerRefused, match="more than 16 exchanges of layer 0 at once"):
        made.admission(replace(KEY, weights_digest=b"y" * 32))


@pytest.mark.parametrize("keys", [{"algorithm": "drop"}, {"algorithm": "standard", "layers": 1}])
def test_rounds_that_do_not_exchange_bring_none(
    parts: list[GraphPartition], keys: dict[str, Any]
) -> None:
    with pytest.raises(PeerRefused, match="no features made"):
        gate(parts[1], **keys).admission(replace(KEY, weights_digest=b"x" * 32))


def test_a_basis_makes_what_layer_0_reads(parts: list[GraphPartition]) -> None:
    made = gate(parts[1], **{"basis": "supervised", "basis-blocks": 2})
    admitted = made.admission(replace(KEY, weights_digest=b"x" * 32))
    assert admitted.header is not None
    assert admitted.header.width == 20
    for number in range(3):
        made.admission(replace(KEY, weights_digest=bytes([number]) * 32))
    with pytest.raises(PeerRefused, match="more than 4 exchanges of layer 0 at once"):
        made.admission(replace(KEY, weights_digest=b"y" * 32))


def test_a_basis_of_sums_makes_nothing_before_layer_0(parts: list[GraphPartition]) -> None:
    made = gate(parts[1], **{"basis": "supervised", "basis-rows": "sums"})
    assert made.admission(KEY).header is not None
    with pytest.raises(PeerRefused, match="no features made"):
        made.admission(replace(KEY, weights_digest=b"x" * 32))


def test_notices_and_grants_of_an_exchange_are_admitted_and_nothing_else(
    parts: list[GraphPartition],
) -> None:
    made = gate(parts[1])
    plan = BoundaryPlan.from_partition(parts[1]).peer(0)
    vectors = max(plan.send.count, plan.receive.count)
    for kind in (1, 2, 1 + MOST_GRANTS):
        for stage in (0, 1):
            key = replace(KEY, layer=stage + kind * CONTROL_LAYERS)
            admitted = made.admission(key)
            assert admitted.header is None
            assert 8 * vectors < admitted.max_bytes == most_control_bytes(vectors)
    stranger = gate(without_peers(parts[1])).admission(replace(KEY, layer=CONTROL_LAYERS))
    assert stranger.max_bytes == most_control_bytes(0) < 20_000
    refused = [
        (replace(KEY, layer=(2 + MOST_GRANTS) * CONTROL_LAYERS), "more than 64 grants"),
        (replace(KEY, layer=2 + CONTROL_LAYERS), "layer 2; expected one below 2"),
        (replace(KEY, layer=CONTROL_LAYERS, sender=1), "expected another client"),
        (replace(KEY, layer=CONTROL_LAYERS, job="job-x"), "a block of 'job-x'"),
    ]
    for key, told in refused:
        with pytest.raises(PeerRefused, match=told):
            made.admission(key)


def test_notices_of_exchanges_are_as_many_as_rounds_may_have(parts: list[GraphPartition]) -> None:
    for keys, most in (({}, 16), ({"layers": 3}, 24)):
        made = gate(parts[1], **keys)
        control = replace(KEY, layer=CONTROL_LAYERS)
        for number in range(most):
            made.admission(replace(control, weights_digest=bytes([number]) * 32))
        with pytest.raises(PeerRefused, match=f"^flood: client 0: more than {most} exchanges"):
            made.admission(replace(control, weights_digest=b"y" * 32))


def test_under_masks_rows_of_another_configuration_or_agreement_are_refused_by_name(
    parts: list[GraphPartition],
) -> None:
    other = replace(KEY, weights_digest=chain_digest(b"told otherwise", None))
    said = "^plan: client 0: a block of layer 0 that no features made, or by another configuration"
    with pytest.raises(PeerRefused, match=said):
        gate(parts[1], **{"secure-aggregation": "masked"}).admission(other)
