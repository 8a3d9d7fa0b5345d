"""Forms of figure that several recipes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import fmean
from typing import Any, Final

from sims.outcome import Axes, Figures

COLORS: Final = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#b279a2", "#9d755d", "#72b7b2")
#: One colour for one algorithm, in all figures.
ALGORITHM_COLORS: Final[Mapping[str, str]] = dict(
    zip(("lazy", "standard", "bns", "drop", "central"), COLORS, strict=False)
)
_GROUP_WIDTH: Final = 0.8


def draw_bars(
    axes: Axes,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Sequence[float]]],
    *,
    marks: Mapping[str, Sequence[float | None]] | None = None,
) -> None:
    """Draw groups of bars: means, with a dot for each value.

    Args:
        axes: Where.
        groups: Names along the axis.
        series: Values of each group by the name of the series.
        marks: A reference of each group by the name of the series, or None.
    """
    width = _GROUP_WIDTH / len(series)
    own = {name: ALGORITHM_COLORS[name] for name in series if name in ALGORITHM_COLORS}
    others = cycle(color for color in COLORS if color not in own.values())
    for number, (name, values) in enumerate(series.items()):
        color = own.get(name) or next(others)
        shift = (number - (len(series) - 1) / 2) * width
        places = [place + shift for place in range(len(groups))]
        axes.bar(places, [fmean(v) for v in values], width * 0.92, color=color, label=name)
        for place, each in zip(places, values, strict=True):
            if len(each) > 1:
                axes.plot([place] * len(each), each, ".", color="black", markersize=3)
        for place, mark in zip(places, (marks or {}).get(name, ()), strict=False):
            if mark is not None:
                ends = (place - width / 2, place + width / 2)
                axes.plot(ends, (mark, mark), color="black", linewidth=1.5)
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    put_legend_below(axes)


def draw_line(axes: Axes, figures: Figures, metrics: Mapping[float, str], **style: Any) -> None:
    """Draw figures over their places, those that there are; ``style`` is of ``Axes.plot``."""
    points = [(x, figures[metric].ours) for x, metric in metrics.items() if metric in figures]
    if points:
        axes.plot(*zip(*points, strict=True), **style)


def draw_measured(axes: Axes, figures: Figures, place: str, **style: Any) -> None:
    """Draw accuracy over the bytes of one place of a table; ``style`` is of ``Axes.plot``."""
    axes.plot(
        figures[f"moved, {place}"].ours,
        figures[f"test accuracy, {place}"].ours,
        linestyle="none",
        **style,
    )


def put_legend_below(axes: Axes, *, columns: int = 5) -> None:
    """Put the legend where it hides nothing."""
    below = (0.5, -0.12)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=below, ncols=columns, frameon=False)


def focus(axes: Axes, values: Sequence[float], *, margin: float = 0.03) -> None:
    """Show the part of a vertical axis of shares where the values are."""
    axes.set_ylim(max(0.0, min(values) - margin), min(1.0, max(values) + margin))


def draw_growth(
    axes: Axes, lines: Mapping[str, Sequence[tuple[float, float]]], *, label: str
) -> None:
    """Draw costs against sizes, both in units of each line's first point beyond the smallest.

    Args:
        axes: Where.
        lines: (size, cost) beyond the smallest point, by the name of what grows.
        label: Of the vertical axis.
    """
    farthest = 1.0
    for number, (name, points) in enumerate(lines.items()):
        first_size, first_cost = points[0]
        sizes = [size / first_size for size, _ in points]
        costs = [cost / first_cost for _, cost in points]
        farthest = max(farthest, *sizes)
        axes.plot(sizes, costs, "o-", color=COLORS[number % len(COLORS)], label=name, markersize=4)
    axes.plot((1, farthest), (1, farthest), "--", color="black", linewidth=1, label="linear")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("size, times the first point's")
    axes.set_ylabel(label)
    put_legend_below(axes)
