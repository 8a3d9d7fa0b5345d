"""How long the server waits for clients, and for how many of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

from retexo_fl.config import RunConfig

#: A look at a SuperLink that is silent takes minutes, and may begin before a question is closed.
_MARGIN_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """What a messenger does about clients that do not answer.

    Attributes:
        timeout_s: Longest time for which any answer is waited for, from its first sending.
        returns: A client whose machine was away may come back, and is then asked again: the
            clients of a deployment, not those of a simulation.
        least: How many clients are enough when ``deadline_s`` is over; 0 waits for all.
        deadline_s: Seconds from the first sending; 0 without ``least``.
    """

    timeout_s: float
    returns: bool = False
    least: int = 0
    deadline_s: float = 0.0

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Return what a configuration demands."""
        return cls(
            timeout_s=config.message_timeout_s,
            returns=config.engine == "deployment",
            least=config.min_clients,
            deadline_s=config.round_deadline_s,
        )

    @classmethod
    def for_all(cls, config: RunConfig) -> Self:
        """Return the same where no client may be left out."""
        return replace(cls.of(config), least=0, deadline_s=0.0)

    def nobody_within(self, within_s: float) -> Self:
        """Return the same where nobody has to answer, as clients of a deployment may be away.

        Args:
            within_s: How long answers are waited for, if not for less.
        """
        if self.may_close_early or not self.returns:
            return self
        return replace(
            self,
            least=1,
            deadline_s=min(within_s, self.timeout_s),
            # The question is closed by then.
            timeout_s=self.timeout_s + _MARGIN_S,
        )

    @property
    def may_close_early(self) -> bool:
        """Whether a round may go on without some clients."""
        return self.least > 0
