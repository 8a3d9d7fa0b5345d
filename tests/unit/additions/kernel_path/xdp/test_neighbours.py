"""Routes and neighbours as the kernel tells them, of this machine's own loopback."""

from __future__ import annotations

import pytest

from retexo_fl.additions.kernel_path.xdp.neighbours import (
    ethernet_address,
    has_ethernet_headers,
    interface_towards,
    neighbour_mac,
    next_hop,
)
from retexo_fl.errors import ChannelUnavailable


def test_this_machine_is_reached_by_loopback_and_is_no_neighbour() -> None:
    assert interface_towards("127.0.0.1") == "lo"
    assert has_ethernet_headers("lo")
    for ask in (lambda: next_hop("127.0.0.1"), lambda: neighbour_mac("lo", "127.0.0.1")):
        with pytest.raises(ChannelUnavailable, match="127.0.0.1: .*this machine; expected a peer"):
            ask()


def test_what_is_no_address_or_no_interface_is_named() -> None:
    with pytest.raises(ChannelUnavailable, match="lo: .*expected an Ethernet"):
        ethernet_address("lo")
    with pytest.raises(ChannelUnavailable, match="nowhere0: No such device"):
        has_ethernet_headers("nowhere0")
    for address in ("::1", "example.org", "1.2.3", ""):
        with pytest.raises(ChannelUnavailable, match="IPv4 address$"):
            next_hop(address)
