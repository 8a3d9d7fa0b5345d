from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from retexo_fl.client import api
from retexo_fl.client.api import HelloRequest, Ticket, TrainAnswer, TrainRequest
from retexo_fl.federation import records
from retexo_fl.simulation import deployment_time
from retexo_fl.simulation.deployment_time import (
    OPENED,
    FlowerMessage,
    acknowledgement_s,
    block_s,
    link_s,
    receive_s,
    send_s,
)
from retexo_fl.simulation.links import Link, parse_link
from retexo_fl.simulation.tcp_time import Path

DELAY = parse_link("delay:100ms")
FAR = Path(there=DELAY, back=DELAY)
SMALL = FlowerMessage()
WEIGHTS = FlowerMessage(down_bytes=3_600, up_bytes=3_600)


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
        (FlowerMessage(is_first=True), (6, 7, 9), (3, 4, 6)),
    ],
)
def test_a_message_takes_its_requests_round_trips(
    message: FlowerMessage, receive_trips: tuple[int, ...], send_trips: tuple[int, ...]
) -> None:
    for opened, received, sent in zip(OPENED, receive_trips, send_trips, strict=True):
        assert receive_s(FAR, message, opened=opened) == pytest.approx(0.2 * received)
        assert send_s(FAR, message, opened=opened) == pytest.approx(0.2 * sent)


def test_large_weights_are_waited_for_while_the_rest_passes() -> None:
    site = parse_link("rate:13.6mbit/delay:100ms")
    path = Path(there=site, back=site)
    message = FlowerMessage(down_bytes=736_000, up_bytes=736_000)
    # About 1.4 s for the weights, and 0.2 s for what comes before and after.
    assert send_s(path, message) == pytest.approx(1.6, abs=0.05)
    assert receive_s(path, message) == pytest.approx(2.0, abs=0.05)


def test_ideal_links_take_no_time() -> None:
    near = Path(there=Link(), back=Link())
    assert link_s(near) == block_s(near, 10**6) == receive_s(near, WEIGHTS, opened=2) == 0.0


def test_flower_makes_as_many_objects_as_are_counted() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    ticket = Ticket(job="job-00000000000a", attempt=1)
    request = TrainRequest(ticket=ticket, weights=np.zeros(5, dtype=np.float32))
    without = records.request_content(HelloRequest(ticket=ticket))
    asked = Message(
        records.request_content(request), dst_node_id=1, message_type=api.TRAIN.message_type
    )
    assert _objects(asked) == deployment_time._OBJECTS_WITH_WEIGHTS
    hello = Message(without, dst_node_id=1, message_type=api.HELLO.message_type)
    assert _objects(hello) == deployment_time._OBJECTS
    answer = TrainAnswer(
        update_sum=np.zeros(5, dtype=np.float32),
        examples=1,
        loss_sum=0.5,
        validation_examples=1,
        validation_loss_sum=0.5,
        validation_correct=1,
    )
    content = records.answer_content(answer)
    reply = Message(content, dst_node_id=1, message_type=api.TRAIN.message_type)
    assert _objects(reply) == deployment_time._OBJECTS_WITH_WEIGHTS


def _objects(message: Message) -> int:
    return len(get_all_nested_objects(message))
