"""The model against numbers worked out by hand; 8 kbit/s are 1,000 bytes a second."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from retexo_fl.ledger import SERVER
from retexo_fl.simulation.links import Links, parse_link
from retexo_fl.simulation.virtual_network import VirtualNetwork, transfer


def network(*, clients: int = 3, seed: int = 0, **lines: str) -> VirtualNetwork:
    """Return a network of links by name; ``one_way_0_1`` is ``0>1``."""
    names = {name.replace("one_way_", "").replace("_", ">"): text for name, text in lines.items()}
    links = Links(text="test", lines={name: parse_link(text) for name, text in names.items()})
    return VirtualNetwork(links, clients=clients, seed=seed)


def test_message_takes_its_bytes_over_the_rate_and_the_delay() -> None:
    modelled = network(default="rate:8kbit/delay:50ms")
    modelled.send_to_clients({0: 300}, phase="hello")
    assert modelled.clock_s(0) == Fraction(300, 1000) + Fraction(50, 1000)
    modelled.reply_to_server(0, 200)
    assert modelled.clock_s(SERVER) == Fraction(500, 1000) + 2 * Fraction(50, 1000)
    assert modelled.facts().seconds == 0.6


def test_server_goes_on_with_the_last_reply() -> None:
    modelled = network(default="rate:8kbit")
    modelled.send_to_clients({0: 100, 1: 2000, 2: 300}, phase="train")
    for client in (0, 1, 2):
        modelled.reply_to_server(client, 1000)
    assert [modelled.clock_s(client) for client in (0, 1, 2)] == [
        Fraction(1, 10),
        Fraction(2),
        Fraction(3, 10),
    ]
    assert modelled.clock_s(SERVER) == 3
    modelled.send_to_clients({0: 100}, phase="train")
    assert modelled.clock_s(0) == Fraction(31, 10)


def test_messages_on_one_link_queue_and_their_delays_overlap() -> None:
    modelled = network(default="rate:8kbit/delay:2s")
    for number in (1, 2, 3):
        modelled.send_block(0, 1, 500, number)
    modelled.send_block(0, 2, 500, "another link")
    modelled.send_block(1, 0, 500, "the other way")
    for end, key, expected in (
        (1, 1, Fraction(5, 2)),
        (1, 2, Fraction(3)),
        (1, 3, Fraction(7, 2)),
        (2, "another link", Fraction(5, 2)),
        (0, "the other way", Fraction(5, 2)),
    ):
        modelled.take_block(end, key)
        assert modelled.clock_s(end) == expected


def test_a_link_that_is_free_again_makes_nobody_wait() -> None:
    modelled = network(default="rate:8kbit")
    modelled.send_to_clients({0: 500}, phase="train")
    modelled.reply_to_server(0, 4000)
    modelled.send_to_clients({0: 500}, phase="train")
    assert modelled.clock_s(0) == Fraction(45, 10) + Fraction(5, 10)


def test_block_is_waited_for_once_and_only_by_who_takes_it() -> None:
    modelled = network(default="ideal", one_way_0_1="delay:3s")
    modelled.send_block(0, 1, 10, "block")
    assert modelled.clock_s(1) == 0
    modelled.take_block(1, "block")
    modelled.take_block(1, "block")
    assert [modelled.clock_s(client) for client in (0, 1, 2)] == [0, 3, 0]


def test_inner_exchange_leaves_at_once_and_waits_for_the_last() -> None:
    modelled = network(default="rate:8kbit/delay:1s")
    # Client 1 forwards nothing yet: what it sends in this exchange left before anything came.
    modelled.exchange({(0, 1): 1000, (2, 1): 3000, (1, 2): 500})
    assert [modelled.clock_s(client) for client in (0, 1, 2)] == [0, 4, Fraction(3, 2)]
    modelled.exchange({(1, 2): 500})
    assert modelled.clock_s(2) == Fraction(11, 2)


def test_phases_add_up_and_tell_what_was_waited_for() -> None:
    modelled = network(default="delay:1s", server="delay:3s", clients=2)
    modelled.send_to_clients({0: 1, 1: 1}, phase="exchange")
    modelled.exchange({(0, 1): 1})
    modelled.exchange({(1, 0): 1})
    for client in (0, 1):
        modelled.reply_to_server(client, 1)
    for _ in range(2):
        modelled.send_to_clients({0: 1, 1: 1}, phase="train")
        modelled.exchange({(0, 1): 1}, "train")
        for _ in range(2):
            modelled.exchange({(1, 0): 1, (0, 1): 1}, "evaluate")
        modelled.reply_to_server(1, 1)
    facts = modelled.facts()
    assert facts.seconds == 26
    assert tuple(facts.phases[name] for name in ("exchange", "train", "hello")) == (8, 18, 0)
    assert facts.between_clients_s == {
        **{"total": 8, "hello": 0, "exchange": 2, "train": 6, "evaluate": 0, "validation": 4}
    }


def test_blocks_that_nobody_waits_for_cost_nothing() -> None:
    modelled = network(default="delay:1s", one_way_0_1="delay:1ms")
    modelled.send_block(0, 1, 1, "early")
    modelled.send_to_clients({1: 1}, phase="exchange")
    modelled.take_block(1, "early")
    modelled.reply_to_server(1, 1)
    assert modelled.facts().between_clients_s["total"] == 0
    assert modelled.facts().seconds == 2


def test_busiest_links_are_those_that_sent_longest() -> None:
    modelled = network(default="rate:8kbit", one_way_0_1="rate:4kbit")
    modelled.send_block(0, 1, 600, 1)
    modelled.send_block(0, 2, 1000, 2)
    modelled.send_to_clients({0: 2000}, phase="train")
    modelled.send_block(1, 0, 900, 3)
    told = modelled.facts().busiest
    assert [(lane.sender, lane.receiver, lane.busy_s) for lane in told] == [
        ("server", 0, 2.0),
        (0, 1, 1.2),
        (0, 2, 1.0),
    ]
    ideal = network(default="ideal")
    for receiver, size_bytes in ((1, 100), (2, 300)):
        ideal.send_block(0, receiver, size_bytes, receiver)
    assert [lane.receiver for lane in ideal.facts().busiest] == [2, 1]


# ---- loss ---------------------------------------------------------------------------------------


def test_lost_packets_cost_rate_and_each_repeat_a_round_trip() -> None:
    link, size_bytes = "rate:8kbit/delay:1s/loss:0.4", 10 * 1500 + 700
    cost = transfer(parse_link(link), size_bytes, seed=0, name="packets -1>0 0")
    assert cost.sent_bytes > size_bytes
    assert cost.repeats > 0
    modelled = network(default=link)
    modelled.send_to_clients({0: size_bytes}, phase="train")
    assert modelled.clock_s(0) == Fraction(cost.sent_bytes, 1000) + 1 + 2 * cost.repeats


def test_without_loss_every_byte_is_sent_once() -> None:
    cost = transfer(parse_link("rate:8kbit/loss:0"), 10**9 + 1, seed=0, name="x")
    assert (cost.sent_bytes, cost.repeats) == (10**9 + 1, 0)


@pytest.mark.parametrize("loss", [0.01, 0.3, 0.9])
def test_mean_attempts_are_those_of_a_geometric_law(loss: float) -> None:
    packets = 40_000
    cost = transfer(parse_link(f"loss:{loss}"), packets * 1500, seed=3, name="many")
    mean = cost.sent_bytes / (packets * 1500)
    standard_error = math.sqrt(loss) / (1 - loss) / math.sqrt(packets)
    assert abs(mean - 1 / (1 - loss)) < 3 * standard_error


def test_only_the_last_packet_is_shorter() -> None:
    for size_bytes in (1, 1499, 1500, 1501, 4000):
        costs = [
            transfer(parse_link("loss:0.5"), size_bytes, seed=seed, name="x") for seed in range(200)
        ]
        last_bytes = (size_bytes - 1) % 1500 + 1
        # Nothing, the last packet, or another one is sent once more.
        least = {0, last_bytes, 1500 if size_bytes > 1500 else last_bytes}
        resent = {cost.sent_bytes - size_bytes for cost in costs}
        assert least <= resent
        assert {cost.sent_bytes > size_bytes for cost in costs if cost.repeats} == {True}
        assert {cost.sent_bytes for cost in costs if not cost.repeats} == {size_bytes}
        if size_bytes <= 1500:
            assert {cost.sent_bytes for cost in costs} == {
                size_bytes * (1 + cost.repeats) for cost in costs
            }


def test_draws_depend_on_seed_link_and_message_alone() -> None:
    def sent(seed: int, *before: int) -> list[int]:
        modelled = network(default="loss:0.3", seed=seed)
        for receiver in before:
            modelled.send_block(1, receiver, 9000, object())
        for number in range(20):
            modelled.send_block(0, 1, 9000, number)
        lanes = modelled.facts().busiest
        return [lane.sent_bytes for lane in lanes if lane.sender == 0]

    assert sent(1) == sent(1) == sent(1, 0, 2, 0)
    assert sent(1) != sent(2)
