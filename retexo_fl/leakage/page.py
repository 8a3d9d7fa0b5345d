"""An audit as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from retexo_fl.leakage.figures import Finding, Leakage, edge_rows
from retexo_fl.leakage.peer_attacks import MEASURES
from retexo_fl.report import markup
from retexo_fl.report.svg import Size, both_sizes, drawing, rule, text
from retexo_fl.units import UNKNOWN

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_WIDE, _PHONE = Size(width=1032, height=0), Size(width=360, height=0)
_ROW_PX = 62
#: A note beside figures is read in lines, not in letters, also on a phone.
_NOTES = (
    "[aria-labelledby=server] td:last-child, [aria-labelledby=peers] td:last-child "
    "{ min-width: 15em; }\n"
)


def render(found: Leakage) -> str:
    """Return the page."""
    body = "".join(
        (
            _header(found),
            _notes(found.warnings),
            _reader(
                found,
                "server",
                "What the server can read",
                "From updates and sums. Where sums are masked it reads what the ring says: of the "
                "sum of each cohort, of about five clients by default.",
            ),
            _reader(
                found,
                "peers",
                "What clients that share edges can read",
                "From rows that cross. Masks change nothing of it; the ring is what edges across "
                "tell a peer that gets no row.",
            ),
            _verdicts(found.verdicts()),
            _sizes(found.findings),
            _peers(found.findings),
            _skipped(found.not_played),
            _config(found),
        )
    )
    style = files("retexo_fl.report").joinpath("page.css").read_text(encoding="utf-8")
    script = files("retexo_fl.report").joinpath("page.js").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(found.dataset)}: what a training tells</title>\n"
        f"<style>\n{style}{_NOTES}</style>\n</head>\n<body>\n<main>{body}</main>\n"
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _header(found: Leakage) -> str:
    figures = ", ".join(f"{name} {value:.4f}" for name, value in found.accuracy.items())
    sums = "sums are masked" if found.is_masked else "sums are not masked"
    return (
        f"<header><div><h1>{escape(found.dataset)}: what a training tells</h1>"
        f'<p class="facts">{escape(sums)} · test figure: {escape(figures)}</p>'
        '<p class="facts">Each attack was played on what its reader received in a training on '
        "this machine.</p></div></header>"
    )


def _notes(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<p>{escape(one[:1].upper() + one[1:])}.</p>" for one in warnings)
    return f'<div class="notes" role="note">{items}</div>'


def _reader(found: Leakage, reader: str, heading: str, words: str) -> str:
    findings = [one for one in found.findings if one.reader == reader]
    if not findings:
        return ""
    is_server = reader == "server"

    def draw(size: Size, suffix: str) -> str:
        return _chart(findings, size, f"{reader}{suffix}", is_server=is_server)

    wide, phone = (
        Size(width=size.width, height=30 + _ROW_PX * len(findings)) for size in (_WIDE, _PHONE)
    )
    beside = "masked" if is_server else "no rows"
    rows = [
        (
            markup.words(one.attack),
            markup.words(one.measure),
            _figure(one.guess),
            _figure(one.clear),
            _figure(one.masked if is_server else one.cut),
            markup.words(one.note),
        )
        for one in findings
    ]
    columns = ("looked for", "measure", "guess", "in the clear", beside, "")
    return markup.section(
        reader,
        heading,
        markup.paragraph(words),
        both_sizes(draw, wide, phone),
        markup.table(heading, columns, rows),
    )


def _chart(findings: Sequence[Finding], size: Size, name: str, *, is_server: bool) -> str:
    """Draw each figure on a line from 0 to 1, a guess as a tick, the defended one as a ring."""
    left, right = 12.0, size.width - 60.0
    parts = []
    for at, one in enumerate(findings):
        y = 40.0 + _ROW_PX * at
        defended = one.masked if is_server else one.cut
        parts.append(text(left, y - 14, one.attack, style="label ink"))
        parts.append(rule(left, y, right, y))
        guess = _place(one.guess, left, right)
        parts.append(rule(guess, y - 7, guess, y + 7, style="axis"))
        parts.append(text(guess, y + 20, "guess", anchor="middle" if guess > 40 else "start"))
        clear = _place(one.clear, left, right)
        if defended is not None:
            ring = _place(defended, left, right)
            parts.append(rule(ring, y, clear, y, style="link"))
            parts.append(f'<circle class="raw" cx="{ring:.1f}" cy="{y:.1f}" r="5.5"></circle>')
        parts.append(
            f'<circle class="payload" cx="{clear:.1f}" cy="{y:.1f}" r="5.5">'
            f"<title>{escape(one.attack)}: {one.clear:.3f}</title></circle>"
        )
        parts.append(text(right + 14, y + 4, f"{one.clear:.2f}", style="label val"))
    description = "; ".join(f"{one.attack}: {one.clear:.2f}" for one in findings)
    return drawing(name, "What attacks reach, from 0 to 1", description + ".", size, parts)


def _figure(value: float | None) -> markup.Cell:
    return markup.Cell(text=UNKNOWN if value is None else f"{value:.3f}", value=value)


def _place(value: float, left: float, right: float) -> float:
    return left + min(max(value, 0.0), 1.0) * (right - left)


def _sizes(findings: Sequence[Finding]) -> str:
    rows = [
        (
            markup.words(one.attack),
            markup.words(str(row["train_nodes"])),
            markup.count(int(row["clients"])),
            _figure(row["clear"]),
            _figure(row["masked"]),
        )
        for one in findings
        for row in one.by.get("by_train_nodes", [])
    ]
    if not rows:
        return ""
    columns = ("looked for", "train nodes of a client", "clients", "in the clear", "masked")
    return markup.section(
        "sizes",
        "By how many train nodes a client has",
        markup.paragraph("Of a client with one train node a sum is that node."),
        markup.table("By train nodes", columns, rows),
    )


def _peers(findings: Sequence[Finding]) -> str:
    rows = [
        (markup.words(name), *map(_figure, values))
        for name, values in edge_rows(findings, MEASURES)
    ]
    if not rows:
        return ""
    return markup.section(
        "edges",
        "Edges inside another part",
        markup.paragraph(
            "Means over clients that look at all their peers. What rows add is the difference to "
            "edges across alone."
        ),
        markup.table("Edges", ("what is looked at", *MEASURES), rows),
    )


def _verdicts(verdicts: Sequence[str]) -> str:
    if not verdicts:
        return ""
    return markup.section(
        "verdicts", "Above guessing or not", *(markup.paragraph(f"{one}.") for one in verdicts)
    )


def _skipped(reasons: Sequence[str]) -> str:
    if not reasons:
        return ""
    return markup.section(
        "skipped", "Not played", *(markup.paragraph(reason + ".") for reason in reasons)
    )


def _config(found: Leakage) -> str:
    rows = [(markup.words(key), markup.words(value)) for key, value in found.config.items()]
    return markup.section(
        "config",
        "Training",
        markup.folded("All keys", markup.table("Keys", ("key", "value"), rows)),
    )
