"""Quantities as a person reads them: bytes, durations, shares, counts. Plain text, no markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

#: Shown where a value is not known.
UNKNOWN: Final = "-"

#: Clients that a line names.
_MOST_NAMED: Final = 10

_BYTE_UNITS: Final = ("kB", "MB", "GB", "TB", "PB")


def format_bytes(size_bytes: float | None) -> str:
    """Return a byte count in decimal units with two or three digits that count.

    Args:
        size_bytes: Bytes, or None when not known.

    Returns:
        ``999 B``, ``1.2 MB``, ``123 kB``; :data:`UNKNOWN` for None.
    """
    if size_bytes is None:
        return UNKNOWN
    if abs(size_bytes) < 999.5:
        return f"{size_bytes:.0f} B"
    value, unit = size_bytes / 1000, _BYTE_UNITS[0]
    for larger in _BYTE_UNITS[1:]:
        if abs(value) < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if abs(value) < 99.95 else f"{value:.0f} {unit}"


def format_duration(seconds: float | None) -> str:
    """Return a duration with its two leading units.

    Args:
        seconds: Duration in seconds, or None when not known.

    Returns:
        ``0.42 s``, ``12.3 s``, ``3 min 05 s``, ``2 h 07 min``, ``4 d 03 h``; :data:`UNKNOWN` for
        None.
    """
    if seconds is None:
        return UNKNOWN
    if seconds < 9.995:
        return f"{max(seconds, 0.0):.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller_size, smaller in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller_size:02d} {smaller}"
    return f"{whole} s"


def format_share(share: float | None, *, digits: int = 1) -> str:
    """Return a share of one as per cent (``0.914`` is ``91.4 %``); :data:`UNKNOWN` for None.

    A share that is above zero but would print as zero is written ``< 0.1 %``.
    """
    if share is None:
        return UNKNOWN
    text = f"{100 * share:.{digits}f}"
    if share > 0 and float(text) == 0:
        return f"< {10.0**-digits:.{digits}f} %"
    return f"{text} %"


def format_count(count: int | None) -> str:
    """Return a count with thousands separated by commas; :data:`UNKNOWN` for None."""
    return UNKNOWN if count is None else f"{count:,}"


def format_counted(count: int | None, noun: str) -> str:
    """Return a count as :func:`format_count` does, with what is counted: ``1,234 boundary rows``.

    Args:
        count: None when not known.
        noun: What is counted, in the singular; its plural ends in s.
    """
    return f"{format_count(count)} {noun if count == 1 else f'{noun}s'}"


def counted(count: int, noun: str) -> str:
    """Return a count as errors show it, in digits that a file or a command shows too.

    Args:
        count: How many.
        noun: As of :func:`format_counted`.

    Returns:
        ``1 byte``, ``0 bytes``, ``80000000 bytes``.
    """
    return f"{count} {noun if count == 1 else f'{noun}s'}"


def format_number(value: float | None) -> str:
    """Return a loss or ratio with four digits that count; :data:`UNKNOWN` for None."""
    return UNKNOWN if value is None else f"{value:.4g}"


def format_metric(name: str, value: float | None, *, digits: int = 1) -> str:
    """Return the value of a metric: accuracy per cent, others as numbers, :data:`UNKNOWN` for None.

    Args:
        name: Of the metric.
        value: Its value.
        digits: Of a percentage behind the point.
    """
    if name == "accuracy" or value is None:
        return format_share(value, digits=digits)
    return f"{value:.4f}" if abs(value) < 99.99995 else format_number(value)


def lacks_named(lacks: Mapping[int, int | None]) -> str:
    """Return what clients lack, for one line.

    None: the client does not answer; 0: it does not say how many.
    """
    named = [
        f"client {client} " + ("does not answer" if count is None else f"lacks {count or 'some'}")
        for client, count in list(lacks.items())[:_MOST_NAMED]
    ]
    more = len(lacks) - len(named)
    return ", ".join(named) + (f", and {format_counted(more, 'client')} more" if more else "")


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Join ascending numbers to spans (first, last)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def client_named(client: int) -> str:
    """Return what a sentence calls a client; -1 where it is not known which it is."""
    return f"client {client}" if client >= 0 else "a client"


def clients_named(clients: Sequence[int]) -> str:
    """Return some clients as a line names them."""
    numbers = ", ".join(map(str, clients))
    return f"client{'' if len(clients) == 1 else 's'} {numbers}"
