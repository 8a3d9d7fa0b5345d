"""What an audit found, as it is shown and written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Version of ``leakage.json``.
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one attack reached.

    Attributes:
        attack: What is looked for.
        reader: Who looks: ``server``, or ``peers``.
        measure: Of what the figures are.
        guess: What is reached without anything that was received.
        clear: What is reached where sums are not masked.
        masked: What is reached of masked sums; None where masks change nothing of it.
        cut: What is reached where no rows cross (``algorithm drop``); None where that changes
            nothing of it.
        by: Further figures, by name.
        note: What to know about them.
    """

    attack: str
    reader: str
    measure: str
    guess: float
    clear: float
    masked: float | None = None
    cut: float | None = None
    by: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "attack": self.attack,
            "reader": self.reader,
            "measure": self.measure,
            "guess": self.guess,
            "clear": self.clear,
            "masked": self.masked,
            "cut": self.cut,
            "by": self.by,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Leakage:
    """All that an audit found.

    Attributes:
        config: Keys of the training, as text.
        dataset: Name of its graph.
        is_masked: Its sums are masked, so that the server reads what ``masked`` says.
        findings: In the order in which they are shown.
        accuracy: Of the test nodes by way of training.
        warnings: Sentences for its owner.
        not_played: Attacks that were not played, and why.
    """

    config: dict[str, Any]
    dataset: str
    is_masked: bool
    findings: tuple[Finding, ...]
    accuracy: dict[str, float]
    warnings: tuple[str, ...]
    not_played: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "version": VERSION,
            "dataset": self.dataset,
            "masked": self.is_masked,
            "accuracy": self.accuracy,
            "findings": [one.as_json() for one in self.findings],
            "warnings": list(self.warnings),
            "not_played": list(self.not_played),
            "config": self.config,
        }
