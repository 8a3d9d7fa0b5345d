"""What exchanges moved, as numbers that add up, and an account that is told once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retexo_fl.client.api import CollectRequest, EvaluateRequest, Ticket, TrainRequest
from retexo_fl.client.moved import EXCHANGE, ExchangeAccount, Moved, moved_length
from retexo_fl.client.store import MemoryStore
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.ledger import PeerTraffic, Traffic, Volume

SENT = Traffic(
    boundary=Volume(messages=3, raw=700, payload=500, wire=520), control=Volume(payload=9, wire=9)
)
COME = Traffic(boundary=Volume(messages=2, raw=40, payload=30, wire=31))
BOTH = PeerTraffic(sent=SENT, received=COME)
TICKET = Ticket(job="job-0123456789ab", attempt=1, stage=1)


@pytest.mark.parametrize(
    ("kind", "purposes"),
    [
        (CollectRequest, (EXCHANGE,)),
        (TrainRequest, ("train", "evaluate")),
        (EvaluateRequest, ("evaluate",)),
    ],
)
def test_numbers_of_clients_add_up_to_what_they_moved_together(
    kind: type, purposes: tuple[str, ...]
) -> None:
    one = Moved(by_purpose={purposes[-1]: BOTH}, vectors=4, cut=1)
    other = Moved(by_purpose=dict.fromkeys(purposes, BOTH), vectors=2)
    numbers = one.numbers(kind)
    assert numbers.shape == (moved_length(kind),)
    found = Moved.of(kind, numbers + other.numbers(kind))
    assert (found.vectors, found.cut) == (6, 1)
    assert found.by_purpose[purposes[-1]] == BOTH + BOTH
    assert found.by_purpose.keys() == {*purposes}


def test_wire_is_not_known_where_one_client_did_not_measure_it() -> None:
    blind = replace(SENT, boundary=replace(SENT.boundary, wire=None))
    numbers = [
        Moved(by_purpose={EXCHANGE: PeerTraffic(sent=way, received=COME)}).numbers(CollectRequest)
        for way in (SENT, blind)
    ]
    both = Moved.of(CollectRequest, np.sum(numbers, axis=0)).by_purpose[EXCHANGE]
    assert (both.sent.boundary.payload, both.sent.boundary.wire) == (1000, None)
    assert both.received == COME + COME


def test_less_than_nothing_is_no_sum() -> None:
    numbers = Moved(by_purpose={}).numbers(CollectRequest) - 1
    with pytest.raises(RemoteProtocolError, match="add up to less than 0"):
        Moved.of(CollectRequest, numbers)


def test_an_account_tells_the_same_from_its_first_time_on() -> None:
    """What is added up under a mask must not change."""
    store = MemoryStore()
    account = ExchangeAccount(store)
    account.add(TICKET, PeerTraffic(sent=SENT), cut=2)
    account.add(TICKET, PeerTraffic(received=COME))
    assert account.told(TICKET) == (BOTH, 2)
    account.add(TICKET, BOTH, cut=1)
    assert ExchangeAccount(store).told(TICKET, PeerTraffic()) == (BOTH, 2)
    for other in (replace(TICKET, attempt=2), replace(TICKET, stage=0)):
        assert account.told(other) == (PeerTraffic(), 0)
    counted = replace(TICKET, stage=2)
    account.add(counted, PeerTraffic(), cut=1)
    assert account.told(counted, BOTH) == (BOTH, 1)
