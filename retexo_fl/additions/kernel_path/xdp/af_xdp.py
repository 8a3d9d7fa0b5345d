"""A receiver that takes frames from an AF_XDP socket: past the kernel's network, in user space.

A program at the interface redirects its packets to it before the kernel's network handles them;
they are then taken like those of a UDP socket. One receive queue, copy mode.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint.receiver import PacketTaker
from retexo_fl.additions.kernel_path.endpoint.udp_socket import Message, UdpSocket
from retexo_fl.additions.kernel_path.packets.aggregation import MAX_REPLY_BYTES
from retexo_fl.additions.kernel_path.packets.layout import Tables
from retexo_fl.additions.kernel_path.packets.stream_shape import packet_cells_for
from retexo_fl.additions.kernel_path.xdp.attachments import XdpMode
from retexo_fl.additions.kernel_path.xdp.interfaces import interface_facts
from retexo_fl.additions.kernel_path.xdp.libbpf import BpfObject
from retexo_fl.additions.kernel_path.xdp.neighbours import demand_ethernet
from retexo_fl.additions.kernel_path.xdp.xdp_socket import Frames, XdpSocket
from retexo_fl.errors import ChannelUnavailable

_PROGRAM: Final = Path(__file__).with_name("programs") / "af_xdp.bpf.o"
_QUEUE: Final = 0
#: Frames that are taken at once, and how often before others get their turn.
_BATCH: Final = 256
_BATCHES: Final = 8
#: Room of a frame: the kernel's 256 bytes and our 6 before it, Ethernet's header with it.
_SMALL_FRAME, _LARGE_FRAME, _BESIDE = 2048, 4096, 256 + 6 + 14
#: Where things lie in a frame without options.
_SOURCE_ADDRESS: Final = slice(26, 30)
_SOURCE_PORT: Final = slice(34, 36)
_UDP_LENGTH: Final = slice(38, 40)
_PAYLOAD: Final = 42
_UDP_HEADER: Final = 8
#: Positions of the token and the first packet in an ACK, in 64-bit words.
_TOKEN_WORD, _FIRST_WORD = 1, 5


class AfXdpReceiver(PacketTaker):
    """Takes the datagrams to one UDP port that arrive by one interface; until :meth:`close`.

    Packets that come another way, as over loopback, are taken from the endpoint's socket. Answers
    leave by a UDP socket of its own.

    Args:
        interface: Name, in this network namespace; it has one receive queue.
        port: UDP port.
        tables: Where values go.
        mode: ``native`` (in the driver), ``generic`` (after it), or ``auto``: the first that works.

    Attributes:
        tables: See above.
        event_fd: Readable while frames wait; :meth:`drain_events` takes them, in the one thread
            that uses the tables.
        mode: The one that is used: ``native`` or ``generic``.
        max_cells: Longest packet that is taken, by the interface's MTU and the room of a frame.

    Raises:
        ChannelUnavailable: Several queues, a large MTU, no privilege, or another program is there.
    """

    kind = "af_xdp"

    def __init__(
        self, interface: str, port: int, tables: Tables, *, mode: XdpMode = "auto"
    ) -> None:
        super().__init__(tables, takes_data=True)
        self.tables = tables
        facts = interface_facts(interface)
        demand_ethernet(interface)
        if facts.receive_queues > 1:
            advice = f"ethtool -L {interface} combined 1"
            raise ChannelUnavailable(f"{interface}: has {facts.receive_queues} queues; {advice}")
        if facts.mtu_bytes > _LARGE_FRAME - _BESIDE:
            most = _LARGE_FRAME - _BESIDE
            raise ChannelUnavailable(f"{interface}: MTU {facts.mtu_bytes}; expected at most {most}")
        self.max_cells = packet_cells_for(facts.mtu_bytes)
        self._replies = np.zeros((_BATCH, MAX_REPLY_BYTES), np.uint8)
        self._reply_lengths = np.zeros(_BATCH, np.int64)
        fits = facts.mtu_bytes <= _SMALL_FRAME - _BESIDE
        with ExitStack() as stack:
            program = BpfObject(_PROGRAM)
            stack.callback(program.close)
            program.set_constant("receiver_port", socket.htons(port))
            program.load()
            attachment = program.programs["hand_over"].attach_xdp(facts.index, mode)
            stack.callback(attachment.detach)
            self._socket = XdpSocket(
                facts.index, _QUEUE, frame_bytes=_SMALL_FRAME if fits else _LARGE_FRAME
            )
            stack.callback(self._socket.close)
            self._answers = UdpSocket("0.0.0.0:0", joins_packets=False)
            stack.callback(self._answers.close)
            # Until now all packets went up, to the UDP socket.
            queue, descriptor = (number.to_bytes(4, "little") for number in (_QUEUE, self.event_fd))
            program.maps["sockets"].update(queue, descriptor)
            self.mode = attachment.mode
            self._held = stack.pop_all()

    @property
    def event_fd(self) -> int:
        """See the class."""
        return self._socket.fileno()

    def drain_events(self) -> None:
        """Take frames that wait, and answer; what is left makes :attr:`event_fd` readable again."""
        for _ in range(_BATCHES):
            frames = self._socket.arrived(_BATCH)
            if frames is None:
                return
            self._take(frames)
            self._socket.give_back(len(frames.lengths))

    def losses(self) -> dict[str, int]:
        """Return what the kernel dropped because frames were taken too slowly, by reason."""
        return self._socket.losses()

    def close(self) -> None:
        """Detach the program; a second call does nothing."""
        self._held.close()

    def _take(self, frames: Frames) -> None:
        heads = frames.rows(0)
        # A short frame is padded: UDP says where its packet ends, if that is within the frame.
        told = heads[:, _UDP_LENGTH].astype(np.int64) @ np.array([256, 1]) - _UDP_HEADER
        lengths = np.where(told <= frames.lengths - _PAYLOAD, told, 0)
        self.take(frames.rows(_PAYLOAD), lengths, self._replies, self._reply_lengths)
        answered = np.flatnonzero(self._reply_lengths[: len(lengths)])
        if len(answered):
            self._answer(answered, heads)

    def _answer(self, answered: NDArray[np.int64], heads: NDArray[np.uint8]) -> None:
        """Send the answers; of several for the same packets, the last includes the others."""
        names = np.zeros((len(answered), 16), np.uint8)
        names[:, 0] = socket.AF_INET
        names[:, 2:4] = heads[answered, _SOURCE_PORT]
        names[:, 4:8] = heads[answered, _SOURCE_ADDRESS]
        words = self._replies[answered].view(np.uint64)
        told = words[:, (0, _TOKEN_WORD, _FIRST_WORD)].tolist()
        latest = {
            (*key, name.tobytes()): place
            for key, name, place in zip(told, names, answered.tolist(), strict=True)
        }
        messages = []
        for (*_, name), place in latest.items():
            size = int(self._reply_lengths[place])
            messages.append(Message(self._replies[place, :size], size, name))
        # An answer that cannot be sent counts as lost: the sender asks again.
        self._answers.send_lossy(messages)
