"""The way that the vectors of all of an agent's exchanges take as datagrams."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np

from retexo_fl.additions.kernel_path.carrying.broadcasts import Streams
from retexo_fl.additions.kernel_path.carrying.carrier import Carrier, OpenExchanges
from retexo_fl.additions.kernel_path.carrying.choice import WayChoice, why_block
from retexo_fl.additions.kernel_path.carrying.control import Arrived, Notice, notice_header
from retexo_fl.additions.kernel_path.carrying.incoming import IncomingExchange
from retexo_fl.additions.kernel_path.carrying.outgoing import OutgoingExchange
from retexo_fl.additions.kernel_path.carrying.reading import read_block
from retexo_fl.additions.kernel_path.carrying.ticketed import TicketedExchange
from retexo_fl.additions.kernel_path.carrying.tickets import HeldBooks, IssuedBooks
from retexo_fl.additions.kernel_path.endpoint.endpoint import DatagramEndpoint
from retexo_fl.channels import BlockKey
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.client.vector_carrier import CONTROL_LAYERS, ExchangeId
from retexo_fl.exchange import BlockHeader, FixedVectors


class VectorPath:
    """All exchanges of one agent; its methods may be called from any thread.

    Args:
        client: Client index.
        depot: Carries notices and grants, and blocks where those are better.
        endpoint: Sends and takes datagrams; closed with this.
        automatic: Choose between datagrams and blocks.
        address_of: Returns where a peer takes datagrams, None where it does not.
        chooses: Returns whether a peer is known to choose, too.
    """

    def __init__(
        self,
        client: int,
        depot: BlockDepot,
        endpoint: DatagramEndpoint,
        *,
        automatic: bool,
        address_of: Callable[[int], str | None],
        chooses: Callable[[int], bool],
    ) -> None:
        self._client = client
        self._depot = depot
        self._endpoint = endpoint
        self._address_of = address_of
        self._chooses = chooses
        self._choice = WayChoice(automatic=automatic, in_kernel=endpoint.kind == "xdp")
        #: By job, the stage whose exchanges may recur.
        self._stages: dict[str, int] = {}
        self._held = HeldBooks()
        self._issued = IssuedBooks(endpoint)
        self._open = OpenExchanges()
        self._carrier = Carrier(self._open, depot, endpoint)

    def start(self) -> None:
        """Begin to carry."""
        self._endpoint.start()
        self._carrier.start()

    def close(self) -> None:
        """Carry nothing more; what is on its way is carried again when it is asked for again."""
        self._carrier.close()
        self._endpoint.close()

    def reaches(self, peer: int) -> bool:
        """Return whether vectors for a peer, and from it, are carried here."""
        return self._address_of(peer) is not None

    def announcing(self, exchange: ExchangeId) -> frozenset[int]:
        """Return every client of which a notice has come in an exchange."""
        job, stage, digest = exchange
        return self._depot.senders(job, stage + CONTROL_LAYERS, digest, receiver=self._client)

    def read_notice(self, header: BlockHeader) -> None:
        """Look at the notice of a block.

        Raises:
            PartitionError: Its sender lists other edges than this part.
            RemoteProtocolError: It is none.
        """
        read_block(self._depot, notice_header(header))

    # ---- exchanges --------------------------------------------------------------------------

    def is_block(self, header: BlockHeader, *, times: int, most_senders: int) -> bool:
        """Return whether vectors for a peer go as a block, which it need not ask for."""
        with self._open.changed:
            if self._held.have_ended(header):
                return True
        return self._chooses(header.receiver) and bool(
            why_block(header, times=times, most_senders=most_senders)
        )

    def send(
        self,
        headers: Mapping[int, BlockHeader],
        fixed: FixedVectors,
        streams: Streams,
    ) -> Mapping[int, Notice]:
        """Carry vectors to peers; an exchange that is carried already continues.

        Args:
            headers: By peer, the header of the block that the vectors would make.
            fixed: The vectors; kept until the exchange is forgotten.
            streams: How they are put into streams.

        Returns:
            By peer, the notice.

        Raises:
            ChannelUnavailable: There is no way to a peer, or the notice could not be kept.
        """
        exchange = _exchange_of(headers)
        addresses = {peer: self._address_of(peer) or "" for peer in headers}
        with self._open.changed:
            present = self._open.outgoing.get(exchange)
            if present is not None:
                return present.notices
            outgoing = OutgoingExchange(
                self._name(exchange, "out"),
                headers,
                fixed,
                streams,
                addresses=addresses,
                endpoint=self._endpoint,
                books=self._held,
            )
            outgoing.announce(self._depot)
            self._open.outgoing[exchange] = outgoing
        self._carrier.wake()
        return outgoing.notices

    def expect(
        self,
        headers: Mapping[int, BlockHeader],
        targets: Mapping[int, np.ndarray] | None,
        *,
        together: bool,
        times: int,
        most_senders: int,
    ) -> None:
        """Take vectors from peers; an exchange that is expected already continues.

        Args:
            headers: By peer, the header of the block that the vectors would make.
            targets: By peer, [n] int64 what each vector is summed into, -1 for nothing.
            together: No peer may stay away: vectors of different peers are added as they come.
            times: How often an exchange of this form comes; 0 where that is not known.
            most_senders: How many clients may send to this one.
        """
        exchange = _exchange_of(headers)
        with self._open.changed:
            if exchange in self._open.incoming:
                return
            if self._stages.get(exchange[0]) != exchange[1]:
                self._stages[exchange[0]] = exchange[1]
                for books in (self._held, self._issued):
                    books.forget(lambda form: form.job == exchange[0] and form.layer != exchange[1])
            seats = {peer: self._issued.take(header) for peer, header in headers.items()}
            others = [peer for peer, seat in seats.items() if seat is None]
            groups = [others] if together and others else [[peer] for peer in others]

            def made(group: list[int]) -> IncomingExchange:
                return IncomingExchange(
                    self._name(exchange, f"in-{group[0]}"),
                    {peer: headers[peer] for peer in group},
                    None if targets is None else {peer: targets[peer] for peer in group},
                    endpoint=self._endpoint,
                    choice=self._choice,
                    books=self._issued,
                    times=times,
                    most_senders=most_senders,
                )

            self._open.incoming[exchange] = [
                *map(made, groups),
                *(
                    TicketedExchange(
                        headers[peer],
                        seat,
                        endpoint=self._endpoint,
                        books=self._issued,
                        otherwise=partial(made, [peer]),
                    )
                    for peer, seat in seats.items()
                    if seat is not None
                ),
            ]
        self._carrier.wake()

    def arrived(self, exchange: ExchangeId) -> list[Arrived]:
        """Return the vectors that are there: together, those that were summed together.

        Raises:
            RetexoError: What went wrong with the exchange.
        """
        with self._open.changed:
            if exchange in self._open.failures:
                raise self._open.failures[exchange]
            units = self._open.incoming.get(exchange, ())
            return [taken for incoming in units if (taken := incoming.taken())]

    def missing(self, keys: Collection[BlockKey]) -> frozenset[BlockKey]:
        """Return those of some blocks that the depot will not have, and that are not there yet.

        Raises:
            RetexoError: What went wrong with their exchange.
        """
        return frozenset(
            key
            for key in keys
            if not any(
                key.sender in unit
                for unit in self.arrived((key.job, key.layer, key.weights_digest))
            )
        )

    def carries(self, key: BlockKey) -> bool:
        """Return whether a peer's vectors are expected here, and not as a block."""
        with self._open.changed:
            exchange = (key.job, key.layer, key.weights_digest)
            return any(
                key.sender in incoming.peers and key.sender not in incoming.by_block
                for incoming in self._open.incoming.get(exchange, ())
            )

    def untaken(self, exchanges: Collection[ExchangeId]) -> list[int]:
        """Return the peers that have not taken all that was sent in some exchanges."""
        with self._open.changed:
            found = {
                peer
                for exchange in exchanges
                if exchange in self._open.outgoing
                for peer in self._open.outgoing[exchange].untaken()
            }
        return sorted(found)

    @property
    def steps(self) -> int:
        """How often was looked for what has come."""
        return self._open.steps

    def wait(self, timeout_s: float, *, since: int) -> None:
        """Wait until something may have come since a number of :attr:`steps`, or time is over."""
        with self._open.changed:
            self._open.changed.wait_for(lambda: self._open.steps != since, timeout_s)

    def drop(self, exchanges: Collection[ExchangeId]) -> set[BlockKey]:
        """Forget exchanges; return the mailboxes of their notices and grants."""
        keys: set[BlockKey] = set()
        with self._open.changed:
            for exchange in exchanges:
                self._open.failures.pop(exchange, None)
                outgoing = self._open.outgoing.pop(exchange, None)
                if outgoing is not None:
                    keys |= outgoing.control_keys()
                    outgoing.forget()
                for incoming in self._open.incoming.pop(exchange, ()):
                    keys |= incoming.control_keys(self._depot)
                    incoming.forget()
        return keys

    def forget_job(self, job: str) -> None:
        """Forget all exchanges of a job; what the endpoint keeps for later ones stays."""
        with self._open.changed:
            known = {*self._open.outgoing, *self._open.incoming}
        self.drop([exchange for exchange in known if exchange[0] == job])
        with self._open.changed:
            self._stages.pop(job, None)
            self._held.forget_job(job)
            self._issued.forget(lambda form: form.job == job)

    def facts(self) -> dict[str, Any]:
        """Return what `retexo agent status` shows of datagrams."""
        with self._open.changed:
            stalled = {peer for found in self._open.outgoing.values() for peer in found.stalled()}
            waiting = sum(
                not incoming.is_complete
                for found in self._open.incoming.values()
                for incoming in found
            )
        return {
            "kind": self._endpoint.kind,
            "address": self._endpoint.address,
            "counters": self._endpoint.counters(),
            "waiting_for": waiting,
            "stalled_peers": sorted(stalled),
        }

    def _name(self, exchange: ExchangeId, what: str) -> bytes:
        job, stage, digest = exchange
        text = f"{job}/{stage}/{digest.hex()}/{self._client}/{what}"
        return hashlib.sha256(text.encode()).digest()


def _exchange_of(headers: Mapping[int, BlockHeader]) -> ExchangeId:
    first = next(iter(headers.values()))
    return first.job, first.layer, first.weights_digest
