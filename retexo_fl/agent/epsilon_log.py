"""How much epsilon a part has given away, over all jobs and starts; how much it may.

Each noised sum that leaves, an update or one for a ridge solution, is a line of ``epsilon.jsonl``
before, on the disk: an agent that is killed has spent it, whether or not it was sent. The same one
counts once.

So it is with noised classes of rows, in ``row-epsilon.jsonl``: what these promise, of a node's
features to its peers, adds up by itself.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from retexo_fl.client.row_noise import RowRelease, check_single
from retexo_fl.errors import CheckpointError, ConfigurationError, LocalProtocolError
from retexo_fl.gaussian_privacy import NoisedReleases, epsilon_of, is_within
from retexo_fl.line_log import LineLog, of_line

if TYPE_CHECKING:
    from retexo_fl.client.noise import Release

_NAME: Final = "epsilon.jsonl"
_ROWS: Final = "row-epsilon.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonBudget:
    """What an owner allows.

    Attributes:
        most: Largest epsilon of one part; 0 for any.
        delta: That goes with it.
    """

    most: float
    delta: float

    def allows(self, mu_squared: float) -> bool:
        """Return whether releases stay within it that are together of so large a mu**2."""
        return not self.most or is_within(epsilon_of(math.sqrt(mu_squared), self.delta), self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line(ABC):
    """A line of a log: a release at a Unix time, of a part."""

    at: float
    part: str
    job: str
    identity: str

    @property
    @abstractmethod
    def amount(self) -> float:
        """What it adds to what the part has given away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spent(_Line):
    """Of noised sums: a :class:`.Release`."""

    stage: int
    round: int
    mu_squared: float

    @property
    def amount(self) -> float:
        return self.mu_squared


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told(_Line):
    """Of noised classes of rows: a :class:`.RowRelease`."""

    epsilon: float

    @property
    def amount(self) -> float:
        return self.epsilon


Line = TypeVar("Line", bound=_Line)


def _lines_of(log: LineLog, kind: type[Line], what: str) -> list[Line]:
    """Return all lines of a log.

    Raises:
        CheckpointError: It cannot be read, or is damaged.
    """
    damaged = CheckpointError(f"{log.path}: is damaged; expected {what} of this agent")
    try:
        lines = [of_line(kind, line) for line in log.read()]
    except ValueError as error:
        raise damaged from error
    if not all(0 < line.amount < math.inf for line in lines):
        raise damaged
    return lines


class EpsilonLog:
    """The noised sums of one part, among all of the agent's; a :class:`.ReleaseLog`.

    Args:
        state: The agent's folder.
        part: 16 hex digits that name the part.
        budget: What its owner allows.
        client: Index.

    Raises:
        CheckpointError: The log cannot be read, or is damaged.
    """

    def __init__(self, state: Path, part: str, budget: EpsilonBudget, *, client: int) -> None:
        self._part, self._budget, self._client = part, budget, client
        self._log = LineLog(state / _NAME)
        lines = _lines_of(self._log, _Spent, "the noised sums")
        self._spent = {line.identity: line for line in lines if line.part == part}
        self._others = [line for line in lines if line.part != part]

    @property
    def epsilon(self) -> float:
        """What the part has given away, at the budget's delta."""
        return epsilon_of(math.sqrt(self._mu_squared()), self._budget.delta)

    @property
    def facts(self) -> dict[str, Any]:
        """What an agent's status says: what its owner allows, and what each part has given away.

        An epsilon is None where it is beyond what is computed.
        """
        squares = {self._part: self._mu_squared()}
        for line in {line.identity: line for line in self._others}.values():
            squares[line.part] = squares.get(line.part, 0.0) + line.mu_squared
        spent = {
            part: epsilon_of(math.sqrt(square), self._budget.delta)
            for part, square in squares.items()
        }
        return {
            "most": self._budget.most,
            "delta": self._budget.delta,
            "part": self._part,
            "spent": {part: e if math.isfinite(e) else None for part, e in spent.items()},
        }

    def check_fits(self, job: str, noise: NoisedReleases) -> None:
        """Refuse a job before it begins that would be refused later.

        Raises:
            ConfigurationError: Its sums and those of other jobs together exceed the budget.
        """
        if not self._budget.allows(self._mu_squared(but=job) + noise.mu**2):
            raise ConfigurationError(
                f"client {self._client}: update-dp: {noise.epsilon:g}, after an epsilon of "
                f"{self.epsilon:.4g} that its part has given away in all jobs; expected at most "
                f"{self._budget.most:g} together (max-epsilon in its agent.toml)"
            )

    def enter(self, release: Release, *, most: int) -> None:
        """See :class:`.ReleaseLog`; it is on the disk when this returns.

        Raises:
            LocalProtocolError: It is one too many for its job, or for the budget.
            CheckpointError: It could not be written.
        """
        if release.identity in self._spent:
            return
        # As all that computes, not before it is needed.
        from retexo_fl.client.noise import check_count

        check_count(sum(line.job == release.job for line in self._spent.values()), most)
        if not self._budget.allows(self._mu_squared() + release.mu_squared):
            raise LocalProtocolError(
                f"client {self._client}: its part has given away an epsilon of {self.epsilon:.4g} "
                f"in all jobs; expected at most {self._budget.most:g} with one sum more "
                "(max-epsilon in its agent.toml)"
            )
        line = _Spent(at=time.time(), part=self._part, **asdict(release))
        self._log.add(asdict(line))
        self._spent[line.identity] = line

    def _mu_squared(self, *, but: str = "") -> float:
        # A copy, made at once: the status asks in another thread than updates are entered in.
        lines = list(self._spent.values())
        return math.fsum(line.mu_squared for line in lines if line.job != but)


class RowEpsilonLog:
    """The noised classes of rows of one part; a :class:`.RowReleaseLog`.

    Args:
        state: The agent's folder.
        part: 16 hex digits that name the part.
        most: Largest epsilon of all releases together, which is their sum; 0 for any.
        client: Index.

    Raises:
        CheckpointError: The log cannot be read, or is damaged.
    """

    def __init__(self, state: Path, part: str, most: float, *, client: int) -> None:
        self._part, self._most, self._client = part, most, client
        self._log = LineLog(state / _ROWS)
        lines = _lines_of(self._log, _Told, "the noised rows")
        self._told = {line.identity: line for line in lines if line.part == part}

    @property
    def epsilon(self) -> float:
        """What the part has given away."""
        return math.fsum(line.epsilon for line in list(self._told.values()))

    def enter(self, release: RowRelease) -> None:
        """See :class:`.RowReleaseLog`; it is on the disk when this returns.

        Raises:
            LocalProtocolError: It is another one of its job, or one too many for the budget.
            CheckpointError: It could not be written.
        """
        if release.identity in self._told:
            return
        of_job = [line.identity for line in self._told.values() if line.job == release.job]
        check_single("".join(of_job), release)
        if self._most and not is_within(self.epsilon + release.epsilon, self._most):
            raise LocalProtocolError(
                f"client {self._client}: row-dp: {release.epsilon:g}, after an epsilon of "
                f"{self.epsilon:.4g} that its part has given away by rows in all jobs; expected at "
                f"most {self._most:g} together (max-row-epsilon in its agent.toml)"
            )
        line = _Told(at=time.time(), part=self._part, **asdict(release))
        self._log.add(asdict(line))
        self._told[line.identity] = line
