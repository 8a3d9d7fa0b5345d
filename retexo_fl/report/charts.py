"""Line charts as inline SVG; every colour comes from the page's style, every text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from retexo_fl.report.scales import Axis
from retexo_fl.report.svg import Size, drawing, rule, text, text_width

_LINE_PX: Final = 15.0  # least distance of two labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart.

    Attributes:
        label: Written at its end; empty for none.
        tone: ``train`` or ``val``: its colour.
        points: (x, y) in the order of x.
    """

    label: str
    tone: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A ring around one point, with a label."""

    x: float
    y: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A point that answers the pointer with ``tip``."""

    x: float
    y: float
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """A chart of lines over a common x axis.

    Attributes:
        name: Word that makes the ids of the drawing unique on the page.
        title: What it shows.
        description: What is to be seen in it, for readers who do not see it.
        x: Horizontal axis.
        y: Vertical axis.
        x_title: Written under the horizontal axis.
        lines: The lines.
        marks: Rings, for instance best rounds.
        bands: (start, end) of shaded ranges on x.
        sections: (start, label) of the ranges that x is divided into.
        hits: Points that answer the pointer.
    """

    name: str
    title: str
    description: str
    x: Axis
    y: Axis
    x_title: str
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()
    bands: Sequence[tuple[float, float]] = ()
    sections: Sequence[tuple[float, str]] = ()
    hits: Sequence[Hit] = ()


