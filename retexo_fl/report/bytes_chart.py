"""The chart of bytes by kind as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from retexo_fl.report.scales import LogByteAxis
from retexo_fl.report.svg import Size, drawing, rule, text
from retexo_fl.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesRow:
    """One row of the chart of bytes: the dense tensors' size, and what travelled of it."""

    label: str
    raw: int
    payload: int


def bytes_chart(rows: Sequence[BytesRow], size: Size, suffix: str) -> str:
    """Draw payload and raw bytes of each row on a logarithmic axis.

    Args:
        rows: What to draw, top down.
        size: Natural size; narrow ones carry the row's label above its dots.
        suffix: Makes the ids of this drawing unique.

    Returns:
        One ``svg`` element.
    """
    narrow = size.width < 500
    left, right = (12.0 if narrow else 130.0), size.width - 84.0
    top, bottom = 26.0, size.height - 30.0
    axis = LogByteAxis.around(value for row in rows for value in (row.raw, row.payload))
    parts = []
    for value, label in axis.ticks(6 if narrow else 9):
        x = axis.place(value, left, right)
        parts += [
            rule(x, top - 6, x, bottom),
            text(x, bottom + 18, label, anchor="start" if x < 24 else "middle"),
        ]
    step, named = (bottom - top) / max(len(rows), 1), False
    for index, row in enumerate(rows):
        y = top + (index + 0.5) * step + (8 if narrow else 0)
        label_x, label_y = (left, y - 14) if narrow else (left - 18, y + 4)
        parts.append(
            text(
                label_x, label_y, row.label, anchor="start" if narrow else "end", style="label ink"
            )
        )
        dots, apart = _bytes_dots(row, axis, (left, right, y), named=named)
        named = named or apart
        parts += [*dots, text(right + 14, y + 4, format_bytes(row.payload), style="label val")]
    description = "; ".join(
        f"{row.label}: payload {format_bytes(row.payload)}, raw {format_bytes(row.raw)}"
        for row in rows
    )
    return drawing(
        "kinds" + suffix, "Bytes by kind, logarithmic scale", description + ".", size, parts
    )


def _bytes_dots(
    row: BytesRow, axis: LogByteAxis, frame: tuple[float, float, float], *, named: bool
) -> tuple[list[str], bool]:
    """Return the dots of a row, and whether payload and raw lie apart; the first such are named."""
    left, right, y = frame
    if row.payload <= 0 and row.raw <= 0:
        return [text(left + 8, y + 4, "none", style="note")], False
    raw, payload = (
        axis.place(value, left, right) if value > 0 else None for value in (row.raw, row.payload)
    )
    parts = []
    if raw is not None and payload is not None:
        parts.append(rule(payload, y, raw, y, style="link"))
    if raw is not None:
        parts.append(_dot("raw", raw, y, f"{row.label}: raw {format_bytes(row.raw)}"))
    if payload is not None:
        tip = f"{row.label}: payload {format_bytes(row.payload)}, raw {format_bytes(row.raw)}"
        parts.append(_dot("payload", payload, y, tip))
    if raw is None or payload is None or raw - payload < 12:
        return parts, False
    if not named:
        parts.append(text(payload - 10, y + 4, "payload", anchor="end", style="note"))
        parts.append(text(raw + 10, y + 4, "raw", style="note"))
    return parts, True


def _dot(style: str, x: float, y: float, tip: str) -> str:
    return (
        f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="5.5">'
        f"<title>{escape(tip)}</title></circle>"
    )
