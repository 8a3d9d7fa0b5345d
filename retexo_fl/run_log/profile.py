"""The profile that a run has, and why: one line in terminal, plan, log and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from retexo_fl.config import default_values
from retexo_fl.config.profiles import kind_values
from retexo_fl.run_log.json_form import OMITTED
from retexo_fl.units import format_bytes

#: Keys that left the default, of which a sentence names so many.
_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenProfile:
    """A set of keys that a run has where nobody chose others.

    Attributes:
        name: Of the profile.
        why: Why it is that one, to follow the name.
        fit: Which of its keys follow from the graph, and by what.
        payload_at_most: Bytes of a run that left lean training, if no stage ends early; None where
            they were not counted, or nothing was left.
        lean_at_most: The same of lean training; None likewise.
        advice: What a user can do about it.
        degrees_auc: Of task links, where one process has all parts: ROC AUC of test edges by the
            product of the two degrees; None of others.
        sides_auc: The same by the sides of a bipartite graph; None where it is not.
        degrees_metric: Likewise the run's own metric by degrees, where nodes rank others by it.
        of_one_client: Features that one client alone adds to, where one process has all parts.
    """

    name: str
    why: str
    fit: str = field(default="", metadata=OMITTED)
    payload_at_most: int | None = field(default=None, metadata=OMITTED)
    lean_at_most: int | None = field(default=None, metadata=OMITTED)
    advice: str = field(default="", metadata=OMITTED)
    degrees_auc: float | None = field(default=None, metadata=OMITTED)
    sides_auc: float | None = field(default=None, metadata=OMITTED)
    degrees_metric: float | None = field(default=None, metadata=OMITTED)
    of_one_client: int | None = field(default=None, metadata=OMITTED)

    @classmethod
    def by(cls, name: str, left: Sequence[str] | None, chosen: Mapping[str, object]) -> Self:
        """Return a profile, and why a run has it, without a look at its graph.

        Args:
            name: Of the profile.
            left: Keys that leave the default profile; None where the profile was asked for.
            chosen: Keys of the run, and their values.
        """
        if not left:
            why = ["as asked" if left is None else "by default"]
            for kind, values in kind_values(name, chosen).items():
                keys = [f"{k} {_text(k, v)}" for k, v in values.items() if k not in chosen]
                if keys:
                    why.append(f"with {', '.join(keys)} for {kind} {_text(kind, chosen[kind])}")
            return cls(name=name, why=", ".join(why))
        keys = [f"{key} = {_text(key, chosen[key])}" for key in left[:_MOST_NAMED]]
        more = len(left) - len(keys)
        keys += [f"{more} more"] if more else []
        *first, last = keys
        named = f"{', '.join(first)} and {last} were" if first else f"{last} was"
        return cls(name=name, why=f"since {named} chosen")

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        costs = ""
        if self.payload_at_most is not None:
            costs = f"up to about {format_bytes(self.payload_at_most)}"
            if self.lean_at_most is not None:
                costs += f", where lean would move up to {format_bytes(self.lean_at_most)}"
        told = "; ".join(part for part in (self.fit, self._beside, costs, self.advice) if part)
        return f"profile {self.name}, {self.why}" + (f": {told}" if told else "")

    @property
    def _beside(self) -> str:
        """What a model of links is to be compared with."""
        if self.degrees_auc is None:
            return ""
        told = f"degrees alone rank test edges with ROC AUC {self.degrees_auc:.4f}"
        if self.degrees_metric is not None:
            told += f", and {self.degrees_metric:.4f} in the run's metric"
        if self.sides_auc is None:
            return told
        return f"{told}, the side alone of this bipartite graph with {self.sides_auc:.4f}"


def _text(key: str, value: object) -> str:
    if isinstance(default_values()[key], float) and isinstance(value, int):
        value = float(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
