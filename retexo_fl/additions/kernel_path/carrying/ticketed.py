"""What one peer sends in an exchange for which it holds a ticket."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np

from retexo_fl.additions.kernel_path.carrying.control import Grant, Notice, Way, notice_header
from retexo_fl.additions.kernel_path.carrying.incoming import (
    ASK_AFTER_S,
    IncomingExchange,
    control_keys,
    send_grant,
)
from retexo_fl.additions.kernel_path.carrying.layout import ExchangeLayout
from retexo_fl.additions.kernel_path.carrying.reading import read_block
from retexo_fl.additions.kernel_path.carrying.tickets import IssuedBooks, Seat, read_tail
from retexo_fl.additions.kernel_path.endpoint.endpoint import DatagramEndpoint
from retexo_fl.channels import BlockKey
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.exchange import BlockHeader

#: A seat has one block of rows.
_ROWS: Final = 0


class TicketedExchange:
    """One peer's vectors; its methods are called in one thread at a time.

    Where the peer sends a notice all the same, or nothing comes, or something else, it goes on as
    an :class:`IncomingExchange` and the peer's other tickets are withdrawn.

    Args:
        header: Of the block that the vectors would make.
        seat: Open at the endpoint.
        endpoint: Takes the datagrams.
        books: Have issued it.
        otherwise: Makes the exchange that goes on.
    """

    def __init__(
        self,
        header: BlockHeader,
        seat: Seat,
        *,
        endpoint: DatagramEndpoint,
        books: IssuedBooks,
        otherwise: Callable[[], IncomingExchange],
    ) -> None:
        self._header = header
        self._seat = seat
        self._endpoint = endpoint
        self._books = books
        self._otherwise = otherwise
        self._begun_s = time.monotonic()
        self._taken: dict[int, tuple[np.ndarray, BlockHeader, Notice]] = {}
        self._next: IncomingExchange | None = None
        self._has_answered = False

    @property
    def is_complete(self) -> bool:
        """See :class:`IncomingExchange`, as of all that follows."""
        return bool(self._taken) or (self._next is not None and self._next.is_complete)

    def taken(self) -> dict[int, tuple[np.ndarray, BlockHeader, Notice]]:
        """Return the vectors and what a notice would have said of them."""
        return self._taken if self._next is None else self._next.taken()

    @property
    def peers(self) -> frozenset[int]:
        """Whose vectors it takes."""
        return frozenset({self._header.sender})

    @property
    def by_block(self) -> frozenset[int]:
        """Whether the peer was asked for a block."""
        return frozenset() if self._next is None else self._next.by_block

    def step(self, depot: BlockDepot) -> bool:
        """Look whether they have come; return whether this step completed the exchange."""
        if self._next is not None:
            return self._next.step(depot)
        has_notice = depot.has_arrived(notice_header(self._header).key)
        if self._taken:
            if has_notice:
                self._answer(depot)
            return False
        is_here = self._endpoint.progress(self._seat.name).complete
        if is_here and self._take():
            return True
        if is_here or has_notice or time.monotonic() > self._begun_s + ASK_AFTER_S:
            self.forget()
            self._books.withdraw(self._header)
            self._next = self._otherwise()
            self._next.ask_at_once()
            return self._next.step(depot)
        return False

    def forget(self) -> None:
        """Take nothing more."""
        if self._next is not None:
            self._next.forget()
        elif not self._taken:
            self._endpoint.close_exchange(self._seat.name)

    def control_keys(self, depot: BlockDepot) -> set[BlockKey]:
        """Return the mailboxes of notices and of grants, if there are any."""
        if self._next is not None:
            return self._next.control_keys(depot)
        return control_keys(depot, self._header, num_streams=1) if self._has_answered else set()

    def _take(self) -> bool:
        """Copy the vectors; False where they are of another exchange."""
        header = self._header
        rows = self._endpoint.rows(self._seat.name, _ROWS)
        exponent = read_tail(rows, header.num_vectors, header.weights_digest)
        if exponent is None:
            return False
        notice = Notice(
            exponent=exponent,
            packet_cells=self._seat.packet_cells,
            stored=0,
            digest=b"",
            streams=np.zeros(header.num_vectors, dtype=np.int64),
            by_ticket=True,
        )
        layout = ExchangeLayout.of({header.sender: notice}, None)
        vectors = layout.vectors(rows[: header.num_vectors], header.dtype)[header.sender]
        self._endpoint.close_exchange(self._seat.name)
        self._taken = {header.sender: (vectors, header, notice)}
        return True

    def _answer(self, depot: BlockDepot) -> None:
        """Answer a peer that has started anew since: its vectors are here."""
        if self._has_answered:
            return
        block = read_block(depot, notice_header(self._header))
        if block is not None:
            notice = Notice.read(block, self._header.sender)
            self._books.withdraw(self._header)
            send_grant(depot, self._header, notice.num_streams, Grant(way=Way.KEPT))
            self._has_answered = True
