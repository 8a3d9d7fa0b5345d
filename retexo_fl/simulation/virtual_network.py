"""A modelled network in virtual time: one clock for each end, moved by what it waits for.

Nothing sleeps and nothing is measured: computing takes no virtual time, and bytes take what their
link says. Times are whole numbers of a tick that divides every link's delay and time per byte, so
that nothing is rounded.

Symbols: an ordered pair of ends is a link of rate r, delay d and loss p, free again at time f. A
message of b bytes that leaves at time t occupies the link from max(t, f) on::

    f := max(t, f) + b' / r           arrival = f + d + 2 d (g - 1)

Without loss b' = b and g = 1. With loss, packet k is sent a_k times, P(a) = p^(a-1) (1 - p); b' is
the sum of all packets sent, g the largest a_k. An end's clock is the latest arrival that it waits
for. docs/links.md describes it to users.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np

from retexo_fl.ledger import SERVER
from retexo_fl.run_log.result import Lane, Network
from retexo_fl.simulation.links import Link, Links

#: Bytes of a packet, of which a link loses whole ones: the payload of an Ethernet frame.
PACKET_BYTES: Final = 1500
#: Phases that every result lists.
_PHASES: Final = ("hello", "exchange", "train", "evaluate")
_BUSIEST_LISTED: Final = 3


class Moment(NamedTuple):
    """A point in virtual time, and how much of the way to it was waiting for blocks of clients.

    The rest was waiting for messages between server and clients. Of the blocks, some only serve to
    validate a round's weights. Moments compare by time first.
    """

    ticks: int = 0
    between_clients: int = 0
    validating: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What one message costs its link.

    Attributes:
        sent_bytes: Bytes of the message and of every packet that was sent again.
        repeats: How often the receiver had to wait for another generation of packets.
    """

    sent_bytes: int
    repeats: int = 0


