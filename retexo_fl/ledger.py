"""The account of every byte that left or arrived.

Each movement is counted three ways. ``raw``: the bytes of the dense tensor that moved; of weights
and updates in few bits their coded bytes. ``payload``: what was left of them after the codec, and
the content of messages that carry no tensor. ``wire``: with headers, as handed to the transport;
``None`` where the transport does not count. Movements of one account are added up, so that none is
of one round or of one peer (:attr:`Account.peer`). Totals count
a byte once, at its sender: the RETEXO paper's volume, which counts both ends, is twice that.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final, Self

#: What a byte was moved for.
KINDS: Final = ("boundary", "updates_up", "weights_down", "masks", "control")
#: Keys of masks: only where sums are masked.
RARE_KINDS: Final = ("masks",)
#: Of a number in a ledger's text; sums of such numbers still are float64 in a report.
_MOST_DIGITS: Final = 19
MEASURES: Final = ("raw", "payload", "wire")
#: The ``peer`` of a movement between a client and the server.
SERVER: Final = -1
#: The ``peer`` of what a client moved to or from all its peers together: the server gets no
#: more, since with one node per client a list of peers is a list of edges.
ALL_PEERS: Final = -2
#: The ``peer`` of what all clients of a cohort together moved to or from all their peers, where
#: sums are masked: ``client`` is the first of them.
OF_COHORT: Final = -3


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What identifies one line of the ledger.

    Attributes:
        attempt: The attempt of the job, from 1.
        kind: One of :data:`KINDS`.
        layer: Stage index, or -1 for what belongs to no stage.
        purpose: Of messages with the server what was asked, of bytes between clients for what.
            Before stages: ``hello``, ``introduce``, ``keys``, ``counts``, ``labels``, ``basis``,
            ``choice``, ``structure`` (columns of the edges, also between clients, each step a
            layer after the last one). Of a stage: ``exchange`` (between clients), ``publish``,
            ``relay``, ``collect``, ``gram``, ``train``, ``evaluate``, ``predict``, ``predicted``,
            ``end``. Of a feature recipe: ``summary``, ``columns``, ``sums``, ``recipe``.
        client: Client index at whose end the bytes were counted.
        peer: Index of the other client, :data:`SERVER`, :data:`ALL_PEERS` or
            :data:`OF_COHORT`.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of one exchange as one client counted them, over all peers."""

    boundary: Volume = Volume()
    control: Volume = Volume()

    def __add__(self, other: Traffic) -> Traffic:
        """Return the sum of both kinds."""
        return Traffic(
            boundary=self.boundary + other.boundary, control=self.control + other.control
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTraffic:
    """Bytes of the exchanges inside a round, both ways; nothing for algorithms without any."""

    sent: Traffic = Traffic()
    received: Traffic = Traffic()

    def __add__(self, other: PeerTraffic) -> PeerTraffic:
        """Return the sum of both directions."""
        return PeerTraffic(sent=self.sent + other.sent, received=self.received + other.received)


#: Shared, since nobody can change it: an answer has two.
NO_PEER_TRAFFIC: Final = PeerTraffic()


class TrafficLedger:
    """Append-only: movements are added to their account and never taken back."""

    def __init__(self) -> None:
        self._lines: dict[Account, _Line] = {}
        #: As of the last time they were asked for in order.
        self._in_order: list[_Line] = []
        #: Since :meth:`changes` was last asked for; a line may be here twice.
        self._changed: list[_Line] = []
        self._total = _Sum()

    def add(self, account: Account, volume: Volume) -> None:
        """Add one movement (or the sum of several) to an account."""
        line = self._lines.get(account)
        if line is None:
            line = self._lines[account] = _Line(account, _Sum(), _is_counted(account))
            self._changed.append(line)
        elif line.text:
            self._changed.append(line)
            line.text = ""
        line.moved.add(volume)
        if line.is_counted:
            self._total.add(volume)

    def raise_to(self, account: Account, total: Volume) -> None:
        """Add to an account what it lacks of ``total``, a sum that may be reported repeatedly."""
        line = self._lines.get(account)
        known = Volume() if line is None else line.moved.volume
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
        return [(line.account, line.moved.volume) for line in self._ordered()]

    def _ordered(self) -> list[_Line]:
        if len(self._in_order) < len(self._lines):
            self._in_order = sorted(self._lines.values(), key=lambda line: _PLACE(line.account))
        return self._in_order

    def sum(self, **wanted: object) -> Volume:
        """Add up the accounts whose attributes equal ``wanted``, each movement counted once.

        A movement between two clients is entered at both ends; only its sender's entry counts
        unless ``direction`` is asked for. A movement between client and server is entered once.
        """
        if not wanted:
            moved = self._total
            return Volume(
                messages=moved.messages, raw=moved.raw, payload=moved.payload, wire=moved.wire
            )
        groups = self.grouped(*wanted)
        return groups.get(tuple(wanted.values()), Volume())

    def grouped(self, *names: str) -> dict[tuple[object, ...], Volume]:
        """Add up all accounts by some of their attributes, each movement counted once.

        Args:
            names: Of the attributes; ``direction`` counts both ends, as in :meth:`sum`.
        """
        found: defaultdict[tuple[object, ...], _Sum] = defaultdict(_Sum)
        both_ends = "direction" in names
        for account, line in self._lines.items():
            if both_ends or line.is_counted:
                found[tuple([getattr(account, name) for name in names])].add(line.moved)
        return {place: moved.volume for place, moved in found.items()}

    def totals(self) -> dict[str, dict[str, int | None]]:
        """Return ``{measure: {kind: bytes, "total": bytes}}`` with every byte counted once.

        Kinds that only some runs move are left out of the others.
        """
        moved = self.grouped("kind")
        by_kind = {kind: moved.get((kind,), Volume()) for kind in KINDS}
        for kind in RARE_KINDS:
            if not by_kind[kind].messages:
                del by_kind[kind]
        by_kind["total"] = self.sum()
        return {
            measure: {kind: getattr(volume, measure) for kind, volume in by_kind.items()}
            for measure in MEASURES
        }

    def to_csv(self) -> str:
        """Return the ledger as CSV text with a header line; only changed lines are made anew."""
        header = ",".join(_COLUMNS) + "\n"
        return "".join((header, *(line.text or line.written() for line in self._ordered())))

    def changes(self) -> str:
        """Return the lines of :meth:`to_csv` that are not as they were the last time."""
        changed, self._changed = self._changed, []
        return "".join(line.text or line.written() for line in changed)

    @classmethod
    def from_csv(cls, lines: Iterable[str]) -> Self:
        """Rebuild a ledger from the text of :meth:`to_csv`, followed by any :meth:`changes`.

        Of the lines of an account the last one counts. :meth:`changes` are from here on.

        Raises:
            ValueError: It is another text; so does csv.Error say.
        """
        rows = csv.reader(lines)
        if tuple(next(rows, ())) != _COLUMNS:
            raise ValueError("other columns than a ledger has")
        last = dict(map(_read, rows))
        ledger = cls()
        for account, volume in last.items():
            ledger.add(account, volume)
        ledger.changes()
        return ledger


@dataclass(slots=True)
class _Sum:
    """Volumes that are added up: a new :class:`Volume` for each takes longer than to count it."""

    messages: int = 0
    raw: int = 0
    payload: int = 0
    wire: int | None = 0

    def add(self, other: Volume | _Sum) -> None:
        self.messages += other.messages
        self.raw += other.raw
        self.payload += other.payload
        if self.wire is not None:
            self.wire = None if other.wire is None else self.wire + other.wire

    @property
    def volume(self) -> Volume:
        return Volume(messages=self.messages, raw=self.raw, payload=self.payload, wire=self.wire)


@dataclass(slots=True)
class _Line:
    """An account, what it has, and both as a line of CSV; empty until it is asked for again.

    ``is_counted`` says whether this entry is the one of its movement that totals count.
    """

    account: Account
    moved: _Sum
    is_counted: bool
    text: str = ""

    def written(self) -> str:
        """Make and keep the line."""
        moved = self.moved
        wire = "" if moved.wire is None else moved.wire
        # No name of a kind or a purpose needs quotes.
        values = (*_FIELDS(self.account), moved.messages, moved.raw, moved.payload, wire)
        self.text = ",".join(map(str, values)) + "\n"
        return self.text


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


def _read(row: list[str]) -> tuple[Account, Volume]:
    attempt, kind, layer, purpose, client, peer, direction, messages, raw, payload, wire = row
    account = Account(
        attempt=_whole(attempt),
        kind=kind,
        layer=_whole(layer),
        purpose=purpose,
        client=_whole(client),
        peer=_whole(peer),
        direction=direction,
    )
    volume = Volume(
        messages=_whole(messages),
        raw=_whole(raw),
        payload=_whole(payload),
        wire=_whole(wire) if wire else None,
    )
    return account, volume


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)
