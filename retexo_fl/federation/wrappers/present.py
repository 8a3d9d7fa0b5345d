"""Leaves out of a round who cannot answer: clients that have yet to catch up with an exchange."""

from __future__ import annotations

from collections.abc import Callable, Collection

from retexo_fl.federation.asking import Answers, Ask, Round, through
from retexo_fl.federation.asking.ask import T
from retexo_fl.federation.rounds.clients import Clients


def present(asking: Round[T], clients: Clients, behind: Callable[[], Collection[int]]) -> Round[T]:
    """Return a round that asks those who can answer; under masks, whole cohorts of these.

    Args:
        asking: May ask all.
        clients: Of the attempt.
        behind: Returns who cannot, each time before it asks.
    """

    def handle(ask: Ask) -> Round[Answers]:
        return (yield ask.among(clients.able(ask.requests, behind())))

    return through(asking, handle)
