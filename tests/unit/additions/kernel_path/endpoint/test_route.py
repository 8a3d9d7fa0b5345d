"""How much a destination is sent where several streams share the way to it."""

from __future__ import annotations

import numpy as np

from retexo_fl.additions.kernel_path.endpoint.acks import Heard
from retexo_fl.additions.kernel_path.endpoint.records import Destination, StreamGrant
from retexo_fl.additions.kernel_path.endpoint.route import Peer, Route
from retexo_fl.additions.kernel_path.packets.packets import PacketHead
from retexo_fl.additions.kernel_path.packets.window import MAX_WINDOW, SendWindow, ack_flags


def route_to(peer: Peer, stream: int) -> Route:
    head = PacketHead(token=1, stream=stream, job=1, stage=0, sender=0)
    granted = StreamGrant(token=1, stream=stream)
    destination = Destination(address="127.0.0.1:9", grant=granted)
    window = SendWindow(1000, now_s=0.0)
    return Route(destination, head, window, packets=1000, peer=peer)


def test_room_that_others_took_is_none_and_not_less() -> None:
    """A batch of fewer packets than none ended the thread that sends."""
    peer = Peer()
    first, second, third = (route_to(peer, stream) for stream in range(3))
    assert len(first.window.new_to_send(0.0, 20)) == 20
    while second.room > 0:
        second.window.new_to_send(0.0, second.room)
    while third.room > 0:
        third.window.new_to_send(0.0, third.room)
    assert peer.room < 0
    assert [route.room for route in (first, second, third)] == [0, 0, 0]
    assert sum(route.window.on_their_way for route in peer.routes) > MAX_WINDOW
    # A destination without room holds up others no longer than it is waited for.
    assert first.keeps_up(1.0)
    assert not first.keeps_up(2.0)


def test_an_answer_to_a_ping_is_not_taken_for_one_to_data() -> None:
    """Who answers pings alone, in user space, is asked there until data are answered."""
    peer = Peer()
    route = route_to(peer, 0)

    def hear(seq: int) -> None:
        bits = np.zeros(8, np.uint64)
        route.hear(Heard(token=1, terms=route.ack_terms, seq=seq, base=0, bits=bits), 0.0)

    for seq in np.flatnonzero(ack_flags(np.arange(1000))).tolist():
        pinged = route.ping_seq(seq)
        assert pinged == seq - 1
        while not peer.user_space:
            peer.asked()
        hear(pinged)
        assert peer.user_space
        hear(seq)
        assert not peer.user_space
