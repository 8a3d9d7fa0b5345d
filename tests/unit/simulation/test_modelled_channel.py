from __future__ import annotations

from fractions import Fraction

from retexo_fl.channels import Channel, MemoryChannel
from retexo_fl.simulation.links import Links, parse_link
from retexo_fl.simulation.modelled_channel import ModelledChannel
from retexo_fl.simulation.virtual_network import VirtualNetwork
from tests.support.channel_contract import FRAMES, KEY, ChannelContract


def modelled() -> tuple[ModelledChannel, VirtualNetwork]:
    links = Links(text="", lines={"default": parse_link("rate:8kbit")})
    network = VirtualNetwork(links, clients=13, seed=0)
    return ModelledChannel(MemoryChannel(), network), network


class TestModelledChannel(ChannelContract):
    def ends(self) -> tuple[Channel, Channel]:
        shared, _ = modelled()
        return shared, shared


def test_block_takes_its_frames_over_the_rate_once() -> None:
    channel, network = modelled()
    channel.send_block(KEY, FRAMES)
    channel.send_block(KEY, FRAMES)
    assert network.clock_s(KEY.receiver) == 0
    channel.receive_block(KEY)
    channel.receive_block(KEY)
    assert network.clock_s(KEY.receiver) == Fraction(sum(map(len, FRAMES)), 1000)
    assert network.clock_s(KEY.sender) == 0
    assert [lane.messages for lane in network.facts().busiest] == [1]
