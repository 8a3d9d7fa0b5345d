"""Cables of test hosts that lose and double frames of one UDP port, in the kernel.

The program sits at the far end of a host's cable, in the switch: the host itself is not touched.
`loss/loss.bpf.o` is built of the source beside it as the package's own programs are.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import numpy as np

from retexo_fl.additions.kernel_path.xdp.libbpf import BpfObject
from tests.support.host import Host
from tests.support.inside import inside

PROGRAM = Path(__file__).with_name("loss") / "loss.bpf.o"
_COUNTERS = ("seen", "lost", "doubled", "failed")


class BadCable:
    """What a host sends, in part lost and in part twice; until :meth:`close`.

    Args:
        host: Whose frames.
        udp_port: Only frames with this port at either end.
        lost: Share of frames that are lost, 0 to 1.
        doubled: Share that comes twice.
        seed: With the order of the frames, decides which.
        with_xdp: Put an XDP program that lets everything pass at the far end, too: what a host
            answers from native XDP arrives only then.
    """

    def __init__(
        self,
        host: Host,
        *,
        udp_port: int,
        lost: float = 0.0,
        doubled: float = 0.0,
        seed: int = 0,
        with_xdp: bool = False,
    ) -> None:
        self._object = BpfObject(PROGRAM)
        self._object.set_constant("udp_port", socket.htons(udp_port))
        self._object.set_constant("lost_share", _of_32_bits(lost))
        self._object.set_constant("double_share", _of_32_bits(doubled))
        self._object.set_constant("seed", seed % 2**64)
        self._object.load()
        self._counters = self._object.maps["counters"].array(np.dtype((np.uint64, 4)))[0]
        with inside(switch_of(host)):
            number = socket.if_nametoindex(host.port)
            programs = self._object.programs
            self._attached = [programs["bad_cable"].attach_tc(number, "ingress")]
            if with_xdp:
                self._attached.append(programs["let_pass"].attach_xdp(number, "native"))

    def counters(self) -> dict[str, int]:
        """Return how many frames of the port were ``seen``, ``lost``, ``doubled``.

        ``failed`` should have come twice, and did not.
        """
        return dict(zip(_COUNTERS, map(int, self._counters), strict=True))

    def close(self) -> None:
        """Mend the cable."""
        for attached in self._attached:
            attached.detach()
        self._object.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Mend the cable."""
        self.close()


@contextmanager
def bad_cables(
    *hosts: Host,
    udp_port: int,
    lost: float = 0.0,
    doubled: float = 0.0,
    seed: int = 0,
    with_xdp: bool = False,
) -> Iterator[list[BadCable]]:
    """Give each of several hosts a cable that is as bad, with a seed of its own."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                BadCable(
                    host,
                    udp_port=udp_port,
                    lost=lost,
                    doubled=doubled,
                    seed=seed + number,
                    with_xdp=with_xdp,
                )
            )
            for number, host in enumerate(hosts)
        ]


def switch_of(host: Host) -> str:
    """Return the namespace of the switch that a host is connected to."""
    return f"{host.namespace.removesuffix(host.name)}switch"


def _of_32_bits(share: float) -> int:
    return min(round(share * 2**32), 2**32 - 1)
