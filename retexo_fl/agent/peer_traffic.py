"""Which peer a client's bytes went to and came from: stays with the client, in a file of its own.

The server gets sums only: with one node per client, a list of peers is a list of edges.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

from retexo_fl.client.api import Ticket
from retexo_fl.client.moved import EXCHANGE
from retexo_fl.errors import CheckpointError
from retexo_fl.files import write_whole
from retexo_fl.ledger import Account, PeerTraffic, Traffic, TrafficLedger


class PeerTrafficBook:
    """One job's bytes by peer, in the form of the ledger; an exchange's block is entered once.

    Args:
        path: CSV file; an earlier process's file is continued.
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
        """Return whether a block of a stage's exchange was entered."""
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

    def exchanged(self, ticket: Ticket) -> PeerTraffic:
        """Return what went to and came from all peers in the exchange of an attempt's stage."""
        wanted = {"attempt": ticket.attempt, "layer": ticket.stage, "purpose": EXCHANGE}
        sent, received = (
            Traffic(
                boundary=self.ledger.sum(kind="boundary", direction=way, **wanted),
                control=self.ledger.sum(kind="control", direction=way, **wanted),
            )
            for way in ("out", "in")
        )
        return PeerTraffic(sent=sent, received=received)

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
