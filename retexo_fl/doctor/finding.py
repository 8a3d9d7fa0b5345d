"""What an examination finds, one line for each thing looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, unique


@unique
class Verdict(Enum):
    """The state of a thing; the values are those in JSON."""

    GOOD = "good"
    #: Not wanted, or not needed here.
    ABSENT = "absent"
    #: A training can continue, but the owner should look.
    DOUBTFUL = "doubtful"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        thing: What: ``python``, ``key``, ``peer 3``.
        verdict: Whether it is in order.
        seen: What was seen, in a few words.
        advice: What to do; empty where nothing need be done.
    """

    thing: str
    verdict: Verdict
    seen: str
    advice: str = ""


def good(thing: str, seen: str) -> Finding:
    """Return a finding without advice."""
    return Finding(thing=thing, verdict=Verdict.GOOD, seen=seen)


def absent(thing: str, seen: str, advice: str = "") -> Finding:
    """Return that something is not there, and need not be."""
    return Finding(thing=thing, verdict=Verdict.ABSENT, seen=seen, advice=advice)


def doubtful(thing: str, seen: str, advice: str) -> Finding:
    """Return that a training can continue, but the owner should look."""
    return Finding(thing=thing, verdict=Verdict.DOUBTFUL, seen=seen, advice=advice)


def bad(thing: str, seen: str, advice: str) -> Finding:
    """Return that a training cannot continue as it is."""
    return Finding(thing=thing, verdict=Verdict.BAD, seen=seen, advice=advice)


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict of all."""
    order = list(Verdict)
    return max((item.verdict for item in findings), key=order.index, default=Verdict.GOOD)
