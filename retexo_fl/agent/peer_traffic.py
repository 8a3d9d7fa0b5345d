"""Which peer a client's bytes went to and came from: stays with the client, in a file of its own.

The server is told sums only: with one node per client, a list of peers is a list of edges.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from retexo_fl.agent.api import Traffic
from retexo_fl.agent.blocks import counted_traffic
from retexo_fl.channels import BlockKey, Channel
from retexo_fl.errors import CheckpointError
from retexo_fl.exchange import HEADER_BYTES, BlockTraffic, FrameKind
from retexo_fl.exchange.block import parse_hello
from retexo_fl.exchange.frames import FrameHeader
from retexo_fl.files import write_whole
from retexo_fl.ledger import Account, TrafficLedger

#: The purpose of an exchange before a stage.
EXCHANGE: Final = "exchange"


class PeerTrafficBook:
    """One job's bytes by peer, in the form of the ledger; an exchange's block is entered once.

    Args:
        path: CSV file; an earlier process's is gone on with.
        client: Index of the client.
    """

    def __init__(self, path: Path, client: int) -> None:
        self._path = path
        self._client = client
        self.ledger = _read(path)
        self._entered = {
            (account.layer, account.peer, account.direction)
            for account, _ in self.ledger.lines()
            if account.purpose == EXCHANGE
        }
        self._is_written = True

    def enter_block(
        self, attempt: int, layer: int, peer: int, traffic: Traffic, *, way: str
    ) -> None:
        """Enter a block of a stage's exchange."""
        self._entered.add((layer, peer, way))
        self.enter(attempt, layer, peer, traffic, purpose=EXCHANGE, way=way)

    def has_block(self, layer: int, peer: int, way: str) -> bool:
        """Say whether a block of a stage's exchange was entered."""
        return (layer, peer, way) in self._entered

    def enter(
        self, attempt: int, layer: int, peer: int, traffic: Traffic, *, purpose: str, way: str
    ) -> None:
        """Enter what went to (``out``) or came from (``in``) a peer."""
        self._is_written = False
        for kind, volume in (("boundary", traffic.boundary), ("control", traffic.control)):
            account = Account(
                attempt=attempt,
                kind=kind,
                layer=layer,
                purpose=purpose,
                client=self._client,
                peer=peer,
                direction=way,
            )
            self.ledger.add(account, volume)

    def exchanged(self, attempt: int, layer: int, *, way: str) -> Traffic:
        """Return what went to (``out``) or came from (``in``) all peers in a stage's exchange."""
        wanted = {"attempt": attempt, "layer": layer, "purpose": EXCHANGE, "direction": way}
        return Traffic(
            boundary=self.ledger.sum(kind="boundary", **wanted),
            control=self.ledger.sum(kind="control", **wanted),
        )

    def write(self) -> None:
        """Put everything entered on disk, unless it is there.

        Raises:
            CheckpointError: It could not be written.
        """
        if self._is_written:
            return
        try:
            write_whole(self._path, [self.ledger.to_csv().encode()])
        except OSError as error:
            raise CheckpointError(f"{self._path}: cannot be written ({error.strerror})") from error
        self._is_written = True


class CountingChannel:
    """The channel of one job: hands everything on, and enters every block in the book once.

    Attributes:
        attempt: That bytes count for.
    """

    def __init__(self, channel: Channel, book: PeerTrafficBook) -> None:
        self._channel = channel
        self._book = book
        self.attempt = 1

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int | None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        moved = self._channel.send_block(key, frames)
        if not self._book.has_block(key.layer, key.receiver, "out"):
            counted = block_traffic(b"".join(frames))
            assert counted is not None, "whole frames make a whole block"
            traffic = counted_traffic(counted, counted.wire_bytes)
            self._book.enter_block(self.attempt, key.layer, key.receiver, traffic, way="out")
        return moved

    def receive_block(self, key: BlockKey) -> bytes | None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        stream = self._channel.receive_block(key)
        if stream and not self._book.has_block(key.layer, key.sender, "in"):
            counted = block_traffic(stream)
            if counted is not None:
                traffic = counted_traffic(counted, counted.wire_bytes)
                self._book.enter_block(self.attempt, key.layer, key.sender, traffic, way="in")
        return stream

    def senders(
        self, job: str, layer: int, weights_digest: bytes, *, receiver: int
    ) -> frozenset[int]:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        return self._channel.senders(job, layer, weights_digest, receiver=receiver)

    def forget_job(self, job: str, client: int) -> None:
        """Keep everything: the job's owner forgets it when its last answer is on disk."""


def block_traffic(stream: bytes) -> BlockTraffic | None:
    """Return the bytes of a block by kind, None while it is not whole.

    Raises:
        RemoteProtocolError: It is no stream of frames.
    """
    total, place = BlockTraffic(), 0
    header = None
    while place + HEADER_BYTES <= len(stream):
        frame = FrameHeader.parse(stream[place : place + HEADER_BYTES])
        begin, place = place + HEADER_BYTES, place + HEADER_BYTES + frame.payload_bytes
        if header is None:
            header = parse_hello(stream[begin:place])
        total += header.traffic_of(frame)
        if frame.kind is FrameKind.DONE:
            return total
    return None


def _read(path: Path) -> TrafficLedger:
    try:
        return TrafficLedger.from_csv(path.read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        return TrafficLedger()
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        # An account that is lost must not end a training.
        path.replace(path.with_name(f"{path.name}.damaged.{os.getpid()}"))
        del error
        return TrafficLedger()
