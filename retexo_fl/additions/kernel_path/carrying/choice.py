"""Which vectors come by datagrams and which as blocks, where the agent may choose.

The rule depends on the vectors alone, never on a measured time, so a run repeats its choices. What
is chosen changes no bit of a result.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from retexo_fl.additions.kernel_path.carrying.control import Notice, Way
from retexo_fl.additions.kernel_path.carrying.tickets import may_recur
from retexo_fl.client.log_lines import line
from retexo_fl.errors import ChannelUnavailable
from retexo_fl.exchange import BlockHeader

logger = logging.getLogger(__name__)

#: Where so many senders deliver so much each, the kernel's program takes no more of the receiver's
#: processor than TCP; everywhere below TCP takes less (figures: `docs/measured/hardware.md`).
LEAST_SENDERS: Final = 16
LEAST_BYTES: Final = 1 << 22
#: A training whose exchanges come so often takes three quarters of TCP's processor time or less:
#: the first, with a notice for each peer, takes more than TCP's, each later one two fifths.
LEAST_TIMES: Final = 16
_VALUE_BYTES: Final = 4
#: A block writes a stored value with its column in about so many bytes; datagrams hold zeros, too.
_STORED_BYTES: Final = 6


def why_block(header: BlockHeader, *, times: int, most_senders: int) -> str:
    """Return why a receiver that may choose takes a block, whatever a notice would say.

    Both ends know what it is computed from, so the sender sends the block unasked. Nothing where
    the notice decides.

    Args:
        header: Of the block.
        times: How often such an exchange comes.
        most_senders: How many clients may send to the receiver.
    """
    if times >= LEAST_TIMES and may_recur(header):
        return ""
    return _too_little(header.num_vectors * header.width * _VALUE_BYTES, most_senders)


def _too_little(dense: int, senders: int) -> str:
    if senders < LEAST_SENDERS:
        return f"fewer than {LEAST_SENDERS} senders"
    return "" if dense >= LEAST_BYTES else f"less than {LEAST_BYTES} bytes of one sender"


class WayChoice:
    """What one agent chooses.

    Args:
        automatic: Choose; otherwise everything comes by datagrams.
        in_kernel: A program in the kernel takes datagrams.
    """

    def __init__(self, *, automatic: bool, in_kernel: bool) -> None:
        self._automatic = automatic
        self._nobody_takes = "" if in_kernel else "no program in the kernel takes them"
        self._said: set[str] = set()

    def is_block(self, header: BlockHeader, *, times: int, most_senders: int) -> bool:
        """Return whether a peer's vectors come as a block, without its notice."""
        if not self._automatic:
            return False
        why = self._nobody_takes or why_block(header, times=times, most_senders=most_senders)
        if why:
            self._say_once(why, why)
        return bool(why)

    def are_blocks(self, *, times: int, most_senders: int) -> bool:
        """Return whether all exchanges of a job come as blocks."""
        is_seldom = times < LEAST_TIMES and most_senders < LEAST_SENDERS
        return self._automatic and (bool(self._nobody_takes) or is_seldom)

    def ways(
        self,
        notices: Mapping[int, Notice],
        width: int,
        *,
        senders: int,
        max_cells: int,
        recurring: Collection[int] = (),
        times: int = 0,
    ) -> dict[int, Way]:
        """Return how each peer's vectors shall come.

        Args:
            notices: By peer.
            width: Values of a vector.
            senders: Peers that send in this exchange, also those without a notice.
            max_cells: Of the longest packet that is taken here.
            recurring: Peers whose next exchanges need no notice if this one is by datagrams.
            times: How often these come.
        """
        return {
            peer: self._way(notice, width, senders, times=times if peer in recurring else 0)
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

    def _way(self, notice: Notice, width: int, senders: int, *, times: int) -> Way:
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
        if self._nobody_takes:
            return self._nobody_takes
        if times >= LEAST_TIMES:
            return ""
        # A block that has a byte for each value is as long with zeros as without.
        if not notice.in_bytes and notice.stored * _STORED_BYTES < dense:
            return "many values are zero"
        return _too_little(dense, senders)

    def _say_once(self, kind: str, why: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            logger.info(line("blocks", instead_of="datagrams", reason=why))
