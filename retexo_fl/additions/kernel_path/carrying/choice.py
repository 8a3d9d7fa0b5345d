"""Which vectors come by datagrams and which as blocks, where the agent may choose.

The rule depends on the vectors alone, never on a measured time, so a run repeats its choices. What
is chosen changes no bit of a result.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from retexo_fl.additions.kernel_path.carrying.control import Notice, Way
from retexo_fl.client.log_lines import line
from retexo_fl.errors import ChannelUnavailable

logger = logging.getLogger(__name__)

#: Where so many senders deliver so much each, the kernel's program takes no more of the receiver's
#: processor than TCP; everywhere below TCP takes less (figures: `docs/measured/hardware.md`).
LEAST_SENDERS: Final = 16
LEAST_BYTES: Final = 1 << 22
#: A training whose exchanges come so often takes two thirds of TCP's processor time or less: the
#: first, with a notice for each peer, takes more than TCP's, each later one two fifths.
LEAST_TIMES: Final = 16
_VALUE_BYTES: Final = 4
#: A block writes a stored value with its column in about so many bytes; datagrams hold zeros, too.
_STORED_BYTES: Final = 6


class WayChoice:
    """What one agent chooses.

    Args:
        automatic: Choose; otherwise everything comes by datagrams.
        in_kernel: A program in the kernel takes datagrams.
    """

    def __init__(self, *, automatic: bool, in_kernel: bool) -> None:
        self._automatic = automatic
        self._in_kernel = in_kernel
        self._said: set[str] = set()

    def ways(
        self,
        notices: Mapping[int, Notice],
        width: int,
        *,
        max_cells: int,
        recurring: Collection[int] = (),
        times: int = 0,
    ) -> dict[int, Way]:
        """Return how each peer's vectors shall come.

        Args:
            notices: By peer.
            width: Values of a vector.
            max_cells: Of the longest packet that is taken here.
            recurring: Peers whose next exchanges need no notice if this one is by datagrams.
            times: How often these come.
        """
        return {
            peer: self._way(
                notice, width, senders=len(notices), times=times if peer in recurring else 0
            )
            if notice.packet_cells <= max_cells
            else self._too_long(peer, notice)
            for peer, notice in notices.items()
        }

    def no_room(self, error: ChannelUnavailable) -> None:
        """Note that an exchange does not fit, and comes as blocks.

        Raises:
            ChannelUnavailable: The agent may not choose.
        """
        if not self._automatic:
            raise ChannelUnavailable(
                f"{error}; raise datagram-memory-mib in agent.toml, or listen at auto://"
            ) from error
        self._say_once("memory", str(error))

    def _too_long(self, peer: int, notice: Notice) -> Way:
        self._say_once(
            "length",
            f"client {peer} sends packets of {notice.packet_cells} cells, too long for "
            "this interface's MTU",
        )
        return Way.BLOCK

    def _way(self, notice: Notice, width: int, *, senders: int, times: int) -> Way:
        if not self._automatic:
            return Way.DATAGRAMS
        why = self._why_not(notice, width, senders, times=times)
        if why:
            self._say_once(why, why)
            return Way.BLOCK
        return Way.DATAGRAMS

    def _why_not(self, notice: Notice, width: int, senders: int, *, times: int) -> str:
        """Return why a sender's vectors are better sent as a block; nothing where they are not."""
        dense = len(notice.streams) * width * (1 if notice.in_bytes else _VALUE_BYTES)
        if not self._in_kernel:
            return "no program in the kernel takes them"
        if times >= LEAST_TIMES:
            return ""
        # A block that has a byte for each value is as long with zeros as without.
        if not notice.in_bytes and notice.stored * _STORED_BYTES < dense:
            return "many values are zero"
        if senders < LEAST_SENDERS:
            return f"fewer than {LEAST_SENDERS} senders"
        return "" if dense >= LEAST_BYTES else f"less than {LEAST_BYTES} bytes of one sender"

    def _say_once(self, kind: str, why: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            logger.info(line("blocks", instead_of="datagrams", reason=why))