def line_chart(chart: LineChart, size: Size, suffix: str) -> str:
    """Draw a chart of lines.

    Args:
        chart: What to draw.
        size: Natural size.
        suffix: Makes the ids of this drawing unique.

    Returns:
        One ``svg`` element.
    """
    plot = _Plot.of(chart, size)
    parts = [
        *_bands(chart, plot),
        *_grid(chart, plot),
        *_sections(chart, plot),
        *_lines(chart, plot),
        *_marks(chart, plot),
        *_hits(chart, plot),
    ]
    return drawing(chart.name + suffix, chart.title, chart.description, size, parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plot:
    """The plot area and the way into it."""

    chart: LineChart
    left: float
    right: float
    top: float
    bottom: float

    @classmethod
    def of(cls, chart: LineChart, size: Size) -> _Plot:
        y_labels = [label for _, label in chart.y.ticks(5)]
        line_labels = [line.label for line in chart.lines]
        return cls(
            chart=chart,
            left=max((text_width(label) for label in y_labels), default=8.0) + 12,
            right=size.width
            - max(14.0, 1.06 * text_width(max(line_labels, key=len, default="")) + 17),
            top=30.0 if chart.sections else 16.0,
            bottom=size.height - 46.0,
        )

    def x(self, value: float) -> float:
        return self.chart.x.place(value, self.left, self.right)

    def y(self, value: float) -> float:
        return self.chart.y.place(value, self.bottom, self.top)


def _bands(chart: LineChart, plot: _Plot) -> list[str]:
    return [
        f'<rect class="band" x="{plot.x(start):.1f}" y="{plot.top:.1f}" '
        f'width="{max(plot.x(end) - plot.x(start), 1.0):.1f}" '
        f'height="{plot.bottom - plot.top:.1f}"/>'
        for start, end in chart.bands
    ]


def _grid(chart: LineChart, plot: _Plot) -> list[str]:
    parts = []
    for value, label in chart.y.ticks(5):
        y = plot.y(value)
        parts += [
            rule(plot.left, y, plot.right, y),
            text(plot.left - 8, y + 4, label, anchor="end"),
        ]
    room = 48 if chart.x.quantity == "count" else 64
    ticks = chart.x.ticks(max(2, min(8, int((plot.right - plot.left) / room))))
    for value, label in ticks:
        x = plot.x(value)
        parts += [
            rule(x, plot.bottom, x, plot.bottom + 4, style="axis"),
            text(x, plot.bottom + 18, label, anchor="middle"),
        ]
    parts.append(rule(plot.left, plot.bottom, plot.right, plot.bottom, style="axis"))
    middle = (plot.left + plot.right) / 2
    parts.append(text(middle, plot.bottom + 37, chart.x_title, anchor="middle"))
    return parts


def _sections(chart: LineChart, plot: _Plot) -> list[str]:
    parts, free = [], plot.left
    for start, label in chart.sections:
        x, width, most = plot.x(start), text_width(label), plot.right + 10
        # The name of a narrow last section ends with the plot, above the line where it begins.
        name = min(x + 6, most - width)
        parts.append(rule(x, plot.top - (16 if name > x else 4), x, plot.bottom, style="divide"))
        if min(x, name) >= free:
            parts.append(text(name, plot.top - 9, label, style="note"))
            free = name + 6 + width
    return parts


def _lines(chart: LineChart, plot: _Plot) -> list[str]:
    parts, labels = [], []
    for line in chart.lines:
        places = [(plot.x(x), plot.y(y)) for x, y in line.points]
        if not places:
            continue
        if len(places) == 1:
            x, y = places[0]
            parts.append(f'<circle class="dot {line.tone}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
        else:
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in thinned(places, 600))
            parts.append(f'<path class="line {line.tone}" d="{path}"/>')
        if line.label:
            labels.append((*places[-1], line))
    return parts + _end_labels(labels, plot.bottom)


def _end_labels(labels: list[tuple[float, float, Line]], bottom: float) -> list[str]:
    """Write the lines' names behind their ends: none over another, none beside the axis's ticks."""
    placed, lowest = [], 0.0
    for x, y, line in sorted(labels, key=lambda item: item[1]):
        lowest = max(y + 4, lowest + _LINE_PX)
        placed.append((x, lowest, line))
    up = max(0.0, lowest - bottom)
    return [
        text(x + 11, base - up, line.label, style=f"label {line.tone}") for x, base, line in placed
    ]


def _marks(chart: LineChart, plot: _Plot) -> list[str]:
    parts: list[str] = []
    taken: list[tuple[float, float, float]] = []
    # Names of lines are written right of their ends.
    right = plot.right if any(line.label for line in chart.lines) else plot.right + 10
    for mark in chart.marks:
        x, y = plot.x(mark.x), plot.y(mark.y)
        parts.append(f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')
        half = text_width(mark.label) / 2
        middle = min(max(x, plot.left + half + 4), right - half)
        above = y - 12 if y - 26 > plot.top else y + 22
        for base in (above, y + 22):
            if all(_is_clear(middle, half, base, other) for other in taken):
                taken.append((middle, half, base))
                parts.append(text(middle, base, mark.label, anchor="middle", style="label ink"))
                break
    return parts


def _is_clear(middle: float, half: float, base: float, other: tuple[float, float, float]) -> bool:
    other_middle, other_half, other_base = other
    return abs(middle - other_middle) > half + other_half + 8 or abs(base - other_base) >= _LINE_PX


def _hits(chart: LineChart, plot: _Plot) -> list[str]:
    most = max(20, int((plot.right - plot.left) / 4))
    keep = set(range(0, len(chart.hits), max(1, -(-len(chart.hits) // most))))
    marked = {mark.x for mark in chart.marks}
    return [
        f'<circle class="hit" cx="{plot.x(hit.x):.1f}" cy="{plot.y(hit.y):.1f}" r="5">'
        f"<title>{escape(hit.tip)}</title></circle>"
        for index, hit in enumerate(chart.hits)
        if index in keep or hit.x in marked
    ]


def thinned(places: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Return about ``most`` points that keep the outline: of each bucket its two extremes."""
    if len(places) <= most:
        return list(places)
    size = -(-2 * len(places) // most)
    kept = [places[0]]
    for start in range(0, len(places), size):
        bucket = places[start : start + size]
        kept += sorted({min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])})
    return [*kept, places[-1]]
