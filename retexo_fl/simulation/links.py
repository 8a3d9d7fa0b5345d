"""Links: what the network between two ends can carry, by name, as text, or from a file.

A file gives every link one of these texts::

    default = "wan-50ms"                # every link that no other line names
    server = "4g"                       # links between the server and clients
    client-2 = "rate:1mbit/delay:80ms"  # links of client 2, to the server and to clients
    "0-3" = "bluetooth"                 # between clients 0 and 3, both ways
    "2>server" = "rate:256kbit"         # one way

The most specific line for a link decides: one way, both ways, client, server, default. Between
two clients with a line each, the worse figure of either counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from string import ascii_lowercase
from types import MappingProxyType
from typing import Final

from retexo_fl.config import LINK, LINK_EXPECTED, LINK_PROFILES
from retexo_fl.errors import ConfigurationError
from retexo_fl.files import read_toml
from retexo_fl.ledger import SERVER
from retexo_fl.run_log.result import Line

#: Powers of ten of a rate's unit, in bits, and of a delay's, in seconds.
_BITS: Final = MappingProxyType({"bit": 0, "kbit": 3, "mbit": 6, "gbit": 9})
_SECONDS: Final = MappingProxyType({"us": -6, "ms": -3, "s": 0})
_SERVER_NAME: Final = "server"
_END: Final = rf"(?:{_SERVER_NAME}|0|[1-9]\d{{0,8}})"
_NAMES: Final = re.compile(
    rf"default|server|client-(?P<client>0|[1-9]\d{{0,8}})|(?P<one>{_END})(?P<way>[->])(?P<other>{_END})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction between two ends; the default carries anything at once.

    Attributes:
        rate_bit_s: Bits a second, above 0; None where there is no limit.
        delay_s: Seconds from the sender to the receiver, one way.
        loss: Probability that a packet does not arrive, in [0, 1).
    """

    rate_bit_s: Fraction | None = None
    delay_s: Fraction = Fraction(0)
    loss: float = 0.0

    @property
    def byte_s(self) -> Fraction:
        """Seconds for which a byte occupies the link."""
        return Fraction(0) if self.rate_bit_s is None else 8 / self.rate_bit_s

    def facts(self) -> Line:
        """Return the link in the form of the run's result."""
        rate = None if self.rate_bit_s is None else float(self.rate_bit_s)
        return Line(rate_bit_s=rate, delay_s=float(self.delay_s), loss=self.loss)


_SLOT_S: Final = Fraction(625, 1_000_000)
#: docs/links.md says where these figures come from.
PROFILES: Final[Mapping[str, Link]] = MappingProxyType(
    {
        "ideal": Link(),
        # 3-DH5 packets both ways: 1,021 B each way in 10 slots of 625 us. Delay: the longest time
        # between two polls of an idle link, 40 slots. The radio repeats what is lost by itself.
        "bluetooth": Link(rate_bit_s=1021 * 8 / (10 * _SLOT_S), delay_s=40 * _SLOT_S),
        # Means of 120,000 tests (Ofcom, 4th quarter of 2014): 13.6 Mbit/s up, 53.1 ms both ways.
        "4g": Link(rate_bit_s=Fraction(13_600_000), delay_s=Fraction("0.0531") / 2),
        # RETEXO, table 4: a delay before every message, and no other limit.
        "wan-50ms": Link(delay_s=Fraction(1, 20)),
        "wan-100ms": Link(delay_s=Fraction(1, 10)),
        "wan-200ms": Link(delay_s=Fraction(1, 5)),
    }
)
assert set(PROFILES) == set(LINK_PROFILES)


def parse_link(text: object) -> Link:
    """Read a profile's name or a text such as ``rate:10mbit/delay:50ms/loss:0.01``.

    Raises:
        ConfigurationError: It is neither.
    """
    if not isinstance(text, str) or not LINK.fullmatch(text):
        raise ConfigurationError(f"got {text!r}; expected {LINK_EXPECTED}")
    if text in PROFILES:
        return PROFILES[text]
    parts = dict(part.split(":", 1) for part in text.split("/"))
    return Link(
        rate_bit_s=_quantity(parts["rate"], _BITS) if "rate" in parts else None,
        delay_s=_quantity(parts.get("delay", "0s"), _SECONDS),
        loss=float(parts.get("loss", "0")),
    )


