"""Drawings: what is kept, what keeps clear of what."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.report.bytes_chart import BytesRow, bytes_chart
from retexo_fl.report.charts import Hit, Line, LineChart, Mark, line_chart, thinned
from retexo_fl.report.scales import Axis
from retexo_fl.report.svg import Size, text_width

_SIZE = Size(width=500, height=230)


_EMPTY = LineChart(
    name="c",
    title="Loss",
    description="Falls.",
    x=Axis(low=1, high=3, quantity="count"),
    y=Axis(low=0, high=2, quantity="number"),
    x_title="round",
    lines=(),
)


def _chart(chart: LineChart) -> str:
    return line_chart(chart, _SIZE, "-w")


def test_line_chart_draws_points_in_place() -> None:
    drawn = _chart(replace(_EMPTY, lines=[Line(label="", tone="val", points=[(1, 0), (3, 2)])]))
    # Left: "0.0" is three characters of 6.7 px, and 12 px. Bottom: 230 - 46, top: 16, right: 486.
    assert '<path class="line val" d="M32.1 184.0L483.0 16.0"/>' in drawn


def test_line_chart_end_labels_keep_apart() -> None:
    lines = [
        Line(label=name, tone="val", points=[(1, 1.0), (3, 1.0)]) for name in ("one", "two", "six")
    ]
    places = re.findall(
        r'<text class="label val" x="[\d.]+" y="([\d.]+)"', _chart(replace(_EMPTY, lines=lines))
    )
    heights = [float(place) for place in places]
    assert len(heights) == 3
    assert all(below - above >= 15 for above, below in itertools.pairwise(heights))


def test_a_mark_at_a_lines_end_leaves_room_for_its_name() -> None:
    line = Line(label="validation", tone="val", points=[(1, 1), (3, 2)])
    drawn = _chart(replace(_EMPTY, lines=[line], marks=[Mark(x=3, y=2, label="round 10")]))
    (middle,) = re.findall(r'x="([\d.]+)"[^>]*>round 10<', drawn)
    (name,) = re.findall(r'x="([\d.]+)"[^>]*>validation<', drawn)
    assert float(middle) + text_width("round 10") / 2 <= float(name) - 8


def test_line_chart_leaves_out_marks_labels_that_would_overlap() -> None:
    marks = [Mark(x=2, y=1, label="best of all") for _ in range(3)]
    drawn = _chart(replace(_EMPTY, marks=marks))
    assert drawn.count('class="ring"') == 3
    assert drawn.count(">best of all<") == 2


def test_line_chart_escapes_texts() -> None:
    chart = replace(
        _EMPTY,
        title="<b>",
        sections=[(1, "<i>")],
        lines=[Line(label="<u>", tone="val", points=[(1, 1)])],
        hits=[Hit(x=1, y=1, tip="<s>")],
    )
    drawn = _chart(chart)
    assert not re.search(r"<[bius]>", drawn)
    assert "&lt;s&gt;" in drawn


def test_line_chart_keeps_hit_of_mark_when_thinning() -> None:
    hits = [Hit(x=1 + 2 * number / 999, y=1, tip=f"point {number}") for number in range(1000)]
    marks = [Mark(x=hits[501].x, y=1, label="best")]
    drawn = _chart(replace(_EMPTY, hits=hits, marks=marks))
    assert drawn.count('class="hit"') < 150
    assert "<title>point 501</title>" in drawn


@given(st.lists(st.floats(min_value=-1e6, max_value=1e6), min_size=1, max_size=400))
def test_thinned_keeps_ends_and_extremes(values: list[float]) -> None:
    places = list(enumerate(values))
    kept = thinned([(float(x), y) for x, y in places], 40)
    ends = [(0.0, values[0]), (len(values) - 1.0, values[-1])]
    assert [kept[0], kept[-1]] == ends
    assert {min(values), max(values)} <= {y for _, y in kept}
    assert len(kept) <= 44
    columns = [x for x, _ in kept]
    assert columns == sorted(columns)


def test_bytes_chart_shows_kinds_without_bytes() -> None:
    rows = [
        BytesRow(label="boundary", raw=4000, payload=1000),
        BytesRow(label="control", raw=0, payload=100),
        BytesRow(label="updates up", raw=0, payload=0),
    ]
    drawn = bytes_chart(rows, Size(width=1032, height=220), "-w")
    assert drawn.count('class="payload"') == 2
    assert drawn.count('class="raw"') == 1
    assert drawn.count(">none<") == 1
    assert drawn.count(">payload<") == 1
    assert "control: payload 100 B, raw 0 B" in drawn