def transfer(link: Link, size_bytes: int, *, seed: int, name: str) -> Transfer:
    """Draw how often each packet of a message is sent.

    Args:
        link: What the message travels on; only ``loss`` counts here.
        size_bytes: Size of the message; its last packet may be shorter than the others.
        seed: Seed of the run.
        name: Name of the message in the run: the same one draws the same numbers.
    """
    if link.loss == 0.0:
        return Transfer(sent_bytes=size_bytes)
    packets = max(1, -(-size_bytes // PACKET_BYTES))
    # One short key: numpy takes three times as long to mix the letters of a name.
    key = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=16).digest()
    generator = np.random.default_rng(int.from_bytes(key, "big"))
    attempts = generator.geometric(1.0 - link.loss, size=packets)
    last_bytes = size_bytes - (packets - 1) * PACKET_BYTES
    whole, last = int((attempts[:-1] - 1).sum()), int(attempts[-1] - 1)
    resent_bytes = PACKET_BYTES * whole + last_bytes * last
    return Transfer(sent_bytes=size_bytes + resent_bytes, repeats=int(attempts.max()) - 1)


@dataclass(slots=True)
class _Lane:
    """One direction between two ends: its link in ticks, when it is free, and what it carried."""

    link: Link
    byte_ticks: int
    delay_ticks: int
    free: int = 0
    messages: int = 0
    size_bytes: int = 0
    sent_bytes: int = 0


def _ticks_per_s(links: Iterable[Link]) -> int:
    """Return the fewest ticks of a second in which every delay and every byte's time is whole."""
    return math.lcm(
        *(
            divisor
            for link in links
            for divisor in (link.delay_s.denominator, link.byte_s.denominator)
        )
    )


class VirtualNetwork:
    """The clocks of the server and of all clients of a run.

    Args:
        links: What the ends are joined by.
        clients: How many there are.
        seed: Seed of the run; decides which packets are lost.
    """

    def __init__(self, links: Links, *, clients: int, seed: int) -> None:
        self._links = links
        self._ticks_per_s = _ticks_per_s(links.lines.values())
        self._seed = seed
        self._clocks = dict.fromkeys((SERVER, *range(clients)), Moment())
        self._lanes: dict[tuple[int, int], _Lane] = {}
        self._arrivals: dict[Hashable, Moment] = {}
        self._phase = _PHASES[0]
        self._spent: dict[str, Moment] = defaultdict(Moment)

    def clock_s(self, end: int) -> Fraction:
        """Return an end's virtual time: that of a client's index, or of ``SERVER``."""
        return Fraction(self._clocks[end].ticks, self._ticks_per_s)

    # ---- server and clients ---------------------------------------------------------------------

    def send_to_clients(self, sizes_bytes: Mapping[int, int], *, phase: str) -> None:
        """Send one message to each of some clients, all at the server's present time.

        Args:
            sizes_bytes: Size of the message by client index.
            phase: What the server's time counts for until it sends again.
        """
        self._phase = phase
        leaves = self._clocks[SERVER]
        for client, size_bytes in sizes_bytes.items():
            self._wait(client, self._arrival(SERVER, client, size_bytes, leaves))

    def reply_to_server(self, client: int, size_bytes: int) -> None:
        """Send a client's reply at its present time, and let the server wait for it."""
        before = self._clocks[SERVER]
        self._wait(SERVER, self._arrival(client, SERVER, size_bytes, self._clocks[client]))
        after, spent = self._clocks[SERVER], self._spent[self._phase]
        self._spent[self._phase] = Moment(
            spent.ticks + after.ticks - before.ticks,
            spent.between_clients + after.between_clients - before.between_clients,
            spent.validating + after.validating - before.validating,
        )

    # ---- clients among themselves ---------------------------------------------------------------

    def send_block(self, sender: int, receiver: int, size_bytes: int, key: Hashable) -> None:
        """Send a block at the sender's present time; ``key`` names it to :meth:`take_block`."""
        leaves = self._clocks[sender]
        self._arrivals[key] = self._arrival(sender, receiver, size_bytes, leaves)

    def take_block(self, receiver: int, key: Hashable) -> None:
        """Let a client wait for a block; one that it took before costs nothing."""
        self._wait(receiver, self._arrivals.pop(key, Moment()))

    def exchange(self, blocks: Mapping[tuple[int, int], int], purpose: str = "train") -> None:
        """Move the blocks of one exchange inside a round, all clients at once.

        Every block leaves at its sender's present time; then every receiver waits for its blocks.

        Args:
            blocks: Bytes by (sender, receiver), both client indices.
            purpose: ``train`` or ``evaluate``.
        """
        clocks = dict(self._clocks)
        for (sender, receiver), size_bytes in sorted(blocks.items()):
            leaves = clocks[sender]
            arrival = self._arrival(sender, receiver, size_bytes, leaves)
            if purpose == "evaluate":
                waited = arrival.ticks - leaves.ticks
                arrival = arrival._replace(validating=leaves.validating + waited)
            self._wait(receiver, arrival)

    # ---- results --------------------------------------------------------------------------------

    def facts(self) -> Network:
        """Return the network's part of the run's result; every number is modelled."""
        spent = {name: self._spent.get(name, Moment()) for name in (*_PHASES, *self._spent)}
        total = self._clocks[SERVER]
        return Network(
            links=self._links.text,
            lines=self._links.facts(),
            seconds=self._seconds(total.ticks),
            phases={name: self._seconds(moment.ticks) for name, moment in spent.items()},
            between_clients_s={
                "total": self._seconds(total.between_clients),
                **{name: self._seconds(moment.between_clients) for name, moment in spent.items()},
                "validation": self._seconds(spent["train"].validating),
            },
            busiest=self._busiest(),
        )

    def _seconds(self, ticks: int) -> float:
        return ticks / self._ticks_per_s

    def _busiest(self) -> tuple[Lane, ...]:
        ranked = sorted(
            self._lanes.items(),
            key=lambda item: (
                -item[1].sent_bytes * item[1].byte_ticks,
                -item[1].sent_bytes,
                item[0],
            ),
        )
        return tuple(
            Lane(
                sender="server" if sender == SERVER else sender,
                receiver="server" if receiver == SERVER else receiver,
                messages=lane.messages,
                size_bytes=lane.size_bytes,
                sent_bytes=lane.sent_bytes,
                busy_s=self._seconds(lane.sent_bytes * lane.byte_ticks),
            )
            for (sender, receiver), lane in ranked[:_BUSIEST_LISTED]
        )

    # ---- the model ------------------------------------------------------------------------------

    def _wait(self, end: int, until: Moment) -> None:
        self._clocks[end] = max(self._clocks[end], until)

    def _arrival(self, sender: int, receiver: int, size_bytes: int, leaves: Moment) -> Moment:
        """Put a message on its lane behind those before it; return when all of it has arrived."""
        lane = self._lanes.get((sender, receiver)) or self._new_lane(sender, receiver)
        sent_bytes, repeats = size_bytes, 0
        if lane.link.loss:
            name = f"packets {sender}>{receiver} {lane.messages}"
            cost = transfer(lane.link, size_bytes, seed=self._seed, name=name)
            sent_bytes, repeats = cost.sent_bytes, cost.repeats
        lane.free = max(leaves.ticks, lane.free) + sent_bytes * lane.byte_ticks
        lane.messages += 1
        lane.size_bytes += size_bytes
        lane.sent_bytes += sent_bytes
        # Packets that did not arrive are missed one delay later and come after one more.
        ticks = lane.free + (1 + 2 * repeats) * lane.delay_ticks
        among_clients = SERVER not in (sender, receiver)
        waited = leaves.between_clients + (ticks - leaves.ticks if among_clients else 0)
        return Moment(ticks, waited, leaves.validating)

    def _new_lane(self, sender: int, receiver: int) -> _Lane:
        link = self._links.between(sender, receiver)
        lane = _Lane(
            link,
            byte_ticks=int(link.byte_s * self._ticks_per_s),
            delay_ticks=int(link.delay_s * self._ticks_per_s),
        )
        self._lanes[sender, receiver] = lane
        return lane
