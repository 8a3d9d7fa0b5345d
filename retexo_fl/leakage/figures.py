"""What an audit found, as it is shown and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from retexo_fl.leakage.scores import EXCEEDED, guess_limit

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
        chance: What a guess exceeds in 5 of 100 audits of the same candidates; None where that is
            not known.
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
    chance: float | None = None
    by: dict[str, Any] = field(default_factory=dict)
    note: str = ""


def membership(
    source: str,
    of_clients: Sequence[tuple[float, float]],
    counts: Sequence[tuple[int, int]],
) -> Finding:
    """Return how well train nodes are distinguished from others by what is known of all candidates.

    Args:
        source: What was read, as in "from an update".
        of_clients: Areas under the curve (ROC) of each client that was tried: by what it sends in
            the clear, and by its cohort's sum.
        counts: How many train nodes of each of these clients were candidates, and how many others.
    """
    clear, masked = map(float, np.mean(of_clients, axis=0))
    error = float(np.std(of_clients, axis=0)[1] / np.sqrt(len(of_clients)))
    return Finding(
        attack=f"membership, {source}",
        reader="server",
        measure="ROC AUC",
        guess=0.5,
        clear=clear,
        masked=masked,
        chance=guess_limit(counts),
        by={"clients": len(of_clients), "standard_error": error},
        note=(
            "who looks knows the candidates' rows and labels; masked, from their cohort's sum, "
            f"with a standard error of {error:.2f}; it falls as train nodes in one sum grow"
        ),
    )


#: What peers' figures are of, where rows cross.
_VIEWS: Final = ("rows", "rows and edges across")


def edge_rows(
    findings: Sequence[Finding], measures: Sequence[str]
) -> list[tuple[str, list[float]]]:
    """Return, by what is looked at, the figures of peers that look for edges; nothing of none."""
    of_peers = [one for one in findings if "attackers" in one.by]
    rows = []
    for one in of_peers:
        named = one.attack.rpartition(", ")[2]
        rows += [(f"{named}: {view}", _taken(one.by, measures, view)) for view in _VIEWS]
        if "two_together" in one.by:
            both = _taken(one.by["two_together"], measures, _VIEWS[-1])
            rows.append((f"{named}: two peers together", both))
    if of_peers:
        alone = _taken(of_peers[0].by, measures, "edges across")
        rows.append(("no rows: edges across alone", alone))
    return rows


def _taken(by: Mapping[str, float], measures: Sequence[str], view: str) -> list[float]:
    return [by[f"{measure}, {view}"] for measure in measures]


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

    def verdicts(self) -> list[str]:
        """Return a sentence for each attack that can be compared with guessing, or without rows."""
        told = []
        for one in self.findings:
            hidden = one.masked if self.is_masked else None
            figure = one.clear if hidden is None else hidden
            what = f"{one.attack}: {figure:.2f}{'' if hidden is None else ' masked'}"
            if one.chance is not None:
                how = "above" if figure > one.chance else "not above"
                told.append(
                    f"{what} is {how} guessing, which exceeds {one.chance:.2f} in "
                    f"{100 * EXCEEDED:.0f} of 100 audits"
                )
            elif one.measure == "ROC AUC" and one.cut is not None:
                told.append(f"{what} is {figure - one.cut:.2f} more than by edges across alone")
        return told

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "version": VERSION,
            "dataset": self.dataset,
            "masked": self.is_masked,
            "accuracy": self.accuracy,
            "findings": [asdict(one) for one in self.findings],
            "warnings": list(self.warnings),
            "not_played": list(self.not_played),
            "config": self.config,
        }
