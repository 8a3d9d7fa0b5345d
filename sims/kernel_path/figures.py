"""Pictures of ``python -m sims kernel_path``."""

from __future__ import annotations

from statistics import median
from typing import Final

from sims.charts import COLORS, put_legend_below
from sims.kernel_path.broadcast import KINDS
from sims.kernel_path.comparisons import OF_EXCHANGE
from sims.kernel_path.runs import EXCHANGE_WAYS, EXCHANGE_WIDTH, Findings
from sims.kernel_path.workload import WAYS
from sims.outcome import Axes

_STYLES: Final = ("-", "--", ":")


def draw_receivers(found: Findings, width: int, axes: Axes) -> None:
    """Draw the receiver's processor time by number of senders."""
    for number, way in enumerate(WAYS):
        samples = [found.flat_out[way, width, senders] for senders in found.sizes.senders]
        values = [median(sample.receiver for sample in each) for each in samples]
        _line(axes, list(found.sizes.senders), values, number=number, label=way)
    axes.set_xlabel("senders")
    axes.set_ylabel("receiver's CPU s / million vectors")
    axes.set_title(f"width {width}; super-frames: in the sender's time", fontsize=9)
    put_legend_below(axes, columns=3)


def draw_exchanges(found: Findings, axes: Axes) -> None:
    """Draw what one exchange takes both ends by its size."""
    sizes = found.sizes
    for number, way in enumerate(EXCHANGE_WAYS):
        for senders in sizes.exchange_senders:
            samples = [found.exchanges[way, senders, size] for size in sizes.exchange_bytes]
            values = [median(map(OF_EXCHANGE["total"], each)) * 1e3 for each in samples]
            style = sizes.exchange_senders.index(senders)
            label = f"{way}, {senders} senders"
            _line(axes, list(sizes.exchange_bytes), values, number=number, label=label, style=style)
    axes.set_xlabel("bytes of one sender")
    axes.set_ylabel("CPU ms of both ends for an exchange")
    axes.set_title(f"width {EXCHANGE_WIDTH}", fontsize=9)
    put_legend_below(axes, columns=3)


def draw_copies(found: Findings, axes: Axes) -> None:
    """Draw what a copy takes by the number of peers."""
    for number, kind in enumerate(KINDS):
        values = [median(found.copies[kind, peers]) * 1e6 for peers in found.sizes.peers]
        _line(axes, list(found.sizes.peers), values, number=number, label=kind)
    axes.set_xlabel("peers")
    axes.set_ylabel("sender's CPU us / copy")
    axes.set_title("broadcast", fontsize=9)
    put_legend_below(axes, columns=3)


def _line(
    axes: Axes, x: list[int], values: list[float], *, number: int, label: str, style: int = 0
) -> None:
    axes.plot(
        x,
        values,
        marker=".",
        color=COLORS[number % len(COLORS)],
        linestyle=_STYLES[style % len(_STYLES)] if number < len(COLORS) else "-.",
        label=label,
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
