"""What a bench hands back, how it is printed, and where it came from."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from retexo_fl.federation.hardware import describe_machine
from sims.origin import commit
from tests.bench.measure import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing measured.

    Attributes:
        metric: What.
        unit: ``ms``, or ``x`` for a ratio.
        spread: Its value.
        target: The value to be reached, or None.
        at_most: The target is an upper bound.
    """

    metric: str
    unit: str
    spread: Spread
    target: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the target; None without one."""
        if self.target is None:
            return None
        median = self.spread.median
        return median <= self.target if self.at_most else median >= self.target

    def facts(self) -> dict[str, Any]:
        """Return the row as JSON has it."""
        target = None if self.target is None else {"value": self.target, "at_most": self.at_most}
        facts = {"metric": self.metric, "unit": self.unit, **asdict(self.spread)}
        return {**facts, "target": target, "met": self.met}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything a bench found.

    Attributes:
        name: Of the bench.
        setting: Sizes and inputs.
        ratios: The result: numbers that carry over to another machine, or have a target.
        times: What they were made of.
    """

    name: str
    setting: Mapping[str, Any]
    ratios: list[Row]
    times: list[Row] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Return the outcome with its origin, as JSON has it."""
        return {
            "name": self.name,
            "command": " ".join(["python", "-m", "tests.bench", *sys.argv[1:]]),
            "commit": commit(),
            "hardware": {**describe_machine(), "load": os.getloadavg()},
            "versions": _versions(),
            "setting": dict(self.setting),
            "ratios": [row.facts() for row in self.ratios],
            "times": [row.facts() for row in self.times],
        }


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print an outcome for people."""
    print(f"{facts['name']}: {facts['command']}")
    for part in ("commit", "hardware", "versions", "setting"):
        value = facts[part]
        text = value if isinstance(value, str) else ", ".join(f"{k} {v}" for k, v in value.items())
        print(f"  {part:9}{text}")
    for row in (*facts["times"], *facts["ratios"]):
        print(f"  {_sentence(row)}")


def write_facts(facts: Mapping[str, Any], path: Path) -> None:
    """Write an outcome as JSON."""
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _sentence(row: Mapping[str, Any]) -> str:
    text = (
        f"{row['metric']:58} {row['median']:10.3f} {row['unit']:2} "
        f"[{row['low']:.3f}, {row['high']:.3f}] of {row['samples']}"
    )
    if row["target"] is None:
        return text
    bound = "at most" if row["target"]["at_most"] else "at least"
    state = "met" if row["met"] else "MISSED"
    return f"{text}, target {bound} {row['target']['value']:g}: {state}"


def _versions() -> dict[str, str]:
    names = ("torch", "flwr", "numpy", "scipy")
    return {"python": platform.python_version()} | {name: version(name) for name in names}
