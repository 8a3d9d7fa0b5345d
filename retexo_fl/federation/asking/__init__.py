"""Asking clients, and waiting for their answers: retries, backoff, deadlines, quorum."""

from retexo_fl.federation.asking.messenger import Messenger
from retexo_fl.federation.asking.waiting import (
    THIS_MACHINE,
    UNWATCHED,
    Clock,
    OpenExchange,
    Pauses,
    Question,
    Silence,
    Wait,
    WaitPolicy,
    Watch,
)

__all__ = [
    "THIS_MACHINE",
    "UNWATCHED",
    "Clock",
    "Messenger",
    "OpenExchange",
    "Pauses",
    "Question",
    "Silence",
    "Wait",
    "WaitPolicy",
    "Watch",
]
