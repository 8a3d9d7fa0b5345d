"""What a client receives in one exchange from those peers that send datagrams."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from retexo_fl.additions.kernel_path.carrying.choice import WayChoice
from retexo_fl.additions.kernel_path.carrying.control import (
    Grant,
    Notice,
    Way,
    control_frames,
    grant_header,
    job_number,
    notice_header,
)
from retexo_fl.additions.kernel_path.carrying.layout import ExchangeLayout, cache_key
from retexo_fl.additions.kernel_path.carrying.reading import read_block
from retexo_fl.additions.kernel_path.carrying.tickets import IssuedBooks
from retexo_fl.additions.kernel_path.endpoint.endpoint import DatagramEndpoint
from retexo_fl.additions.kernel_path.endpoint.records import IncomingStream
from retexo_fl.channels import BlockKey
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.client.vector_carrier import MOST_GRANTS
from retexo_fl.errors import ChannelUnavailable, ExchangeIncomplete
from retexo_fl.exchange import BlockHeader

#: Inside a round a peer that neither sent nor announced anything for so long is asked for a notice:
#: one of the two ends has started anew.
ASK_AFTER_S: Final = 2.0
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
        was_urged: It was sent a grant that asks for a notice.
    """

    header: BlockHeader
    awaited: BlockHeader
    notice: Notice | None = None
    was_asked: bool = False
    was_urged: bool = False


