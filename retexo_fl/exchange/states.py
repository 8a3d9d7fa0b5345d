"""States of a block and the one table of what may happen in each; everything that moves is here.

The table does not know which end it describes: the sender goes through it when it makes a frame,
the receiver when it accepts one. ``README.md`` shows it, and a test compares the two.
"""

from __future__ import annotations

from enum import Enum, IntEnum, unique
from typing import Final


@unique
class FrameKind(IntEnum):
    """What a frame is; the numbers stand on the wire."""

    HELLO = 1
    ROWS = 2
    DONE = 3
    ABORT = 4


@unique
class Closing(Enum):
    """The one event that is not a frame: the sender will send no more bytes."""

    CLOSE = "CLOSE"


@unique
class State(Enum):
    """Where a block stands at one end."""

    #: Nothing has passed; HELLO is next.
    HELLO = "HELLO"
    #: HELLO has passed; vectors are on their way.
    ROWS = "ROWS"
    #: Every vector and DONE have passed.
    DONE = "DONE"
    #: The sender took the block back.
    ABORTED = "ABORTED"
    #: The sender closed after DONE or ABORT.
    CLOSED = "CLOSED"
    #: The peer broke the protocol; nothing leads out of here.
    ERROR = "ERROR"


Trigger = FrameKind | Closing

#: Next state by (state, what happened); what is not listed breaks the protocol.
TRANSITIONS: Final[dict[tuple[State, Trigger], State]] = {
    (State.HELLO, FrameKind.HELLO): State.ROWS,
    (State.HELLO, FrameKind.ABORT): State.ABORTED,
    (State.ROWS, FrameKind.ROWS): State.ROWS,
    (State.ROWS, FrameKind.DONE): State.DONE,
    (State.ROWS, FrameKind.ABORT): State.ABORTED,
    (State.DONE, Closing.CLOSE): State.CLOSED,
    (State.ABORTED, Closing.CLOSE): State.CLOSED,
}


def expected_triggers(state: State) -> str:
    """Return what may happen in ``state``, as words for an error message."""
    names = [trigger.name for start, trigger in TRANSITIONS if start is state]
    return " or ".join(names) if names else "nothing more"


def transition_table() -> str:
    """Return :data:`TRANSITIONS` as a Markdown table; a dash breaks the protocol."""
    triggers: list[Trigger] = [*FrameKind, *Closing]
    lines = [
        "| state | " + " | ".join(trigger.name for trigger in triggers) + " |",
        "|---" * (len(triggers) + 1) + "|",
    ]
    for state in State:
        after = [TRANSITIONS.get((state, trigger)) for trigger in triggers]
        cells = [target.name if target else "-" for target in after]
        lines.append(f"| {state.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
