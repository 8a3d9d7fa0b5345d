"""Carries the vectors of all exchanges of one agent by datagrams, in a thread of its own.

The thread reads notices and grants out of the depot, tells the endpoint what to send and what to
take, and hands out what has come. Nobody else touches the endpoint.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from retexo_fl.agent.log_lines import LOGGER, line
from retexo_fl.agent.vectors.broadcasts import Streams
from retexo_fl.agent.vectors.choice import WayChoice
from retexo_fl.agent.vectors.control import (
    LAYERS,
    Arrived,
    ExchangeId,
    Notice,
    notice_header,
)
from retexo_fl.agent.vectors.incoming import IncomingExchange
from retexo_fl.agent.vectors.outgoing import OutgoingExchange
from retexo_fl.agent.vectors.reading import read_block
from retexo_fl.channels import BlockKey
from retexo_fl.channels.datagrams.endpoint import DatagramEndpoint
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.errors import RetexoError
from retexo_fl.exchange import BlockHeader

#: The thread looks up so often at least, though it is told of everything.
_LOOK_S: Final = 0.5
_STOP_S: Final = 5.0


class VectorPath:
    """All exchanges of one agent; its methods may be called from any thread.

    Args:
        client: Client index.
        depot: Carries notices and grants, and blocks where those are better.
        endpoint: Sends and takes datagrams; closed with this.
        automatic: Choose between datagrams and blocks.
        address_of: Returns where a peer takes datagrams, None where it does not.
    """

    def __init__(
        self,
        client: int,
        depot: BlockDepot,
        endpoint: DatagramEndpoint,
        *,
        automatic: bool,
        address_of: Callable[[int], str | None],
    ) -> None:
        self._client = client
        self._depot = depot
        self._endpoint = endpoint
        self._address_of = address_of
        self._choice = WayChoice(automatic=automatic)
        self._changed = threading.Condition()
        self._outgoing: dict[ExchangeId, OutgoingExchange] = {}
        #: By exchange, one for all peers or one for each.
        self._incoming: dict[ExchangeId, list[IncomingExchange]] = {}
        self._failures: dict[ExchangeId, RetexoError] = {}
        self._news = threading.Event()
        self._ended = False
        self._threads = [
            threading.Thread(target=self._run, name="vectors", daemon=True),
            threading.Thread(target=self._listen, name="vectors-news", daemon=True),
        ]
        depot.on_arrival(self._wake)

    def start(self) -> None:
        """Begin to carry."""
        self._endpoint.start()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Carry nothing more; what is on its way is carried again when it is asked for again."""
        self._ended = True
        self._wake()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_STOP_S)
        self._endpoint.close()

    def reaches(self, peer: int) -> bool:
        """Say whether vectors for a peer, and from it, are carried here."""
        return self._address_of(peer) is not None

    def announcing(self, exchange: ExchangeId) -> frozenset[int]:
        """Return every client of which a notice has come in an exchange."""
        job, stage, digest = exchange
        return self._depot.senders(job, stage + LAYERS, digest, receiver=self._client)

    def read_notice(self, header: BlockHeader) -> None:
        """Look at the notice of a block.

        Raises:
            PartitionError: Its sender lists other edges than this part.
            RemoteProtocolError: It is none.
        """
        read_block(self._depot, notice_header(header))

    # ---- exchanges --------------------------------------------------------------------------

    def send(
        self,
        headers: Mapping[int, BlockHeader],
        values: Mapping[int, np.ndarray],
        exponent: int,
        streams: Streams,
    ) -> Mapping[int, Notice]:
        """Carry vectors to peers; an exchange that is carried already goes on.

        Args:
            headers: By peer, the header of the block that the vectors would make.
            values: By peer, [n, width] int32; kept until the exchange is forgotten.
            exponent: The values are these whole numbers times ``2 ** -exponent``.
            streams: How they are put into streams.

        Returns:
            By peer, the notice.

        Raises:
            ChannelUnavailable: There is no way to a peer, or the notice could not be kept.
        """
        exchange = _exchange_of(headers)
        addresses = {peer: self._address_of(peer) or "" for peer in headers}
        outgoing = OutgoingExchange(
            self._name(exchange, "out"),
            headers,
            values,
            exponent,
            streams,
            addresses=addresses,
            endpoint=self._endpoint,
        )
        outgoing.announce(self._depot)
        with self._changed:
            self._outgoing.setdefault(exchange, outgoing)
        self._wake()
        return outgoing.notices

    def expect(
        self,
        headers: Mapping[int, BlockHeader],
        targets: Mapping[int, np.ndarray] | None,
        *,
        together: bool,
    ) -> None:
        """Take vectors from peers; an exchange that is expected already goes on.

        Args:
            headers: By peer, the header of the block that the vectors would make.
            targets: By peer, [n] int64 what each vector is summed into, -1 for nothing.
            together: No peer may stay away: vectors of different peers are added as they come.
        """
        exchange = _exchange_of(headers)
        with self._changed:
            if exchange in self._incoming:
                return
            groups = [list(headers)] if together else [[peer] for peer in headers]
            self._incoming[exchange] = [
                IncomingExchange(
                    self._name(exchange, f"in-{group[0]}"),
                    {peer: headers[peer] for peer in group},
                    None if targets is None else {peer: targets[peer] for peer in group},
                    endpoint=self._endpoint,
                    choice=self._choice,
                )
                for group in groups
            ]
        self._wake()

    def arrived(self, exchange: ExchangeId) -> list[Arrived]:
        """Return the vectors that are there: together, those that were summed together.

        Raises:
            RetexoError: What went wrong with the exchange.
        """
        with self._changed:
            if exchange in self._failures:
                raise self._failures[exchange]
            units = self._incoming.get(exchange, ())
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
        """Say whether a peer's vectors are expected here, and not as a block."""
        with self._changed:
            exchange = (key.job, key.layer, key.weights_digest)
            return any(
                key.sender in incoming.peers and key.sender not in incoming.by_block
                for incoming in self._incoming.get(exchange, ())
            )

    def untaken(self, exchanges: Collection[ExchangeId]) -> list[int]:
        """Return the peers that have not taken all that was sent in some exchanges."""
        with self._changed:
            found = {
                peer
                for exchange in exchanges
                if exchange in self._outgoing
                for peer in self._outgoing[exchange].untaken()
            }
        return sorted(found)

    def wait(self, timeout_s: float) -> None:
        """Wait until something may have come, or time is over."""
        with self._changed:
            self._changed.wait(timeout_s)

    def drop(self, exchanges: Collection[ExchangeId]) -> set[BlockKey]:
        """Forget exchanges; return the mailboxes of their notices and grants."""
        keys: set[BlockKey] = set()
        with self._changed:
            for exchange in exchanges:
                self._failures.pop(exchange, None)
                outgoing = self._outgoing.pop(exchange, None)
                if outgoing is not None:
                    keys |= outgoing.control_keys()
                    outgoing.forget()
                for incoming in self._incoming.pop(exchange, ()):
                    keys |= incoming.control_keys(self._depot)
                    incoming.forget()
        return keys

    def forget_job(self, job: str) -> None:
        """Forget all exchanges of a job; what the endpoint keeps for later ones stays."""
        with self._changed:
            known = {*self._outgoing, *self._incoming}
        self.drop([exchange for exchange in known if exchange[0] == job])

    def facts(self) -> dict[str, Any]:
        """Return what `retexo agent status` shows of datagrams."""
        with self._changed:
            stalled = {peer for found in self._outgoing.values() for peer in found.stalled()}
            waiting = sum(
                not incoming.is_complete for found in self._incoming.values() for incoming in found
            )
        return {
            "kind": self._endpoint.kind,
            "address": self._endpoint.address,
            "counters": self._endpoint.counters(),
            "waiting_for": waiting,
            "stalled_peers": sorted(stalled),
        }

    # ---- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            self._news.wait(_LOOK_S)
            self._news.clear()
            with self._changed:
                self._step()
                # Also those hear of it who wait for blocks, which come without this thread.
                self._changed.notify_all()

    def _step(self) -> None:
        """Go on with every exchange."""
        for exchange, outgoing in self._outgoing.items():
            self._attempt(exchange, partial(outgoing.step, self._depot, time.monotonic()))
        for exchange, units in self._incoming.items():
            for incoming in units:
                self._attempt(exchange, partial(incoming.step, self._depot))

    def _attempt(self, exchange: ExchangeId, step: Callable[[], object]) -> None:
        """Do a step; whoever asks for the exchange is told how it failed."""
        if exchange in self._failures:
            return
        try:
            step()
        except RetexoError as error:
            LOGGER.warning(line("vectors", job=exchange[0], stage=exchange[1], failed=str(error)))
            self._failures[exchange] = error

    def _listen(self) -> None:
        """Hear of what the endpoint did."""
        while not self._ended:
            try:
                self._endpoint.wait_for_change(_LOOK_S)
            except RetexoError as error:
                # Whoever waits for an exchange is told in the next step, which fails likewise.
                LOGGER.error(line("vectors", failed=str(error)))
                return
            self._wake()

    def _wake(self) -> None:
        """Have the thread look; called from the network's thread, too, which must not wait."""
        self._news.set()

    def _name(self, exchange: ExchangeId, what: str) -> bytes:
        job, stage, digest = exchange
        text = f"{job}/{stage}/{digest.hex()}/{self._client}/{what}"
        return hashlib.sha256(text.encode()).digest()


def _exchange_of(headers: Mapping[int, BlockHeader]) -> ExchangeId:
    first = next(iter(headers.values()))
    return first.job, first.layer, first.weights_digest
