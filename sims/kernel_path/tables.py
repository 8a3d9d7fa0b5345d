"""Tables and lines of ``python -m sims kernel_path``."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median
from typing import Any, Final

from sims.kernel_path.comparisons import (
    OF,
    OF_EXCHANGE,
    UDP_TARGETS,
    XDP,
    Figure,
    Whose,
    flat_out_ratios,
    lines,
    paced_ratios,
    recommended_bytes,
    size_text,
)
from sims.kernel_path.laboratory import Sample
from sims.kernel_path.runs import EXCHANGE_WIDTH, PACED_WAYS, Findings
from sims.kernel_path.workload import PACE_S, WAYS
from sims.outcome import Check, Figures, Row, figures_of

_UNIT: Final = "CPU s / million vectors"
#: Who a receiver's time is compared with, besides XDP.
_RIVALS: Final = ("UDP", "UDP, not joined", "UDP, numpy", "AF_XDP", "TCP")


def rows_of(found: Findings) -> list[Row]:
    """Return all figures."""
    return [
        *_ratio_rows(found),
        *_flat_out_rows(found),
        *_paced_rows(found),
        *_exchange_rows(found),
        *_copy_rows(found),
        *_program_rows(found),
    ]


def checks_of(found: Findings, *, quick: bool) -> tuple[Check, ...]:
    """Return the lines that must hold; of few packets, nothing about time."""
    by_kernel = [
        sample
        for samples in (*found.flat_out.values(), *found.paced.values(), *found.exchanges.values())
        for sample in samples
        if WAYS[sample.case.way].kind == "xdp"
    ]
    through = Check(
        line="XDP: no vector came through user space, in any measurement",
        holds=bool(by_kernel) and not any(sample.user_packets for sample in by_kernel),
    )
    if quick:
        return (through,)
    return (through, *_time_checks(found), *target_checks(figures_of(_ratio_rows(found))))


def target_checks(figures: Figures) -> tuple[Check, ...]:
    """Return whether the targets of :data:`UDP_TARGETS` were reached, by the figures of a run."""
    checks = []
    for width, target in UDP_TARGETS.items():
        times = figures[_ratio_name("UDP", width)].ours
        line = f"width {width}: UDP's receiver takes at least {target:g} times XDP's ({times:.2f})"
        checks.append(Check(line=line, holds=times >= target, is_target=True))
    return tuple(checks)


def _time_checks(found: Findings) -> tuple[Check, ...]:
    return (
        Check(
            line="flat out, every width and number of senders: XDP's receiver takes less processor "
            "time than user-space UDP's, joined or not",
            holds=all(
                median(flat_out_ratios(found, way, width, "receiver", senders)) > 1
                for way in ("UDP", "UDP, not joined")
                for width in found.sizes.rows
                for senders in found.sizes.senders
            ),
        ),
        Check(
            line="paced small messages of many senders: XDP's receiver takes less processor time "
            "than user-space UDP's and TCP's",
            holds=all(
                median(paced_ratios(found, way, width, "receiver")) > 1
                for way in PACED_WAYS[1:]
                for width, _ in found.sizes.paced
            ),
        ),
    )


def described(found: Findings) -> Mapping[str, Any]:
    """Return sizes, what is compared how, and where the line between TCP and XDP runs."""
    sizes, best = found.sizes, recommended_bytes(found)
    return {
        "repeats of each": sizes.repeats,
        "load before and after": " and ".join(f"{load:.2f}" for load in found.load),
        "seconds": round(found.wall_s[0]),
        "vectors": "; ".join(f"width {width}: {rows:,}" for width, rows in sizes.rows.items()),
        "wire": "two network namespaces joined by a virtual Ethernet pair, MTU 1,500, one receive "
        "queue; a kernel thread takes each end's packets (threaded NAPI), its time is its end's; "
        "no network card: XDP pays for copying each frame into a page of its own",
        "receiver": "processor time of the receiver's process and of that kernel thread",
        "total": "the receiver's, the senders' (each a process of its own, sending as an endpoint "
        "does, by segmentation offload) and that of the kernel's leftover threads",
        "UDP": "user-space receiver of the library: recvmmsg, packets of a sender joined by the "
        "kernel (GRO), checked and added by compiled code; 'not joined': one by one; 'numpy': one "
        "by one, checked by array operations, without checksums, and added by numpy.add.at",
        "TCP": "one connection each, added by a compiled loop in blocks of up to 256 KiB; frames "
        "of one packet as on a wire, joined by GRO. 'super-frames': of up to 64 KiB, which only a "
        "virtual wire hands over, in the sender's time: compare their total",
        "paced": f"{sizes.paced_senders} senders played by one process, each a message every "
        f"{PACE_S * 1e6:g} us, {sizes.messages} messages",
        "exchange": f"width {EXCHANGE_WIDTH}; each sender waits until its vectors were taken "
        "before it sends those of the next exchange; opening the streams is counted, agreeing on "
        "them is not",
        "copies": "batches of 128 packets of 1,456 bytes for each peer, sent as an endpoint does; "
        "the other end drops them in the sender's time",
        "program": "BPF_PROG_TEST_RUN, packets of 22 cells; new: a duplicate in repetition, and "
        "the difference of medians of single runs",
        "reference": "of a ratio to UDP, the target; of a time, XDP native's",
        "where TCP wins": "; ".join(line.text for line in lines(found)),
        "by TCP from": "TCP does not win in total" if best is None else f"{best} bytes of a sender",
    }


def _ratio_rows(found: Findings) -> list[Row]:
    rows = []
    for width in found.sizes.rows:
        for way in _RIVALS:
            target = UDP_TARGETS.get(width) if way == "UDP" else None
            values = flat_out_ratios(found, way, width, "receiver")
            rows.append(Row.of(_ratio_name(way, width), values, unit="times", reference=target))
        for way in ("TCP", "TCP, super-frames"):
            values = flat_out_ratios(found, way, width, "total")
            name = f"total, {way} / XDP, width {width}, all numbers of senders"
            rows.append(Row.of(name, values, unit="times"))
    for width, message_rows in found.sizes.paced:
        for way in PACED_WAYS[1:]:
            for whose in OF:
                values = paced_ratios(found, way, width, whose)
                name = f"{whose}, {way} / XDP, paced messages of {message_rows} x {width}"
                rows.append(Row.of(name, values, unit="times"))
    return rows


def _ratio_name(way: str, width: int) -> str:
    return f"receiver, {way} / XDP, width {width}, all numbers of senders"


def _flat_out_rows(found: Findings) -> list[Row]:
    rows = []
    for (way, width, senders), samples in found.flat_out.items():
        named = f"{way}, width {width}, {senders} sender{'s' * (senders > 1)}"
        rows += _beside_xdp(named, samples, found.flat_out[XDP, width, senders], OF, _UNIT)
        rates = [sample.case.vectors / sample.wall_s / 1e6 for sample in samples]
        rows.append(Row.of(f"rate, {named}", rates, unit="million vectors / s"))
    return rows


def _paced_rows(found: Findings) -> list[Row]:
    rows = []
    for (way, width), samples in found.paced.items():
        named = f"{way}, paced messages of {samples[0].case.message_rows} x {width}"
        rows += _beside_xdp(named, samples, found.paced[XDP, width], OF, _UNIT)
        wake_ups = [float(sample.wake_ups) for sample in samples]
        paces = [sample.pace_s * 1e6 for sample in samples]
        rows.append(Row.of(f"wake-ups of the receiver's process, {named}", wake_ups, unit=""))
        rows.append(Row.of(f"pace that was kept, {named}", paces, unit="us"))
    return rows


def _exchange_rows(found: Findings) -> list[Row]:
    return [
        row
        for (way, senders, size), samples in found.exchanges.items()
        for row in _beside_xdp(
            f"one exchange, {way}, {senders} senders, {size_text(size)} each",
            samples,
            found.exchanges[XDP, senders, size],
            OF_EXCHANGE,
            "CPU ms",
            scale=1e3,
        )
    ]


def _beside_xdp(
    named: str,
    samples: list[Sample],
    others: list[Sample],
    figures: Mapping[Whose, Figure],
    unit: str,
    *,
    scale: float = 1.0,
) -> list[Row]:
    """Return what the receiver and both ends take, beside what they take by XDP."""
    return [
        Row.of(
            f"{whose}, {named}",
            [figure(sample) * scale for sample in samples],
            unit=unit,
            reference=fmean(figure(sample) for sample in others) * scale,
        )
        for whose, figure in figures.items()
    ]


def _copy_rows(found: Findings) -> list[Row]:
    return [
        Row.of(
            f"copy by {kind}, {peers} peers",
            [value * 1e6 for value in seconds],
            unit="CPU us",
            reference=fmean(found.copies["gso", peers]) * 1e6,
        )
        for (kind, peers), seconds in found.copies.items()
    ]


def _program_rows(found: Findings) -> list[Row]:
    rows = []
    for (width, variant), cost in found.programs.items():
        for name, value in (
            ("new", cost.new_ns),
            ("duplicate", cost.duplicate_ns),
            ("new, single run", cost.single_new_ns),
        ):
            metric = f"program, width {width}, {variant}, {name}"
            rows.append(Row(metric=metric, unit="ns / packet", ours=value))
    for (width, block, way), seconds in found.adding.items():
        metric = f"adding, width {width}, blocks of {block}, {way}"
        rows.append(Row(metric=metric, unit="ns / vector", ours=seconds * 1e9))
    return rows
