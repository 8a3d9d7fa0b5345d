"""The account of every byte that left or arrived.

Each movement is counted three ways. ``raw``: the bytes of the dense tensor that moved. ``payload``:
what was left of them after the codec, and the content of messages that carry no tensor. ``wire``:
with headers, as handed to the transport; ``None`` where the transport does not count. Totals count
a byte once, at its sender: the RETEXO paper's volume, which counts both ends, is twice that.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final, Self

#: What a byte was moved for.
KINDS: Final = ("boundary", "updates_up", "weights_down", "masks", "control")
#: Keys and shares of masks: only where sums are masked.
RARE_KINDS: Final = ("masks",)
#: Of a number in a ledger's text; sums of such numbers still are float64 in a report.
_MOST_DIGITS: Final = 19
MEASURES: Final = ("raw", "payload", "wire")
#: The ``peer`` of a movement between a client and the server.
SERVER: Final = -1
#: The ``peer`` of what a client moved to or from all its peers together: the server gets no
#: more, since with one node per client a list of peers is a list of edges.
ALL_PEERS: Final = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What identifies one line of the ledger.

    Attributes:
        attempt: The attempt of the job, from 1.
        kind: One of :data:`KINDS`.
        layer: Stage index, or -1 for what belongs to no stage.
        purpose: The message or phase: ``hello``, ``publish``, ``collect``, ``train``, ``evaluate``,
            ``predict``, ``exchange``.
        client: Client index at whose end the bytes were counted.
        peer: Index of the other client, :data:`SERVER`, or :data:`ALL_PEERS`.
        direction: ``out`` (left the client) or ``in`` (arrived at it).
    """

    attempt: int
    kind: str
    layer: int
    purpose: str
    client: int
    peer: int
    direction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Bytes of one or many movements; ``wire`` is None as soon as one of them was not measured."""

    messages: int = 0
    raw: int = 0
    payload: int = 0
    wire: int | None = 0

    def __add__(self, other: Volume) -> Volume:
        """Return the sum of two volumes."""
        wire = None if self.wire is None or other.wire is None else self.wire + other.wire
        return Volume(
            messages=self.messages + other.messages,
            raw=self.raw + other.raw,
            payload=self.payload + other.payload,
            wire=wire,
        )


class TrafficLedger:
    """Append-only: movements are added to their account and never taken back."""

    def __init__(self) -> None:
        self._volumes: dict[Account, Volume] = {}
        self._total = Volume()

    def add(self, account: Account, volume: Volume) -> None:
        """Add one movement (or the sum of several) to an account."""
        known = self._volumes.get(account)
        self._volumes[account] = volume if known is None else known + volume
        if _is_counted(account):
            self._total += volume

    def raise_to(self, account: Account, total: Volume) -> None:
        """Add to an account what it lacks of ``total``, a sum that may be reported repeatedly."""
        known = self._volumes.get(account, Volume())
        wire = None
        if total.wire is not None and known.wire is not None:
            wire = max(0, total.wire - known.wire)
        lacking = Volume(
            messages=max(0, total.messages - known.messages),
            raw=max(0, total.raw - known.raw),
            payload=max(0, total.payload - known.payload),
            wire=wire,
        )
        self.add(account, lacking)

    def lines(self) -> list[tuple[Account, Volume]]:
        """Return all accounts, ordered by attempt, layer, kind, purpose, client, peer."""
        return sorted(self._volumes.items(), key=lambda item: _PLACE(item[0]))

    def sum(self, **wanted: object) -> Volume:
        """Add up the accounts whose attributes equal ``wanted``, each movement counted once.

        A movement between two clients is entered at both ends; only its sender's entry counts
        unless ``direction`` is asked for. A movement between client and server is entered once.
        """
        if not wanted:
            return self._total
        total = Volume()
        for account, volume in self._volumes.items():
            if "direction" not in wanted and not _is_counted(account):
                continue
            if all(getattr(account, name) == value for name, value in wanted.items()):
                total += volume
        return total

    def totals(self) -> dict[str, dict[str, int | None]]:
        """Return ``{measure: {kind: bytes, "total": bytes}}`` with every byte counted once.

        Kinds that only some runs move are left out of the others.
        """
        by_kind = {kind: self.sum(kind=kind) for kind in KINDS}
        for kind in RARE_KINDS:
            if not by_kind[kind].messages:
                del by_kind[kind]
        by_kind["total"] = self.sum()
        return {
            measure: {kind: getattr(volume, measure) for kind, volume in by_kind.items()}
            for measure in MEASURES
        }

    def to_csv(self) -> str:
        """Return the ledger as CSV text with a header line."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for account, volume in self.lines():
            wire = "" if volume.wire is None else volume.wire
            writer.writerow((*_FIELDS(account), volume.messages, volume.raw, volume.payload, wire))
        return text.getvalue()

    @classmethod
    def from_csv(cls, lines: Iterable[str]) -> Self:
        """Rebuild a ledger from the text of :meth:`to_csv`.

        Raises:
            ValueError: It is another text; so do KeyError, TypeError and csv.Error say.
        """
        ledger = cls()
        for row in csv.DictReader(lines):
            account = Account(
                **{item.name: _typed(item.name, row[item.name]) for item in fields(Account)}  # type: ignore[arg-type]
            )
            ledger.add(account, _volume_of(row))
        return ledger


def _is_counted(account: Account) -> bool:
    """Return whether this entry is the one of its movement that totals count."""
    return account.peer == SERVER or account.direction == "out"


_NAMES: Final = tuple(item.name for item in fields(Account))
#: An account's fields; dataclasses.astuple copies deeply and is a hundred times slower.
_FIELDS: Final = attrgetter(*_NAMES)
_PLACE: Final = attrgetter("attempt", "layer", *_NAMES)
_COLUMNS: Final = (
    *_NAMES,
    "messages",
    "raw_bytes",
    "payload_bytes",
    "wire_bytes",
)


def _typed(name: str, text: str) -> int | str:
    return _whole(text) if name in {"attempt", "layer", "client", "peer"} else text


def _volume_of(row: Mapping[str, str]) -> Volume:
    return Volume(
        messages=_whole(row["messages"]),
        raw=_whole(row["raw_bytes"]),
        payload=_whole(row["payload_bytes"]),
        wire=_whole(row["wire_bytes"]) if row["wire_bytes"] else None,
    )


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)
