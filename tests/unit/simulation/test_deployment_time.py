from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.task_identity import TaskIdentity

from retexo_fl.client import api
from retexo_fl.client.api import (
    CollectAnswer,
    CollectRequest,
    HelloRequest,
    PublishAnswer,
    PublishRequest,
    Ticket,
    TrainAnswer,
    TrainRequest,
)
from retexo_fl.federation import records
from retexo_fl.ledger import Traffic
from retexo_fl.simulation.deployment_time import (
    OPENED,
    FlowerMessage,
    acknowledgement_s,
    block_s,
    link_s,
    objects_of,
    receive_s,
    send_s,
)
from retexo_fl.simulation.links import Link, parse_link
from retexo_fl.simulation.tcp_time import Path
from retexo_fl.training.messages import Record

DELAY = parse_link("delay:100ms")
FAR = Path(there=DELAY, back=DELAY)
SMALL = FlowerMessage()
ARRAY = (Record(array_bytes=3_600),)
WEIGHTS = FlowerMessage(down=ARRAY, up=ARRAY)
CODED = FlowerMessage(down=(Record(coded_bytes=3_600),), up=(Record(coded_bytes=3_600),))
#: Publish and collect go first.
ALONG = FlowerMessage(down=(Record(), *ARRAY, Record()), up=(Record(), Record(), *ARRAY))


def test_link_takes_three_round_trips_and_small_block_half_a_one() -> None:
    assert link_s(FAR) == pytest.approx(0.6)
    assert block_s(FAR, 1_000) == pytest.approx(0.1)
    assert block_s(FAR, 20_000) == pytest.approx(0.3)
    assert acknowledgement_s(FAR) == pytest.approx(0.1)


def test_only_the_sender_s_direction_carries_a_block() -> None:
    uneven = Path(there=parse_link("rate:1mbit/delay:10ms"), back=DELAY)
    assert block_s(uneven, 100_000) == pytest.approx(0.8 * 1500 / 1448 + 0.01, rel=0.01)
    assert acknowledgement_s(uneven) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("message", "receive_trips", "send_trips"),
    [
        # One after the other: the message, its objects on two connections, a confirmation.
        (SMALL, (4, 5, 7), (3, 4, 6)),
        (WEIGHTS, (5, 6, 8), (4, 5, 7)),
        (CODED, (4, 5, 7), (3, 4, 6)),
        (ALONG, (6, 7, 9), (5, 6, 8)),
        (FlowerMessage(is_first=True), (6, 7, 9), (3, 4, 6)),
    ],
)
def test_a_message_takes_its_requests_round_trips(
    message: FlowerMessage, receive_trips: tuple[int, ...], send_trips: tuple[int, ...]
) -> None:
    for opened, received, sent in zip(OPENED, receive_trips, send_trips, strict=True):
        assert receive_s(FAR, message, opened=opened) == pytest.approx(0.2 * received)
        assert send_s(FAR, message, opened=opened) == pytest.approx(0.2 * sent)


def test_a_connection_takes_its_bytes_both_ways() -> None:
    path = Path(there=parse_link("rate:1mbit"), back=parse_link("rate:256kbit"))
    # Of both handshakes and of what ends that of TLS; segments have headers of 52 bytes.
    there, back = 52 + (517 + 52) + 80, 52 + (843 + 52) + 510
    opening_s = there * 8 / 1e6 + back * 8 / 256e3
    late = send_s(path, SMALL, opened=2) - send_s(path, SMALL, opened=1)
    assert late == pytest.approx(opening_s)


def test_large_weights_are_waited_for_while_the_rest_passes() -> None:
    site = parse_link("rate:13.6mbit/delay:100ms")
    path = Path(there=site, back=site)
    array = (Record(array_bytes=736_000),)
    message = FlowerMessage(down=array, up=array)
    # About 1.4 s for the weights, and 0.2 s for what comes before and after.
    assert send_s(path, message) == pytest.approx(1.6, abs=0.05)
    assert receive_s(path, message) == pytest.approx(2.0, abs=0.05)


def test_arrays_of_one_message_are_waited_for_in_any_order() -> None:
    site = parse_link("rate:13.6mbit")
    path = Path(there=site, back=site)
    both = (Record(coded_bytes=170_000), Record(array_bytes=1_700_000))
    # 0.1 and 1 s, on two connections at a time, and not so where small objects stand between them.
    assert send_s(path, FlowerMessage(up=both)) == pytest.approx(1.04, abs=0.02)
    received_s = receive_s(path, FlowerMessage(down=both))
    assert 1.04 < received_s < 1.14
    assert receive_s(path, FlowerMessage(down=both[::-1])) == pytest.approx(received_s)


def test_ideal_links_take_no_time() -> None:
    near = Path(there=Link(), back=Link())
    assert link_s(near) == block_s(near, 10**6) == receive_s(near, WEIGHTS, opened=2) == 0.0


#: Of an array, plain or coded.
ARRAY_BYTES = 40_000
PLAIN = np.zeros(ARRAY_BYTES // 4, dtype=np.float32)
CODES = np.zeros(ARRAY_BYTES, dtype=np.uint8)
TICKET = Ticket(job="job-00000000000a", attempt=1)


def update(array: np.ndarray) -> TrainAnswer:
    return TrainAnswer(
        update_sum=array,
        examples=1,
        loss_sum=0.5,
        validation_examples=1,
        validation_loss_sum=0.5,
        validation_correct=1,
    )


FIRST_ASKED = [PublishRequest(ticket=TICKET, weights=PLAIN), CollectRequest(ticket=TICKET)]
FIRST_TOLD = [
    PublishAnswer(vectors=3, traffic=Traffic()),
    CollectAnswer(complete=True, missing=0, missing_peers=0, traffic=Traffic()),
]
PLAIN_RECORD, CODED_RECORD = Record(array_bytes=ARRAY_BYTES), Record(coded_bytes=ARRAY_BYTES)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (records.request_content(HelloRequest(ticket=TICKET)), (Record(),)),
        (records.request_content(TrainRequest(ticket=TICKET, weights=PLAIN)), (PLAIN_RECORD,)),
        (records.request_content(TrainRequest(ticket=TICKET, weights=CODES)), (CODED_RECORD,)),
        (
            records.request_content(TrainRequest(ticket=TICKET, weights=CODES), FIRST_ASKED),
            (PLAIN_RECORD, Record(), CODED_RECORD),
        ),
        (records.answer_content(update(PLAIN)), (PLAIN_RECORD,)),
        (records.answer_content(update(PLAIN), FIRST_TOLD), (Record(), Record(), PLAIN_RECORD)),
        (records.answer_content(update(CODES), FIRST_TOLD), (Record(), Record(), CODED_RECORD)),
    ],
)
def test_objects_are_those_that_flower_makes(
    content: RecordDict, expected: tuple[Record, ...]
) -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    message = Message(content, dst_node_id=1, message_type=api.TRAIN.message_type)
    made = get_all_nested_objects(message)
    order = [tree.object_id for tree in iterate_object_tree(get_object_tree(message))]
    sizes = [len(made[name].deflate()) for name in order]
    found = objects_of(expected)
    assert len(sizes) == len(found)
    for size, more_bytes in zip(sizes, found, strict=True):
        assert more_bytes <= size < more_bytes + 1_000
