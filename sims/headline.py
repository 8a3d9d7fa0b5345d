"""README's picture: accuracy against bytes, of Cora's GCN over ten clients.

python -m sims.headline    # sims/results/headline.svg, from what `python -m sims lean` wrote
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final, NamedTuple

from sims.outcome import rows_of

RESULTS: Final = Path(__file__).parent / "results"
#: Ways of the recipe `lean`, what the picture calls them, their class of colour, and where a
#: label stands from its point: to the right, down, anchor.
_WAYS: Final = (
    ("lean", "lean training (default)", "ours", 12, 22, "start"),
    ("retexo", "RETEXO's schedule", "ours", -12, -12, "end"),
    ("bns", "BNS", "others", 12, 22, "start"),
    ("drop", "edges dropped", "others", -12, 4, "end"),
    ("fedavg", "FedAvg, edges dropped", "others", -12, 4, "end"),
)
#: Narrow, so that a phone shows the words at a size that can be read.
_WIDTH, _HEIGHT = 420, 350
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 392, 70, 294
_MB: Final = (1.0, 10_000.0)
_SHARES: Final = (0.65, 0.9)
#: Colours of its own for either background, as a page cannot hand its own to a picture.
_STYLE: Final = """
text { font: 15px system-ui, sans-serif; fill: #24292f }
.title { font-size: 16px; font-weight: 600 }
.card { fill: #ffffff; stroke: #d0d7de }
.grid { stroke: #d8dee4 }
.ours { fill: #3f51b5; stroke: #3f51b5 } text.ours { stroke: none; font-weight: 600 }
.others { fill: #9a6700; stroke: #9a6700 } text.others { stroke: none }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .card { fill: #161b22; stroke: #30363d }
  .grid { stroke: #30363d }
  .ours { fill: #9fa8ff; stroke: #9fa8ff }
  .others { fill: #e3b341; stroke: #e3b341 }
}
"""


class Point(NamedTuple):
    """Means of the seeds, and their least and most accurate."""

    megabytes: float
    accuracy: float
    least: float
    most: float


def picture(facts: dict[str, Any]) -> str:
    """Return the picture of a result of the recipe `lean`, as SVG."""
    rows = {row.metric: row for row in rows_of(facts["rows"])}
    clients = facts["setting"]["clients"]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" '
        f'height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<style>{_STYLE}</style>",
        f'<rect class="card" x=".5" y=".5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="8"/>',
        _text(16, 28, "Test accuracy against bytes moved", "title"),
        _text(16, 50, f"Cora, GCN, {clients} clients"),
    ]
    for share in (0.65, 0.7, 0.75, 0.8, 0.85, 0.9):
        y = _y(share)
        lines.append(f'<path class="grid" d="M{_LEFT} {y}H{_RIGHT}"/>')
        lines.append(_text(_LEFT - 10, y + 5, f"{share:.0%}", anchor="end"))
    for power in range(5):
        x = _x(10.0**power)
        lines.append(f'<path class="grid" d="M{x} {_TOP}V{_BOTTOM}"/>')
        name = f"{10**power:,} MB" if power < 3 else f"{10 ** (power - 3)} GB"
        lines.append(_text(x, _BOTTOM + 24, name, anchor="middle"))
    seeds = facts["setting"]["seeds"]
    note = f"means of {seeds} seeds, least and most accurate"
    lines.append(_text(_RIGHT, _BOTTOM + 46, note, anchor="end"))
    for way, name, kind, right, down, anchor in _WAYS:
        accuracy = rows[f"test accuracy, cora, gcn, {way}"]
        assert accuracy.spread is not None
        moved = rows[f"moved, cora, gcn, {way}"].ours
        point = Point(moved, accuracy.ours, accuracy.spread.low, accuracy.spread.high)
        x, y = _x(point.megabytes), _y(point.accuracy)
        spread = f"M{x} {_y(point.least)}V{_y(point.most)}"
        lines.append(f'<path class="{kind}" stroke-width="2" d="{spread}"/>')
        lines.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="6"/>')
        lines.append(_text(x + right, y + down, name, kind, anchor))
    return "\n".join([*lines, "</svg>", ""])


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _x(megabytes: float) -> float:
    low, high = map(math.log10, _MB)
    return round(_LEFT + (math.log10(megabytes) - low) / (high - low) * (_RIGHT - _LEFT), 1)


def _y(share: float) -> float:
    low, high = _SHARES
    return round(_BOTTOM - (share - low) / (high - low) * (_BOTTOM - _TOP), 1)


if __name__ == "__main__":
    told = json.loads((RESULTS / "lean.json").read_text(encoding="utf-8"))
    (RESULTS / "headline.svg").write_text(picture(told), encoding="utf-8")
