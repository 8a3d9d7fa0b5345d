"""What a client sends in one exchange to those peers that take datagrams."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from retexo_fl.additions.kernel_path.carrying.broadcasts import Streams
from retexo_fl.additions.kernel_path.carrying.control import (
    MOST_PACKET_CELLS,
    Grant,
    Notice,
    Way,
    control_frames,
    grant_header,
    job_number,
    notice_header,
)
from retexo_fl.additions.kernel_path.carrying.reading import read_block
from retexo_fl.additions.kernel_path.carrying.tickets import HeldBooks, Ticket, with_tail
from retexo_fl.additions.kernel_path.endpoint.endpoint import DatagramEndpoint
from retexo_fl.additions.kernel_path.endpoint.records import Destination, StreamGrant
from retexo_fl.channels import BlockKey
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.client.vector_carrier import MOST_GRANTS
from retexo_fl.exchange import BYTE_BITS, BlockHeader, FixedVectors, encode_block
from retexo_fl.exchange.fixed_point import byte_rows

#: Peers that take one packet together wait so long for the last of them to agree.
_GATHER_S: Final = 2.0
_DIGEST_BYTES: Final = 16


@dataclass(slots=True, kw_only=True)
class _Recipient:
    """One peer: what it is sent, and what it has answered.

    Attributes:
        header: Of the block that the vectors would make.
        steps: [n, width] int32.
        values: As they are sent: the same, or numbers of a byte.
        notice: The notice for it.
        address: Where it takes datagrams.
        grant: Its last grant.
        next_grant: Header of the grant that is looked for; None where there can be no more.
        grants: How many of its grants were read.
        was_asked: Its first grant was asked for, so that a peer which is away is looked for.
        sending: Keys at the endpoint of what is sent under the last grant, by stream.
        awaited: Streams that are not started yet under it.
        ticket: In place of a notice and a grant, until the receiver asks for a notice.
    """

    header: BlockHeader
    steps: np.ndarray
    values: np.ndarray
    notice: Notice
    address: str
    next_grant: BlockHeader | None = None
    grant: Grant | None = None
    grants: int = 0
    was_asked: bool = False
    sending: dict[int, bytes] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)
    ticket: Ticket | None = None


class OutgoingExchange:
    """One exchange's vectors on their way; its methods are called in one thread at a time.

    Args:
        name: Names the exchange at the endpoint.
        headers: By peer, the header of the block that the vectors would make.
        fixed: The vectors.
        streams: How they are put into streams.
        addresses: Where each peer takes datagrams.
        endpoint: Sends them.
        books: Tickets of peers, for this and for later exchanges.
    """

    def __init__(
        self,
        name: bytes,
        headers: Mapping[int, BlockHeader],
        fixed: FixedVectors,
        streams: Streams,
        *,
        addresses: Mapping[int, str],
        endpoint: DatagramEndpoint,
        books: HeldBooks,
    ) -> None:
        self._name = name
        self._fixed = fixed
        self._streams = streams
        self._endpoint = endpoint
        self._books = books
        self._first_grant_s = float("inf")
        #: Count of started streams: it is part of keys, so a restarted stream has another key.
        self._begun = 0
        # One for all: a packet that several peers take is cut in one way.
        on_paths = (endpoint.packet_cells_to(addresses[peer]) for peer in headers)
        cells = min(*on_paths, MOST_PACKET_CELLS)
        self._recipients = {}
        for peer in sorted(headers):
            steps = fixed.integers(peer)
            in_bytes = byte_rows(steps) if fixed.bits == BYTE_BITS else None
            values, forms = in_bytes or (steps, None)
            notice = Notice(
                exponent=fixed.exponent,
                packet_cells=cells,
                stored=0,
                digest=b"",
                streams=streams.numbers[peer],
                forms=forms,
            )
            ticket = None
            if notice.num_streams == 1 and not streams.members and not notice.in_bytes:
                ticket = books.take(headers[peer], packet_cells=cells)
            recipient = _Recipient(
                header=headers[peer],
                steps=steps,
                values=values,
                address=addresses[peer],
                notice=replace(notice, by_ticket=True) if ticket else _described(notice, steps),
                ticket=ticket,
            )
            recipient.next_grant = self._grant(recipient, 0)
            self._recipients[peer] = recipient

    @property
    def notices(self) -> Mapping[int, Notice]:
        """By peer, its notice."""
        return {peer: recipient.notice for peer, recipient in self._recipients.items()}

    def announce(self, depot: BlockDepot) -> None:
        """Send what there are tickets for; else put the notices into the outbox.

        Raises:
            ChannelUnavailable: One could not be written.
        """
        for peer, recipient in self._recipients.items():
            if recipient.ticket is None:
                self._announce(recipient, depot)
            else:
                self._send_by_ticket(peer, recipient, recipient.ticket)

    def step(self, depot: BlockDepot, now_s: float) -> None:
        """Read grants that have arrived, and send what they ask for."""
        for recipient in self._recipients.values():
            self._read_grants(recipient, depot, now_s)
        for number, members in enumerate(self._streams.members):
            self._send_together(number, members, now_s)
        for peer, recipient in self._recipients.items():
            for stream in sorted(recipient.awaited):
                if not self._may_join(peer, stream):
                    self._send(stream, [peer])

    def untaken(self) -> list[int]:
        """Return the peers that do not have everything yet."""
        return [peer for peer, found in self._recipients.items() if not self._has_all(found)]

    def stalled(self) -> list[int]:
        """Return the peers that have stopped to acknowledge."""
        return [
            peer
            for peer, found in self._recipients.items()
            if any(self._endpoint.sending(key).stalled for key in found.sending.values())
        ]

    def forget(self) -> None:
        """Send nothing more."""
        for recipient in self._recipients.values():
            self._stop(recipient)

    def control_keys(self) -> set[BlockKey]:
        """Return the mailboxes of notices that were sent and of grants that have come."""
        keys = set()
        for recipient in self._recipients.values():
            if recipient.ticket is None:
                keys.add(notice_header(recipient.header).key)
            grants = (self._grant(recipient, number) for number in range(recipient.grants))
            keys |= {grant.key for grant in grants if grant is not None}
        return keys

    # ---- grants -----------------------------------------------------------------------------

    def _read_grants(self, recipient: _Recipient, depot: BlockDepot, now_s: float) -> None:
        """Read all that have arrived; the last one counts."""
        while (header := recipient.next_grant) is not None:
            # By ticket there is a grant only if something was lost.
            is_silent = recipient.was_asked or recipient.ticket is not None
            if is_silent and not depot.has_arrived(header.key):
                return
            recipient.was_asked = True
            block = read_block(depot, header)
            if block is None:
                return
            recipient.grants += 1
            recipient.next_grant = self._grant(recipient, recipient.grants)
            self._follow(recipient, Grant.read(block, header.sender), depot)
            self._first_grant_s = min(self._first_grant_s, now_s)

    def _follow(self, recipient: _Recipient, grant: Grant, depot: BlockDepot) -> None:
        self._stop(recipient)
        recipient.grant = grant
        self._books.keep(recipient.header, grant.book, recipient.notice.packet_cells)
        if grant.way is Way.NOTICE:
            # It has started anew, and knows none of its books.
            self._books.forget(partial(_is_between, recipient.header))
        if recipient.ticket is not None:
            recipient.ticket = None
            recipient.notice = _described(recipient.notice, recipient.steps)
            self._announce(recipient, depot)
        if grant.way is Way.DATAGRAMS:
            recipient.awaited = set(range(recipient.notice.num_streams))
        if grant.way is Way.BLOCKS:
            self._books.end(recipient.header)
        if grant.way in {Way.BLOCK, Way.BLOCKS}:
            header = recipient.header
            vectors = self._fixed.vectors[header.receiver]
            block = encode_block(header, vectors, codec=self._fixed.wire_codec)
            depot.send_block(header.key, block.frames)

    @staticmethod
    def _announce(recipient: _Recipient, depot: BlockDepot) -> None:
        header = notice_header(recipient.header)
        depot.send_block(header.key, control_frames(header, recipient.notice.numbers()))

    def _send_by_ticket(self, peer: int, recipient: _Recipient, ticket: Ticket) -> None:
        header = recipient.header
        key = self._name + f"/ticket-{peer}".encode()
        recipient.sending[0] = key
        self._endpoint.send(
            key,
            with_tail(recipient.steps, recipient.notice.exponent, header.weights_digest),
            [Destination(address=recipient.address, grant=ticket.grant)],
            job=job_number(header.job),
            stage=header.layer,
            sender=header.sender,
            packet_cells=ticket.packet_cells,
        )

    def _stop(self, recipient: _Recipient) -> None:
        for key in recipient.sending.values():
            self._endpoint.forget_sending(key)
        recipient.sending, recipient.awaited = {}, set()

    @staticmethod
    def _grant(recipient: _Recipient, number: int) -> BlockHeader | None:
        """Return how a grant begins; None where there can be none of that number."""
        if number == MOST_GRANTS:
            return None
        return grant_header(recipient.header, number, recipient.notice.num_streams)

    # ---- sending ----------------------------------------------------------------------------

    def _send_together(self, number: int, members: Mapping[int, int], now_s: float) -> None:
        """Start a stream that several peers take, once all have agreed or time is over."""
        agreed = [
            peer
            for peer, stream in members.items()
            if stream in self._recipients[peer].awaited and self._recipients[peer].grants == 1
        ]
        answered = all(self._recipients[peer].grants for peer in members)
        if agreed and (answered or now_s > self._first_grant_s + _GATHER_S):
            self._send_stream(f"all-{number}", {peer: members[peer] for peer in agreed})

    def _may_join(self, peer: int, stream: int) -> bool:
        """Return whether a stream may still be started for several peers at once."""
        return self._recipients[peer].grants == 1 and any(
            members.get(peer) == stream for members in self._streams.members
        )

    def _send(self, stream: int, peers: Collection[int]) -> None:
        for peer in peers:
            self._send_stream(f"{peer}-{stream}", {peer: stream})

    def _send_stream(self, label: str, streams: Mapping[int, int]) -> None:
        """Send one stream to those who have granted it, each by its own number for it."""
        destinations, first = [], next(iter(streams))
        one = self._recipients[first]
        self._begun += 1
        key = self._name + f"/{label}/{self._begun}".encode()
        for peer, stream in streams.items():
            recipient = self._recipients[peer]
            assert recipient.grant is not None
            token, place = recipient.grant.streams[stream]
            destinations.append(
                Destination(address=recipient.address, grant=StreamGrant(token=token, stream=place))
            )
            recipient.sending[stream] = key
            recipient.awaited.discard(stream)
        chosen = one.notice.streams == streams[first]
        self._endpoint.send(
            key,
            one.values if chosen.all() else np.ascontiguousarray(one.values[chosen]),
            destinations,
            job=job_number(one.header.job),
            stage=one.header.layer,
            sender=one.header.sender,
            packet_cells=one.notice.packet_cells,
        )

    def _has_all(self, recipient: _Recipient) -> bool:
        grant = recipient.grant
        has_leave = grant is not None and grant.way is not Way.NOTICE
        if recipient.awaited or not (has_leave or recipient.ticket):
            return False
        return all(self._endpoint.sending(key).done for key in recipient.sending.values())


def _is_between(header: BlockHeader, form: BlockHeader) -> bool:
    return (form.job, form.receiver) == (header.job, header.receiver)


def _described(notice: Notice, steps: np.ndarray) -> Notice:
    """Return a notice with what the receiver chooses by."""
    return replace(notice, stored=int(np.count_nonzero(steps)), digest=_digest(steps))


def _digest(values: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(values).data).digest()[:_DIGEST_BYTES]
