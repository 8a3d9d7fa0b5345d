"""Asking clients, and waiting for their answers: retries, backoff, deadlines, quorum."""

from retexo_fl.federation.asking.ask import (
    SUM,
    Answers,
    Ask,
    Round,
    Who,
    Wrapper,
    members,
    named,
    subject,
    through,
)
from retexo_fl.federation.asking.messenger import Messenger, Rounds, answer_of
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
    "SUM",
    "THIS_MACHINE",
    "UNWATCHED",
    "Answers",
    "Ask",
    "Clock",
    "Messenger",
    "OpenExchange",
    "Pauses",
    "Question",
    "Round",
    "Rounds",
    "Silence",
    "Wait",
    "WaitPolicy",
    "Watch",
    "Who",
    "Wrapper",
    "answer_of",
    "members",
    "named",
    "subject",
    "through",
]