class IncomingExchange:
    """One exchange's vectors on their way; its methods are called in one thread at a time.

    All peers' vectors go into one block of the accumulator, and so come together. Where an
    exchange may be closed without a peer there is one of these for each. A peer that knows what it
    would be asked for sends a block without a notice.

    Args:
        name: Names the exchange at the endpoint.
        headers: By peer, the header of the block that the vectors would make.
        targets: By peer, [n] int64 what each vector is summed into, -1 for nothing; None where
            nothing is shared.
        endpoint: Takes the datagrams.
        choice: Says which blocks are better sent as blocks.
        books: Make room for later exchanges of the same form.
        times: How often one of this form comes; 0 where that is not known.
        most_senders: How many clients may send to this one.
    """

    def __init__(  # noqa: PLR0913 - what an exchange is, and what it is taken by
        self,
        name: bytes,
        headers: Mapping[int, BlockHeader],
        targets: Mapping[int, np.ndarray] | None,
        *,
        endpoint: DatagramEndpoint,
        choice: WayChoice,
        books: IssuedBooks,
        times: int,
        most_senders: int,
    ) -> None:
        self._name = name
        self._targets = targets
        self._endpoint = endpoint
        self._choice = choice
        self._books = books
        self._times = times
        self._ask_at_s = time.monotonic() + ASK_AFTER_S
        self._senders = {
            peer: _Sender(header=headers[peer], awaited=notice_header(headers[peer]))
            for peer in sorted(headers)
        }
        self._layout: ExchangeLayout | None = None
        self._ways = {
            peer: Way.BLOCK
            for peer, header in headers.items()
            if choice.is_block(header, times=times, most_senders=most_senders)
        }
        are_blocks = choice.are_blocks(times=times, most_senders=most_senders)
        self._needless = Grant(way=Way.BLOCKS if are_blocks else Way.BLOCK)
        self._vectors: dict[int, np.ndarray] | None = None

    def ask_at_once(self) -> None:
        """Ask for notices that are not there, without a delay."""
        self._ask_at_s = time.monotonic()

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
        """Peers that send blocks, asked or not."""
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
        self._answer_needless(depot)
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
            num_streams = 1 if sender.notice is None else sender.notice.num_streams
            keys |= control_keys(depot, sender.header, num_streams=num_streams)
        return keys

    def _read_notices(self, depot: BlockDepot) -> bool:
        """Return whether all have announced, or sent blocks."""
        for peer, sender in self._senders.items():
            if sender.notice is not None or peer in self._ways:
                continue
            if depot.has_arrived(sender.header.key):
                self._ways[peer] = Way.BLOCK
                continue
            if sender.was_asked and not depot.has_arrived(sender.awaited.key):
                self._urge(depot, sender)
                continue
            sender.was_asked = True
            block = read_block(depot, sender.awaited)
            if block is not None:
                sender.notice = Notice.read(block, sender.header.sender)
            else:
                self._urge(depot, sender)
        return self._senders.keys() == self.notices.keys() | self._ways.keys()

    def _answer_needless(self, depot: BlockDepot) -> None:
        """Ask for a block where a peer has not known that it was to send one."""
        for peer in self.by_block:
            sender = self._senders[peer]
            if sender.notice is None and depot.has_arrived(sender.awaited.key):
                block = read_block(depot, sender.awaited)
                if block is not None:
                    sender.notice = Notice.read(block, peer)
                    send_grant(depot, sender.header, sender.notice.num_streams, self._needless)

    def _urge(self, depot: BlockDepot, sender: _Sender) -> None:
        """Ask for a notice, once, where a ticket may have been used that is none here."""
        is_late = time.monotonic() > self._ask_at_s
        # Before a stage, where vectors go along edges, there are no tickets.
        if is_late and not sender.was_urged and not sender.header.num_edges:
            sender.was_urged = True
            send_grant(depot, sender.header, 1, Grant(way=Way.NOTICE))

    def _open(self, depot: BlockDepot) -> None:
        notices = {peer: notice for peer, notice in self.notices.items() if peer not in self._ways}
        width = next(iter(self._senders.values())).header.width
        recurring = {
            peer
            for peer in notices
            if self._times > 1 and self._books.may_issue(self._senders[peer].header)
        }
        self._ways |= self._choice.ways(
            notices,
            width,
            senders=len(self._senders),
            max_cells=self._endpoint.max_cells,
            recurring=recurring,
            times=self._times,
        )
        taken = {peer: n for peer, n in notices.items() if self._ways[peer] is not Way.BLOCK}
        targets = None
        if self._targets is not None:
            targets = {peer: self._targets[peer] for peer in taken}
        self._layout = ExchangeLayout.of(taken, targets)
        grants = self._accept(taken, targets, width) if taken else {}
        for peer, notice in notices.items():
            grant = grants.get(peer, Grant(way=self._ways[peer]))
            header = self._senders[peer].header
            # What was issued before is void for a peer that has sent a notice.
            self._books.withdraw(header)
            if grant.way is not Way.BLOCK and peer in recurring:
                grant = replace(grant, book=self._books.issue(header, notice))
            send_grant(depot, header, notice.num_streams, grant)

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
        chosen = notice.streams == number
        places = self._layout.places[peer][chosen]
        granted = self._endpoint.open_stream(
            self._name,
            IncomingStream(
                sender=peer,
                number=number,
                rows=len(places),
                width=width,
                packet_cells=notice.packet_cells,
                places=places,
                forms=None if notice.forms is None else notice.forms[chosen],
                # A peer is not to learn what others sent.
            ),
            _ROWS,
        )
        return granted.token, granted.stream

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


def send_grant(depot: BlockDepot, header: BlockHeader, num_streams: int, grant: Grant) -> None:
    """Send a peer the next grant of an exchange.

    Raises:
        ExchangeIncomplete: It would be one too many.
        ChannelUnavailable: It could not be written.
    """
    number = _grants(depot, header, num_streams)
    if number == MOST_GRANTS:
        raise ExchangeIncomplete(
            f"client {header.receiver}: vectors of client {header.sender} were lost {number} "
            "times; expected an agent that stays up for one exchange"
        )
    granting = grant_header(header, number, num_streams)
    depot.send_block(
        granting.key, control_frames(granting, grant.numbers(num_streams), codec="dense")
    )


def control_keys(depot: BlockDepot, header: BlockHeader, *, num_streams: int) -> set[BlockKey]:
    """Return the mailboxes of one block's notice and of the grants that were sent for it."""
    grants = range(_grants(depot, header, num_streams))
    return {
        notice_header(header).key,
        *(grant_header(header, number, num_streams).key for number in grants),
    }


def _grants(depot: BlockDepot, header: BlockHeader, num_streams: int) -> int:
    """Return how many grants were sent for a block, also by an earlier process."""
    number = 0
    while number < MOST_GRANTS and depot.has_sent(grant_header(header, number, num_streams).key):
        number += 1
    return number
