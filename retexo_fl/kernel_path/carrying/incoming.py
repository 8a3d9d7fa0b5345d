"""What a client receives in one exchange from those peers that send datagrams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from retexo_fl.channels import BlockKey
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.client.vector_carrier import MOST_GRANTS
from retexo_fl.errors import ChannelUnavailable, ExchangeIncomplete
from retexo_fl.exchange import BlockHeader
from retexo_fl.kernel_path.carrying.choice import WayChoice
from retexo_fl.kernel_path.carrying.control import (
    Grant,
    Notice,
    Way,
    control_frames,
    grant_header,
    notice_header,
)
from retexo_fl.kernel_path.carrying.layout import ExchangeLayout, cache_key
from retexo_fl.kernel_path.carrying.outgoing import job_number
from retexo_fl.kernel_path.carrying.reading import read_block
from retexo_fl.kernel_path.endpoint.endpoint import DatagramEndpoint
from retexo_fl.kernel_path.endpoint.records import IncomingStream

#: The accumulator's rows of an exchange are one block.
_ROWS: Final = 0


@dataclass(slots=True, kw_only=True)
class _Sender:
    """One peer.

    Attributes:
        header: Of the block that its vectors would make.
        awaited: Header of its notice.
        notice: What it has announced.
        was_asked: Its notice was asked for, so that a peer which is away is looked for.
    """

    header: BlockHeader
    awaited: BlockHeader
    notice: Notice | None = None
    was_asked: bool = False


class IncomingExchange:
    """One exchange's vectors on their way; its methods are called in one thread at a time.

    All peers' vectors go into one block of the accumulator, and so come together. Where an
    exchange may be closed without a peer there is one of these for each.

    Args:
        name: Names the exchange at the endpoint.
        headers: By peer, the header of the block that the vectors would make.
        targets: By peer, [n] int64 what each vector is summed into, -1 for nothing; None where
            nothing is shared.
        endpoint: Takes the datagrams.
        choice: Says which blocks are better sent as blocks.
    """

    def __init__(
        self,
        name: bytes,
        headers: Mapping[int, BlockHeader],
        targets: Mapping[int, np.ndarray] | None,
        *,
        endpoint: DatagramEndpoint,
        choice: WayChoice,
    ) -> None:
        self._name = name
        self._targets = targets
        self._endpoint = endpoint
        self._choice = choice
        self._senders = {
            peer: _Sender(header=headers[peer], awaited=notice_header(headers[peer]))
            for peer in sorted(headers)
        }
        self._layout: ExchangeLayout | None = None
        self._ways: dict[int, Way] = {}
        self._vectors: dict[int, np.ndarray] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all vectors that come by datagrams are there."""
        return self._vectors is not None

    def taken(self) -> dict[int, tuple[np.ndarray, BlockHeader, Notice]]:
        """Return, by peer, [n, width] vectors and what announced them; nothing until all are there.

        Peers that send blocks are left out.
        """
        notices = self.notices
        return {
            peer: (vectors, self._senders[peer].header, notices[peer])
            for peer, vectors in (self._vectors or {}).items()
        }

    @property
    def peers(self) -> frozenset[int]:
        """Whose vectors it takes."""
        return frozenset(self._senders)

    @property
    def by_block(self) -> frozenset[int]:
        """Peers that were asked to send blocks."""
        return frozenset(peer for peer, way in self._ways.items() if way is Way.BLOCK)

    @property
    def notices(self) -> Mapping[int, Notice]:
        """By peer, what it has announced."""
        return {
            peer: sender.notice
            for peer, sender in self._senders.items()
            if sender.notice is not None
        }

    def step(self, depot: BlockDepot) -> bool:
        """Read notices, open and grant; return whether this step completed the exchange.

        Raises:
            RemoteProtocolError: A notice is none.
            PartitionError: A peer lists other edges than this part.
        """
        if self._vectors is not None:
            return False
        if self._layout is None:
            if not self._read_notices(depot):
                return False
            self._open(depot)
        assert self._layout is not None
        if self._layout.places and not self._endpoint.progress(self._name).complete:
            return False
        self._take()
        return True

    def forget(self) -> None:
        """Take nothing more; what is complete may be kept for a later exchange alike."""
        if self._layout is not None and self._layout.places and self._vectors is None:
            self._endpoint.close_exchange(self._name)

    def control_keys(self, depot: BlockDepot) -> set[BlockKey]:
        """Return the mailboxes of notices and of grants."""
        keys = set()
        for sender in self._senders.values():
            keys.add(notice_header(sender.header).key)
            if sender.notice is not None:
                keys |= {
                    grant_header(sender.header, number, sender.notice.num_streams).key
                    for number in range(_grants(depot, sender.header, sender.notice))
                }
        return keys

    def _read_notices(self, depot: BlockDepot) -> bool:
        """Return whether all have announced."""
        for sender in self._senders.values():
            if sender.notice is not None:
                continue
            if sender.was_asked and not depot.has_arrived(sender.awaited.key):
                continue
            sender.was_asked = True
            block = read_block(depot, sender.awaited)
            if block is not None:
                sender.notice = Notice.read(block, sender.header.sender)
        return all(sender.notice is not None for sender in self._senders.values())

    def _open(self, depot: BlockDepot) -> None:
        notices = self.notices
        width = next(iter(self._senders.values())).header.width
        self._ways = self._choice.ways(notices, width, max_cells=self._endpoint.max_cells)
        taken = {peer: n for peer, n in notices.items() if self._ways[peer] is not Way.BLOCK}
        targets = None
        if self._targets is not None:
            targets = {peer: self._targets[peer] for peer in taken}
        self._layout = ExchangeLayout.of(taken, targets)
        grants = self._accept(taken, targets, width) if taken else {}
        for peer, notice in notices.items():
            self._answer(depot, peer, notice, grants.get(peer, Grant(way=self._ways[peer])))

    def _accept(
        self,
        notices: Mapping[int, Notice],
        targets: Mapping[int, np.ndarray] | None,
        width: int,
    ) -> dict[int, Grant]:
        """Make room at the endpoint, or find there what came before."""
        kept = cache_key(notices, targets, width)
        if self._endpoint.revive(kept, self._name):
            return {peer: Grant(way=Way.KEPT) for peer in notices}
        assert self._layout is not None
        header = next(iter(self._senders.values())).header
        try:
            self._endpoint.open_exchange(
                self._name,
                job=job_number(header.job),
                stage=header.layer,
                width=width,
                streams_expected=sum(notice.num_streams for notice in notices.values()),
                cache_key=kept,
            )
            handle = self._endpoint.add_rows(self._name, self._layout.rows)
            assert handle == _ROWS
            return {
                peer: Grant(
                    way=Way.DATAGRAMS,
                    streams=tuple(
                        self._open_stream(peer, notice, number, width)
                        for number in range(notice.num_streams)
                    ),
                )
                for peer, notice in notices.items()
            }
        except ChannelUnavailable as error:
            self._endpoint.close_exchange(self._name)
            self._choice.no_room(error)
            self._layout = ExchangeLayout.of({}, None)
            self._ways |= dict.fromkeys(notices, Way.BLOCK)
            return {}

    def _open_stream(self, peer: int, notice: Notice, number: int, width: int) -> tuple[int, int]:
        assert self._layout is not None
        places = self._layout.places[peer][notice.streams == number]
        granted = self._endpoint.open_stream(
            self._name,
            IncomingStream(
                sender=peer,
                number=number,
                rows=len(places),
                width=width,
                packet_cells=notice.packet_cells,
                places=places,
                # A peer is not to learn what others sent.
            ),
            _ROWS,
        )
        return granted.token, granted.stream

    def _answer(self, depot: BlockDepot, peer: int, notice: Notice, grant: Grant) -> None:
        sender = self._senders[peer]
        number = _grants(depot, sender.header, notice)
        if number == MOST_GRANTS:
            raise ExchangeIncomplete(
                f"client {sender.header.receiver}: vectors of client {peer} were lost {number} "
                "times; expected an agent that stays up for one exchange"
            )
        header = grant_header(sender.header, number, notice.num_streams)
        depot.send_block(
            header.key,
            control_frames(header, grant.numbers(notice.num_streams), codec="dense"),
        )

    def _take(self) -> None:
        """Copy the values out of the accumulator and let it go."""
        assert self._layout is not None
        dtype = next(iter(self._senders.values())).header.dtype
        if self._layout.places:
            accumulated = self._endpoint.rows(self._name, _ROWS)
            self._vectors = self._layout.vectors(accumulated, dtype)
            self._endpoint.close_exchange(self._name)
        else:
            self._vectors = {}


def _grants(depot: BlockDepot, header: BlockHeader, notice: Notice) -> int:
    """Return how many grants were sent for a block, also by an earlier process."""
    number = 0
    while number < MOST_GRANTS and depot.has_sent(
        grant_header(header, number, notice.num_streams).key
    ):
        number += 1
    return number
