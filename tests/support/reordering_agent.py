"""An agent whose datagrams leave in another order: each batch shuffled."""

from __future__ import annotations

import random
from collections.abc import Sequence

from retexo_fl.additions.kernel_path.endpoint.udp_socket import Message, UdpSocket, single_packets

_SEED = 5


def shuffle_packets() -> None:
    """Have every socket of this process send the packets of a batch in an order drawn anew."""
    send, drawn = UdpSocket.send, random.Random(_SEED)

    def send_shuffled(self: UdpSocket, messages: Sequence[Message]) -> int:
        packets = single_packets(messages)
        drawn.shuffle(packets)
        # What the kernel has no room for is lost, as it may be on the way.
        send(self, packets)
        self.messages_sent = len(messages)
        return sum(message.packets for message in messages)

    UdpSocket.send = send_shuffled  # type: ignore[method-assign]
