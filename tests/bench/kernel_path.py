"""Datagrams that the kernel adds up against user-space UDP and TCP: processor time of both ends.

What ``python -m sims kernel_path`` measures, in the form of a bench. Needs root, who makes network
namespaces, and BPF.
"""

from __future__ import annotations

from pathlib import Path

from sims.kernel_path.broadcast import KINDS
from sims.kernel_path.comparisons import (
    OF,
    OF_EXCHANGE,
    UDP_TARGETS,
    XDP,
    flat_out_ratios,
    lines,
    paced_ratios,
    ratios,
    size_text,
)
from sims.kernel_path.runs import FULL, PACED_WAYS, QUICK, Findings, measure_all
from sims.kernel_path.tables import described
from sims.kernel_path.workload import WAYS
from tests.bench.measure import Spread
from tests.bench.outcome import Outcome, Row

#: Processor seconds for a million vectors.
_UNIT = "s"


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Measure everything."""
    del data_dir
    found = measure_all(QUICK if quick else FULL)
    return Outcome(
        name="kernel_path",
        setting=described(found),
        ratios=[*_flat_out_ratios(found), *_paced_ratios(found), *_other_ratios(found)],
        times=[*_flat_out_times(found), *_paced_times(found), *_other_times(found)],
    )


def _flat_out_ratios(found: Findings) -> list[Row]:
    rows = []
    for width in found.sizes.rows:
        for way in WAYS:
            if way == XDP:
                continue
            for whose in OF:
                rows.append(
                    Row(
                        metric=f"width {width}, {whose}: {way} / XDP",
                        unit="x",
                        spread=Spread.of(flat_out_ratios(found, way, width, whose)),
                        target=UDP_TARGETS[width] if (way, whose) == ("UDP", "receiver") else None,
                    )
                )
    return rows


def _paced_ratios(found: Findings) -> list[Row]:
    return [
        Row(
            metric=f"paced {message_rows} x {width}, {whose}: {way} / XDP",
            unit="x",
            spread=Spread.of(paced_ratios(found, way, width, whose)),
            target=1.0 if whose == "receiver" else None,
        )
        for width, message_rows in found.sizes.paced
        for way in PACED_WAYS[1:]
        for whose in OF
    ]


def _other_ratios(found: Findings) -> list[Row]:
    rows = [
        Row(
            metric=f"{line.senders} x {size_text(size)}, {line.whose}: {line.way} / XDP",
            unit="x",
            spread=Spread.of(
                ratios(
                    found.exchanges[line.way, line.senders, size],
                    found.exchanges[XDP, line.senders, size],
                    OF_EXCHANGE[line.whose],
                )
            ),
        )
        for line in lines(found)
        for size in line.ratios
    ]
    for peers in found.sizes.peers:
        for kind in KINDS:
            pairs = zip(found.copies[kind, peers], found.copies["gso", peers], strict=True)
            spread = Spread.of([over / under for over, under in pairs])
            rows.append(
                Row(metric=f"copies to {peers} peers: {kind} / gso", unit="x", spread=spread)
            )
    return rows


def _flat_out_times(found: Findings) -> list[Row]:
    return [
        Row(
            metric=f"width {width}, {senders} senders, {whose}: {way}",
            unit=_UNIT,
            spread=Spread.of([figure(sample) for sample in samples]),
        )
        for (way, width, senders), samples in found.flat_out.items()
        for whose, figure in OF.items()
    ]


def _paced_times(found: Findings) -> list[Row]:
    return [
        Row(
            metric=f"paced {samples[0].case.message_rows} x {width}, {whose}: {way}",
            unit=_UNIT,
            spread=Spread.of([figure(sample) for sample in samples]),
        )
        for (way, width), samples in found.paced.items()
        for whose, figure in OF.items()
    ]


def _other_times(found: Findings) -> list[Row]:
    copies = [
        Row(
            metric=f"copy to one of {peers} peers: {kind}",
            unit="us",
            spread=Spread.of([seconds * 1e6 for seconds in samples]),
        )
        for (kind, peers), samples in found.copies.items()
    ]
    programs = [
        Row(
            metric=f"program, a packet of width {width}: {variant}, {name}",
            unit="ns",
            spread=Spread.of([value, value]),
        )
        for (width, variant), cost in found.programs.items()
        for name, value in (("new", cost.new_ns), ("duplicate", cost.duplicate_ns))
    ]
    return [*copies, *programs]