def _quantity(text: str, powers: Mapping[str, int]) -> Fraction:
    number = text.rstrip(ascii_lowercase)
    return Fraction(number) * Fraction(10) ** powers[text.removeprefix(number)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The links between all ends of a federation.

    Attributes:
        text: The configuration's text.
        lines: Link by name, as in a file; always with ``default``.
    """

    text: str
    lines: Mapping[str, Link]

    def between(self, sender: int, receiver: int) -> Link:
        """Return the link from one end to another; ends are client indices, or ``SERVER``."""
        one, other = _name_of(sender), _name_of(receiver)
        for name in (f"{one}>{other}", f"{one}-{other}", f"{other}-{one}"):
            if name in self.lines:
                return self.lines[name]
        of_clients = [
            self.lines[name] for name in (f"client-{one}", f"client-{other}") if name in self.lines
        ]
        if of_clients:
            return _worse(of_clients)
        if SERVER in (sender, receiver) and _SERVER_NAME in self.lines:
            return self.lines[_SERVER_NAME]
        return self.lines["default"]

    def facts(self) -> dict[str, Line]:
        """Return every line in the form of the run's result."""
        return {name: link.facts() for name, link in self.lines.items()}


def _name_of(end: int) -> str:
    return _SERVER_NAME if end == SERVER else str(end)


def _worse(links: list[Link]) -> Link:
    rates = [link.rate_bit_s for link in links if link.rate_bit_s is not None]
    return Link(
        rate_bit_s=min(rates, default=None),
        delay_s=max(link.delay_s for link in links),
        loss=max(link.loss for link in links),
    )


def read_links(text: str, *, clients: int) -> Links:
    """Read the configuration's ``links``.

    Args:
        text: A profile, a literal, or a path that ends in ``.toml``.
        clients: How many there are; a file may name no other.

    Raises:
        ConfigurationError: The text is none of these, or the file cannot be read, is not TOML, or
            has a line that names no link or gives none; the message names file and line.
    """
    if not text.endswith(".toml"):
        try:
            return Links(text=text, lines={"default": parse_link(text)})
        except ConfigurationError as error:
            raise ConfigurationError(f"links: {error}") from error
    values = _read_file(Path(text))
    if "default" not in values:
        raise ConfigurationError(
            f"links: {text}: default: missing; expected the profile of all other links"
        )
    lines: dict[str, Link] = {}
    for name, value in values.items():
        try:
            _check_name(name, set(lines), clients)
            lines[name] = parse_link(value)
        except ConfigurationError as error:
            raise ConfigurationError(f"links: {text}: {name}: {error}") from error
    return Links(text=text, lines=lines)


def _read_file(path: Path) -> dict[str, object]:
    try:
        return read_toml(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"links: {error}") from error


def _check_name(name: str, before: set[str], clients: int) -> None:
    """Refuse a line that names no link, a client that does not exist, or a link named before."""
    found = _NAMES.fullmatch(name)
    if found is None:
        raise ConfigurationError(
            "not a link; expected default, server, client-2, 0-3 (both ways), or 0>3 or 2>server "
            "(one way)"
        )
    ends = [found[group] for group in ("client", "one", "other") if found[group] is not None]
    unknown = [end for end in ends if end != _SERVER_NAME and int(end) >= clients]
    if unknown:
        raise ConfigurationError(f"there is no client {unknown[0]}; expected 0 to {clients - 1}")
    if found["way"]:
        if found["one"] == found["other"]:
            raise ConfigurationError("not a link; expected two different ends")
        backwards = f"{found['other']}-{found['one']}"
        if found["way"] == "-" and backwards in before:
            raise ConfigurationError(f"both ways are already set by {backwards}")
