"""What a client's exchanges moved, as whole numbers that can be added up under masks.

How long coded rows are depends on their values, which follow from weights that the server chooses.
So where sums are masked, the server learns what a whole cohort moved, and of no client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np

from retexo_fl.client import schema
from retexo_fl.client.api import CollectRequest, EvaluateRequest, Request, Ticket, TrainRequest
from retexo_fl.client.store import ClientStore
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.ledger import PeerTraffic, Traffic, Volume

#: Numbers under masks begin with the name of the cohort's keys that they are under.
KEYS_BYTES: Final = 8
#: Of bytes before a stage; those inside rounds have the purposes of their exchanges.
EXCHANGE: Final = "exchange"
#: Of columns of the edges, on their way.
STRUCTURE: Final = "structure"
_PURPOSES: Final[Mapping[type[Request[Any]], tuple[str, ...]]] = {
    CollectRequest: (EXCHANGE,),
    TrainRequest: ("train", "evaluate"),
    EvaluateRequest: ("evaluate",),
}
#: Measures of a volume; of one direction there are two volumes, and whether wire is not known.
_MEASURES: Final = len(fields(Volume))
_OF_A_WAY: Final = 2 * _MEASURES + 1


def moved_length(kind: type[Request[Any]]) -> int:
    """Return how many numbers say what was moved for a question."""
    return 2 + 2 * _OF_A_WAY * len(_PURPOSES[kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What was moved for a question.

    Attributes:
        by_purpose: Bytes both ways.
        vectors: Sent before a stage; 0 of what crosses in rounds.
        cut: How many of their values were not finite or too large, and sent as 0.
    """

    by_purpose: Mapping[str, PeerTraffic]
    vectors: int = 0
    cut: int = 0

    def numbers(self, kind: type[Request[Any]]) -> np.ndarray:
        """Return (k,) int64 numbers, for the answer to a question of a kind."""
        found = [self.vectors, self.cut]
        for purpose in _PURPOSES[kind]:
            both = self.by_purpose.get(purpose, PeerTraffic())
            found += [number for way in (both.sent, both.received) for number in _numbers(way)]
        return np.array(found, np.int64)

    @classmethod
    def of(cls, kind: type[Request[Any]], numbers: np.ndarray) -> Self:
        """Read sums of :meth:`numbers`.

        Raises:
            RemoteProtocolError: They are none.
        """
        if (numbers < 0).any():
            raise RemoteProtocolError("bytes that a cohort moved add up to less than 0")
        ways = [_traffic(way) for way in numbers[2:].reshape(-1, _OF_A_WAY).tolist()]
        both = zip(ways[::2], ways[1::2], strict=True)
        return cls(
            vectors=int(numbers[0]),
            cut=int(numbers[1]),
            by_purpose={
                purpose: PeerTraffic(sent=sent, received=received)
                for purpose, (sent, received) in zip(_PURPOSES[kind], both, strict=True)
            },
        )


def _numbers(way: Traffic) -> list[int]:
    volumes = (way.boundary, way.control)
    found = [n for v in volumes for n in (v.messages, v.raw, v.payload, v.wire or 0)]
    return [*found, int(any(volume.wire is None for volume in volumes))]


def _traffic(numbers: list[int]) -> Traffic:
    unknown = numbers[-1] > 0
    boundary, control = (
        Volume(messages=messages, raw=raw, payload=payload, wire=None if unknown else wire)
        for messages, raw, payload, wire in (numbers[:_MEASURES], numbers[_MEASURES:-1])
    )
    return Traffic(boundary=boundary, control=control)


class ExchangeAccount:
    """What crossed before each stage of an attempt, until it is reported; then it is fixed.

    Args:
        store: Of the client, so that another process reports the same.
    """

    def __init__(self, store: ClientStore) -> None:
        self._store = store

    def add(self, ticket: Ticket, moved: PeerTraffic, *, cut: int = 0) -> None:
        """Add what has crossed since the last call, and how many values were cut."""
        known, cut_before, is_told = self._read(ticket)
        if not is_told:
            self._put(ticket, known + moved, cut_before + cut, is_told=False)

    def told(self, ticket: Ticket, moved: PeerTraffic | None = None) -> tuple[PeerTraffic, int]:
        """Return what is reported of an exchange, and how many values were cut: the same each time.

        Args:
            ticket: Names it.
            moved: By another account; what was added to this one if None.
        """
        known, cut, is_told = self._read(ticket)
        if not is_told:
            known = known if moved is None else moved
            self._put(ticket, known, cut, is_told=True)
        return known, cut

    def _read(self, ticket: Ticket) -> tuple[PeerTraffic, int, bool]:
        content = self._store.note(_name(ticket))
        found = {} if content is None else json.loads(content)
        if found.pop("attempt", None) != ticket.attempt:
            return PeerTraffic(), 0, False
        cut, is_told = found.pop("cut"), found.pop("told")
        return schema.rebuild(PeerTraffic, found), cut, is_told

    def _put(self, ticket: Ticket, moved: PeerTraffic, cut: int, *, is_told: bool) -> None:
        values, _ = schema.flatten(moved)
        facts = {"attempt": ticket.attempt, "told": is_told, "cut": cut, **values}
        self._store.put_note(_name(ticket), json.dumps(facts).encode())


def _name(ticket: Ticket) -> str:
    return f"moved-{ticket.stage}"
