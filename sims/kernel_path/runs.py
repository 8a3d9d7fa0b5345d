"""All measurements, kinds in turn, so that what else happens on the machine meets them all."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sims.kernel_path.adding import seconds_per_row
from sims.kernel_path.broadcast import KINDS, Broadcasts
from sims.kernel_path.laboratory import Laboratory, Sample
from sims.kernel_path.program_cost import PacketCost, packet_costs
from sims.kernel_path.workload import WAYS, Case

_Key = TypeVar("_Key")

#: Ways that are compared where messages are small, or many exchanges follow each other.
PACED_WAYS: Final = ("XDP native", "UDP", "TCP")
EXCHANGE_WAYS: Final = ("XDP native", "TCP", "TCP, super-frames")
EXCHANGE_WIDTH: Final = 64
#: Most exchanges of one measurement, and rows that they add to: their tables lie side by side.
_MOST_EXCHANGES: Final = 24
_EXCHANGE_ACCUMULATORS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured.

    Attributes:
        rows: Vectors of a measurement by width, of all senders together.
        senders: Numbers of senders.
        paced: Width and vectors of a message.
        paced_senders: Senders that are paced.
        messages: Of each paced sender.
        exchange_bytes: Bytes of a sender in one exchange.
        exchange_senders: Numbers of senders there.
        exchange_rows: Vectors of a measurement there, at least one exchange of them.
        peers: Who receive copies.
        copies: Of a measurement, about.
        repeats: Of each measurement.
    """

    rows: Mapping[int, int]
    senders: tuple[int, ...]
    paced: tuple[tuple[int, int], ...]
    paced_senders: int
    messages: int
    exchange_bytes: tuple[int, ...]
    exchange_senders: tuple[int, ...]
    exchange_rows: int
    peers: tuple[int, ...]
    copies: int
    repeats: int


FULL: Final = Sizes(
    rows={64: 240_000, 256: 60_000},
    senders=(1, 2, 4, 8, 16),
    paced=((64, 5), (256, 1)),
    paced_senders=16,
    messages=3_000,
    exchange_bytes=tuple(4**power * 1024 for power in range(1, 7)),
    exchange_senders=(2, 16),
    exchange_rows=60_000,
    peers=(2, 4, 8, 16),
    copies=50_000,
    repeats=5,
)
QUICK: Final = Sizes(
    rows={64: 20_000, 256: 5_000},
    senders=(1, 4),
    paced=((64, 5), (256, 1)),
    paced_senders=4,
    messages=200,
    exchange_bytes=(4_096, 65_536),
    exchange_senders=(2,),
    exchange_rows=4_000,
    peers=(2, 4),
    copies=4_000,
    repeats=2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that was measured.

    Attributes:
        sizes: How much of it.
        flat_out: By way, width and number of senders.
        paced: By way and width.
        exchanges: By way, number of senders and bytes of a sender.
        copies: Seconds of a copy by kind and number of peers.
        programs: By width and variant.
        adding: Seconds a row by width, rows of a block and way.
        load: The machine's load average before, and after.
        wall_s: How long it took.
    """

    sizes: Sizes
    flat_out: dict[tuple[str, int, int], list[Sample]] = field(default_factory=dict)
    paced: dict[tuple[str, int], list[Sample]] = field(default_factory=dict)
    exchanges: dict[tuple[str, int, int], list[Sample]] = field(default_factory=dict)
    copies: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    programs: dict[tuple[int, str], PacketCost] = field(default_factory=dict)
    adding: dict[tuple[int, int, str], float] = field(default_factory=dict)
    load: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)


def measure_all(sizes: Sizes) -> Findings:
    """Measure everything; minutes.

    Raises:
        ConfigurationError: This machine cannot: it needs root, network namespaces and BPF.
    """
    found = Findings(sizes=sizes)
    begun_s = time.monotonic()
    found.load.append(os.getloadavg()[0])
    most = max(*sizes.senders, *sizes.exchange_senders)
    with Laboratory(most_senders=most) as laboratory:
        _warm_up(laboratory, most)
        _measure_flat_out(laboratory, found)
        _measure_paced(laboratory, found)
        _measure_exchanges(laboratory, found)
        _measure_copies(laboratory, found)
    for width in sizes.rows:
        _measure_programs(found, width)
    found.load.append(os.getloadavg()[0])
    found.wall_s.append(time.monotonic() - begun_s)
    return found


def _warm_up(laboratory: Laboratory, most: int) -> None:
    for way in WAYS:
        laboratory.measure(Case(way=way, width=64, senders=most, rows=500))


def _measure_flat_out(laboratory: Laboratory, found: Findings) -> None:
    sizes = found.sizes
    keys = [
        (way, width, senders) for width in sizes.rows for senders in sizes.senders for way in WAYS
    ]
    for way, width, senders in in_turn(keys, sizes.repeats):
        case = Case(way=way, width=width, senders=senders, rows=sizes.rows[width] // senders)
        found.flat_out.setdefault((way, width, senders), []).append(laboratory.measure(case))


def _measure_paced(laboratory: Laboratory, found: Findings) -> None:
    sizes = found.sizes
    keys = [(way, *message) for message in sizes.paced for way in PACED_WAYS]
    for way, width, message_rows in in_turn(keys, sizes.repeats):
        case = Case(
            way=way,
            width=width,
            senders=sizes.paced_senders,
            rows=sizes.messages * message_rows,
            message_rows=message_rows,
        )
        found.paced.setdefault((way, width), []).append(laboratory.measure(case))


def _measure_exchanges(laboratory: Laboratory, found: Findings) -> None:
    sizes = found.sizes
    keys = [
        (way, senders, sent)
        for senders in sizes.exchange_senders
        for sent in sizes.exchange_bytes
        for way in EXCHANGE_WAYS
    ]
    for way, senders, sent in in_turn(keys, sizes.repeats):
        rows = sent // (4 * EXCHANGE_WIDTH)
        exchanges = min(_MOST_EXCHANGES, max(1, sizes.exchange_rows // (rows * senders)))
        case = Case(
            way=way,
            width=EXCHANGE_WIDTH,
            senders=senders,
            rows=rows,
            exchanges=exchanges,
            accumulators=_EXCHANGE_ACCUMULATORS,
        )
        found.exchanges.setdefault((way, senders, sent), []).append(laboratory.measure(case))


def _measure_copies(laboratory: Laboratory, found: Findings) -> None:
    sizes = found.sizes
    keys = [(kind, peers) for peers in sizes.peers for kind in KINDS]
    with Broadcasts(laboratory.wire) as broadcasts:
        for kind, peers in keys:
            broadcasts.seconds_per_copy(kind, peers, 1)
        for kind, peers in in_turn(keys, sizes.repeats):
            seconds = broadcasts.seconds_per_copy(kind, peers, sizes.copies)
            found.copies.setdefault((kind, peers), []).append(seconds)


def _measure_programs(found: Findings, width: int) -> None:
    for variant, cost in packet_costs(width).items():
        found.programs[width, variant] = cost
    rows = (1 << 18) // (4 * width)
    for way, seconds in seconds_per_row(width, rows).items():
        found.adding[width, rows, way] = seconds


def in_turn(keys: Sequence[_Key], repeats: int) -> list[_Key]:
    """Return all keys so many times, every second time backwards."""
    return [key for turn in range(repeats) for key in (keys if turn % 2 == 0 else keys[::-1])]
