from __future__ import annotations

from retexo_fl.channels import Channel, MemoryChannel
from tests.support.channel_contract import ChannelContract


class TestMemoryChannel(ChannelContract):
    def ends(self) -> tuple[Channel, Channel]:
        shared = MemoryChannel()
        return shared, shared
