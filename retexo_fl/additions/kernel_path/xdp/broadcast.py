"""One send that the kernel copies to several peers: traffic control at the interface's way out.

A packet to :attr:`TcBroadcast.port`, with :attr:`TcBroadcast.token` as its token and the number of
a group as its stream, reaches every member of the group with that member's own token and stream.
Its address may be that of any member: it only has to leave by the interface. Copies have no socket:
no full send buffer slows the sender down, so it must keep to a window. UDP segmentation would put
several packets into one, of which only the first is readdressed: such a packet is dropped and
counted, so packets are sent one by one (``sendmmsg``).
"""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.additions.kernel_path.packets.layout import DATAGRAM_VERSION, MAGIC
from retexo_fl.additions.kernel_path.xdp.libbpf import BpfObject
from retexo_fl.additions.kernel_path.xdp.neighbours import ethernet_address, neighbour_mac
from retexo_fl.additions.kernel_path.xdp.udp_frame import udp_frame
from retexo_fl.errors import ChannelUnavailable

#: UDP port of groups: no socket listens there, and no packet to it leaves the machine.
GROUP_PORT: Final = 7409
MAX_MEMBERS: Final = 64
MAX_GROUPS: Final = 256
COUNTERS: Final = ("copies", "failed", "no_group", "segmented", "refused")

_PROGRAM: Final = Path(__file__).with_name("programs") / "broadcast.bpf.o"
_NUMBER: Final = struct.Struct("<I")
#: As in the program: how many members follow; of each, token, stream, address, port, to, from.
_COUNT: Final = struct.Struct("<II")
_MEMBER: Final = struct.Struct("<QI4s2s6s6s2x")
#: ``TC_ACT_UNSPEC``: the packet goes its way.
_GOES_ON: Final = 0xFFFF_FFFF
#: For the self-test alone.
_TEST_GROUP: Final = 0xFFFF_FFFF
_TEST_MAC: Final = b"\2RETXO"


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastMember:
    """One receiver of a group.

    Attributes:
        address: IPv4 address.
        port: UDP port.
        token: From its grant; ``stream`` likewise.
        stream: Index in its table of streams.
    """

    address: str
    port: int
    token: int
    stream: int


class TcBroadcast:
    """The program at an interface, and its groups; until :meth:`close`.

    Args:
        interface: An Ethernet interface by which all members are reached.
        port: UDP port of groups.

    Attributes:
        interface: See above; ``port`` likewise.
        token: What packets to a group must have as their token, drawn at random.

    Raises:
        ChannelUnavailable: No Ethernet, no privilege, or the program does not do what it should.
    """

    def __init__(self, interface: str, *, port: int = GROUP_PORT) -> None:
        self.interface = interface
        self.port = port
        self.token = secrets.randbits(64) | 1
        self._mac = ethernet_address(interface)
        self._object = BpfObject(_PROGRAM)
        try:
            self._object.set_constant("group_port", socket.htons(port))
            self._object.set_constant("group_token", self.token)
            self._object.load()
            self._program = self._object.programs["broadcast"]
            self._groups = self._object.maps["groups"]
            self._counters = self._object.maps["counters"].array(np.dtype((np.uint64, 5)))[0]
            self._examine()
            number = socket.if_nametoindex(interface)
            self._attachment = self._program.attach_tc(number, "egress")
        except BaseException:
            self._object.close()
            raise

    def set_group(
        self, number: int, members: Sequence[BroadcastMember], *, timeout_s: float = 1.0
    ) -> None:
        """Make a group, or change it between two packets.

        Args:
            number: Below 2^32 - 1; packets name it as their stream.
            members: 1 to 64.
            timeout_s: For each, how long its Ethernet address may be asked for.

        Raises:
            ChannelUnavailable: A member is not reached by the interface or does not answer, or
                there are 256 groups.
        """
        if not 1 <= len(members) <= MAX_MEMBERS:
            raise ChannelUnavailable(
                f"a group of {len(members)} members; expected 1 to {MAX_MEMBERS}"
            )
        macs = [
            neighbour_mac(self.interface, member.address, timeout_s=timeout_s) for member in members
        ]
        self._write(number, members, macs)

    def remove_group(self, number: int) -> None:
        """Forget a group, if there is one: packets to it are dropped and counted."""
        self._groups.delete(_NUMBER.pack(number))

    def counters(self) -> dict[str, int]:
        """Return what the program counted.

        ``copies`` passed to the interface, ``failed`` ones, and packets dropped whole: ``no_group``
        has that number, ``segmented`` ones hold several, ``refused`` ones have another token.
        """
        return dict(zip(COUNTERS, map(int, self._counters), strict=True))

    def close(self) -> None:
        """Take the program away; a second call does nothing."""
        self._attachment.detach()
        self._object.close()

    def _write(
        self, number: int, members: Sequence[BroadcastMember], macs: Sequence[bytes]
    ) -> None:
        records = [
            _MEMBER.pack(
                member.token,
                member.stream,
                socket.inet_aton(member.address),
                member.port.to_bytes(2, "big"),
                mac,
                self._mac,
            )
            for member, mac in zip(members, macs, strict=True)
        ]
        value = _COUNT.pack(len(records), 0) + b"".join(records)
        self._groups.update(_NUMBER.pack(number), value.ljust(self._groups.value_bytes, b"\0"))

    def _examine(self) -> None:
        """Have the program readdress a packet that comes from nowhere, and look at it."""
        member = BroadcastMember(address="198.51.100.7", port=4711, token=2**64 - 3, stream=5)
        self._write(_TEST_GROUP, [member], [_TEST_MAC])
        source = ("198.51.100.1", 4712)
        given = _packet(self.token, _TEST_GROUP)
        wanted = _packet(member.token, member.stream)
        for has_checksum in (False, True):
            seen = self._program.test_run(
                udp_frame(
                    (self._mac, self._mac),
                    source,
                    ("198.51.100.2", self.port),
                    given,
                    has_checksum=has_checksum,
                )
            )
            right = udp_frame(
                (_TEST_MAC, self._mac),
                source,
                (member.address, member.port),
                wanted,
                has_checksum=has_checksum,
            )
            if seen.code != _GOES_ON or seen.frame != right:
                raise ChannelUnavailable(
                    f"{_PROGRAM.name}: readdressed a packet wrongly (returned {seen.code})"
                )
        self.remove_group(_TEST_GROUP)
        self._counters[:] = 0


def _packet(token: int, stream: int) -> bytes:
    """Return the beginning of a packet of ours, and a payload."""
    return struct.pack("<IBBBBQI", MAGIC, DATAGRAM_VERSION, 1, 0, 0, token, stream) + bytes(
        range(64)
    )
