"""How the server waits: by which clock, how long, for how many clients, and when it reports it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol, Self

from retexo_fl.config import RunConfig

#: A look at a SuperLink that is silent takes minutes, and may begin before a question is closed.
_MARGIN_S: Final = 3600.0
#: After so long a wait is reported for the first time; every gap is twice the one before.
_FIRST_REPORT_S: Final = 30.0
#: A pause at the deadline lets this much time pass at least, so that rounding cannot stop a clock.
_SHORTEST_PAUSE_S: Final = 0.001


# ---- time ---------------------------------------------------------------------------------------


class Clock(Protocol):
    """A time that only grows, and a way to let it pass."""

    def now_s(self) -> float:
        """Return the time in seconds, counted from anywhere."""
        ...

    def pause(self, seconds: float, /) -> None:
        """Return when so much time has passed."""
        ...


class MachineClock:
    """The clock of this machine."""

    now_s = staticmethod(time.monotonic)
    pause = staticmethod(time.sleep)


THIS_MACHINE: Final[Clock] = MachineClock()


# ---- how long, and for how many -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPolicy:
    """What happens to a question that clients do not answer.

    Attributes:
        timeout_s: Longest time for which any answer is waited for, from its first sending.
        clients_return: A client whose machine was away may come back, and is then asked again: the
            clients of a deployment, not those of a simulation.
        quorum: How many answers are enough when ``deadline_s`` is over; 0 waits for all.
        deadline_s: Seconds from the first sending; 0 without ``quorum``.
    """

    timeout_s: float
    clients_return: bool = False
    quorum: int = 0
    deadline_s: float = 0.0

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Return what a configuration demands."""
        return cls(
            timeout_s=config.message_timeout_s,
            clients_return=config.engine == "deployment",
            quorum=config.min_clients,
            deadline_s=config.round_deadline_s,
        )

    @classmethod
    def for_all(cls, config: RunConfig) -> Self:
        """Return the same where no client may be left out."""
        return replace(cls.of(config), quorum=0, deadline_s=0.0)

    def with_answers_optional(self, within_s: float) -> Self:
        """Return the same where no client has to answer: in a deployment, any may be away.

        Args:
            within_s: How long answers are waited for, if not for less.
        """
        if self.may_close_early or not self.clients_return:
            return self
        return replace(
            self,
            quorum=1,
            deadline_s=min(within_s, self.timeout_s),
            # The question is closed by then.
            timeout_s=self.timeout_s + _MARGIN_S,
        )

    @property
    def may_close_early(self) -> bool:
        """Whether a round may continue without some clients."""
        return self.quorum > 0

    def is_enough(self, answers: int, *, asked: int, after_s: float) -> bool:
        """Return whether a question may be closed with so many answers of so many, after a time."""
        if not self.may_close_early or after_s < self.deadline_s:
            return False
        return answers >= min(self.quorum, asked)


# ---- one wait -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Pauses between looks: a share of the time since there was news, within two limits.

    Attributes:
        first_s: Shortest pause.
        share: Of the time since the last news, or the beginning: news are noticed as late at most.
        longest_s: Longest pause.
    """

    first_s: float
    share: float
    longest_s: float


#: For answers: short at first for an engine in this process. Flower's own waits are 0.1 s to 3 s.
_ANSWER_PAUSES: Final = Pauses(first_s=0.002, share=0.5, longest_s=0.1)
#: The same where every look is a request to a SuperLink, and an answer takes seconds.
_DEPLOYED_PAUSES: Final = replace(_ANSWER_PAUSES, longest_s=0.5)


class Wait:
    """One wait: its deadline, the pauses between looks, and the times to report it.

    Args:
        clock: Its time.
        timeout_s: How long it may take.
        pauses: Between looks.
        longest_report_gap_s: It is reported at least so often; None: never.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        timeout_s: float,
        pauses: Pauses,
        longest_report_gap_s: float | None,
    ) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._pauses = pauses
        self._begun_s = self._news_s = self._reported_s = clock.now_s()
        self._longest_gap_s = longest_report_gap_s
        self._gap_s = _FIRST_REPORT_S

    @classmethod
    def for_answers(cls, clock: Clock, policy: WaitPolicy) -> Self:
        """Return the wait of a question; those for other machines are reported."""
        deployed = policy.clients_return
        return cls(
            clock,
            timeout_s=policy.timeout_s,
            pauses=_DEPLOYED_PAUSES if deployed else _ANSWER_PAUSES,
            longest_report_gap_s=600.0 if deployed else None,
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return self._clock.now_s() - self._begun_s

    @property
    def silent_s(self) -> float:
        """Seconds since there was news, or since it began."""
        return self._clock.now_s() - self._news_s

    @property
    def left_s(self) -> float:
        """Seconds until its end; 0 after it."""
        return max(0.0, self._timeout_s - self.elapsed_s)

    @property
    def is_over(self) -> bool:
        """Whether its time is over."""
        return self.left_s <= 0.0

    def is_report_due(self) -> bool:
        """Say, from time to time, that it is time to report whom it waits for."""
        now_s = self._clock.now_s()
        if self._longest_gap_s is None or now_s - self._reported_s < self._gap_s:
            return False
        self._reported_s = now_s
        self._gap_s = min(2 * self._gap_s, self._longest_gap_s)
        return True

    def note_news(self) -> None:
        """Make the next pause short: where one answer has come, more may have."""
        self._news_s = self._clock.now_s()

    def pause(self) -> None:
        """Let time pass, more of it from time to time, but not beyond the end of the wait."""
        since_s = self._clock.now_s() - self._news_s
        wanted_s = max(self._pauses.first_s, self._pauses.share * since_s)
        pause_s = min(wanted_s, self._pauses.longest_s, self.left_s)
        self._clock.pause(max(pause_s, _SHORTEST_PAUSE_S))


# ---- what is reported ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What clients are asked.

    Attributes:
        stage: Stage index, -1 for none.
        purpose: As in the ledger.
        round: Round of the stage, 0 outside rounds.
        first: Purposes of what is asked before it in the same message.
    """

    stage: int
    purpose: str
    round: int = 0
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Whom a question waits for: indices of clients, ascending."""

    question: Question
    clients: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenExchange:
    """An exchange that has not ended.

    Attributes:
        stage: Stage index.
        open_s: Seconds since it began.
        lacks: By client, how many vectors have not arrived; None where it has not answered.
    """

    stage: int
    open_s: float
    lacks: Mapping[int, int | None]


def _report_nothing(about: OpenExchange | bool) -> None:
    """Take no notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What goes with an exchange while it is open, and with all that is asked.

    Attributes:
        clock: Its time.
        on_wait: Called from time to time with whom it waits for.
        on_superlink: As in :class:`.BoundedGrid`.
    """

    clock: Clock = THIS_MACHINE
    on_wait: Callable[[OpenExchange], None] = _report_nothing
    on_superlink: Callable[[bool], None] = _report_nothing


UNWATCHED: Final = Watch()
