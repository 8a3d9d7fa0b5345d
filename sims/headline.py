"""README's picture: accuracy against bytes on Cora, ours as measured and others' as published.

python -m sims.headline    # sims/results/headline.svg, from what `python -m sims rivals` wrote
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sims.outcome import Row, rows_of
from sims.published import FEDGRAPH, OPENFGL_LOCAL, OPENFGL_MB

RESULTS: Final = Path(__file__).parent / "results"
#: Narrow, so that a phone shows the words at a size that can be read.
_WIDTH, _HEIGHT = 420, 560
_LEFT, _RIGHT = 50, 392
_MB: Final = (0.3, 2_000.0)
#: Of points; a ring of others goes around a point of ours that is as good.
_RADIUS: Final = {"ours": 6, "others": 6, "published": 9}
#: Colours of its own for either background, as a page cannot hand its own to a picture.
_STYLE: Final = """
text { font: 15px system-ui, sans-serif; fill: #24292f }
.title { font-size: 16px; font-weight: 600 }
.card { fill: #ffffff; stroke: #d0d7de }
.grid { stroke: #d8dee4 }
.ours { fill: #3f51b5; stroke: #3f51b5 } text.ours { stroke: none; font-weight: 600 }
.others { fill: #9a6700; stroke: #9a6700 } text.others { stroke: none }
.published { fill: none; stroke: #9a6700 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .card { fill: #161b22; stroke: #30363d }
  .grid { stroke: #30363d }
  .ours { fill: #9fa8ff; stroke: #9fa8ff }
  .others { fill: #e3b341; stroke: #e3b341 }
  .published { fill: none; stroke: #e3b341 }
}
"""


class Label(NamedTuple):
    """What a point is called, and where that is written: to the right, down, and the anchor."""

    text: str
    right: float
    down: float
    anchor: str = "start"


class Panel(NamedTuple):
    """One protocol.

    Attributes:
        title: A line for people.
        protocol: As rows of the recipe `rivals` name it.
        top: Of the axes.
        bottom: Of the axes.
        shares: Lines of the vertical axis, which ends at the first and the last.
        ways: By way of the recipe, its label.
        published: MB and accuracy of others, with labels.
    """

    title: str
    protocol: str
    top: float
    bottom: float
    shares: tuple[float, ...]
    ways: Mapping[str, Label]
    published: tuple[tuple[float, float, Label], ...]

    def y(self, share: float) -> float:
        """Return where a share is drawn."""
        low, high = self.shares[0], self.shares[-1]
        return round(self.bottom - (share - low) / (high - low) * (self.bottom - self.top), 1)


def _fedgraph(method: str, label: Label) -> tuple[float, float, Label]:
    found = FEDGRAPH["cora", "10000", method]
    assert found.mib is not None
    return found.mib * 2**20 / 1e6, found.accuracy, label


_OURS: Final = ("lean", "one-shot", "retexo")
_PANELS: Final = (
    Panel(
        title="FedGCN's protocol: 140 labelled nodes",
        protocol="dirichlet 10000",
        top=74,
        bottom=254,
        shares=(0.5, 0.6, 0.7, 0.8, 0.9),
        ways={
            "lean": Label("lean (default)", 14, 6),
            "one-shot": Label("one-shot", 6, -14, "middle"),
            "retexo": Label("RETEXO's schedule", 6, 25, "end"),
            "fedavg": Label("FedAvg", -14, 5, "end"),
        },
        published=(
            _fedgraph("FedGCN", Label("FedGCN", 0, -16, "middle")),
            _fedgraph("FedAvg", Label("", 0, 0)),
        ),
    ),
    Panel(
        title="OpenFGL's protocol: communities, 20 % labelled",
        protocol="louvain",
        top=322,
        bottom=472,
        shares=(0.75, 0.8, 0.85, 0.9),
        ways={
            "lean": Label("lean (default)", 12, 22),
            "one-shot": Label("one-shot", 6, -14, "middle"),
            "retexo": Label("RETEXO's schedule", 6, -15, "end"),
            "fedavg": Label("FedAvg", -16, 5, "end"),
        },
        published=((OPENFGL_MB["cora"], OPENFGL_LOCAL["cora", "louvain"], Label("", 0, 0)),),
    ),
)


def picture(facts: dict[str, Any]) -> str:
    """Return the picture of a result of the recipe `rivals`, as SVG."""
    rows = {row.metric: row for row in rows_of(facts["rows"])}
    clients = facts["setting"]["clients"]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" '
        f'height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<style>{_STYLE}</style>",
        f'<rect class="card" x=".5" y=".5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="8"/>',
        _text(16, 28, f"Cora, {clients} clients: accuracy against bytes", "title"),
    ]
    for panel in _PANELS:
        lines += _panel(panel, rows)
    return "\n".join([*lines, *_legend(), "</svg>", ""])


def _panel(panel: Panel, rows: Mapping[str, Row]) -> list[str]:
    lines = [_text(16, panel.top - 20, panel.title)]
    for share in panel.shares:
        y = panel.y(share)
        lines.append(f'<path class="grid" d="M{_LEFT} {y}H{_RIGHT}"/>')
        lines.append(_text(_LEFT - 10, y + 5, f"{share:.0%}", anchor="end"))
    for power in range(4):
        x = _x(10.0**power)
        lines.append(f'<path class="grid" d="M{x} {panel.top}V{panel.bottom}"/>')
        name = f"{10**power:,} MB" if power < 3 else f"{10 ** (power - 3)} GB"
        lines.append(_text(x, panel.bottom + 22, name, anchor="middle"))
    for megabytes, share, label in panel.published:
        lines += _point(_x(megabytes), panel.y(share), "published", label, "others")
    for way, label in panel.ways.items():
        accuracy = rows[f"test accuracy, cora, {panel.protocol}, {way}"]
        kind = "ours" if way in _OURS else "others"
        x = _x(rows[f"moved, cora, {panel.protocol}, {way}"].ours)
        assert accuracy.spread is not None
        ends = f"M{x} {panel.y(accuracy.spread.low)}V{panel.y(accuracy.spread.high)}"
        lines.append(f'<path class="{kind}" stroke-width="2" d="{ends}"/>')
        lines += _point(x, panel.y(accuracy.ours), kind, label, kind)
    return lines


def _legend() -> list[str]:
    y = _HEIGHT - 40
    return [
        *_point(24, y, "ours", Label("", 0, 0), "ours"),
        *_point(42, y, "others", Label("measured: means, least to most", 16, 5), ""),
        *_point(
            42, y + 24, "published", Label("others: published, or run with their code", 16, 5), ""
        ),
    ]


def _point(x: float, y: float, kind: str, label: Label, kind_of_text: str) -> list[str]:
    circle = f'<circle class="{kind}" cx="{x}" cy="{y}" r="{_RADIUS[kind]}" stroke-width="2"/>'
    if not label.text:
        return [circle]
    at = (x + label.right, y + label.down)
    return [circle, _text(*at, label.text, kind_of_text, label.anchor)]


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _x(megabytes: float) -> float:
    low, high = map(math.log10, _MB)
    return round(_LEFT + (math.log10(megabytes) - low) / (high - low) * (_RIGHT - _LEFT), 1)


if __name__ == "__main__":
    told = json.loads((RESULTS / "rivals.json").read_text(encoding="utf-8"))
    (RESULTS / "headline.svg").write_text(picture(told), encoding="utf-8")
