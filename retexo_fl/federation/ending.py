"""How a ServerApp learns that it is to end: by Flower's signals, or because its SuperLink is gone.

Flower ends a ServerApp by a signal to its process. Five seconds after its handler was called, the
process ends whatever it does, so what is to be noted is noted before.

Where the SuperLink has died, Flower sends it once the SuperExec between them has ended, which may
take a minute, and not at all where nobody reaps that: as in a container whose first program reaps
no process. So both are also looked at from here.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

#: What Flower sends, and what a unit that is stopped sends to all of its processes.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_FLOWER: Final = "flwr"
_SUPERLINK: Final = b"flower-superlink"
#: Of the program that simulates.
_SIMULATION: Final = "flwr.simulation.app"
_GONE: Final = "the SuperLink is gone; start it again, then resume the run"
_TERMINATED: Final = "the server's programs were stopped (SIGTERM)"
_ENDED: Final = "the SuperLink ended the run: `flwr stop`, or it did not hear of its ServerApp"
_LOOK_S: Final = 0.5
#: In which Flower's own watch of the parent calls its handler.
_FLOWER_WITHIN_S: Final = 2.0


class Ending:
    """What has ended a ServerApp from outside.

    Attributes:
        reason: In words; None while nothing has.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._parent: int | None = None
        self._superlink: int | None = None
        self._over = threading.Event()

    def note_parents(self) -> None:
        """Note who started this process; what :attr:`is_orphan` compares with."""
        self._parent = os.getppid()
        self._superlink = _superlink_above(self._parent)

    @property
    def is_orphan(self) -> bool:
        """Whether the process that started this one has ended, or the SuperLink that started it."""
        if os.getppid() != self._parent:
            return True
        return self._superlink is not None and _parent_of(self._parent) != self._superlink

    def handler(
        self, note: Callable[[str], None], then: Callable[[int, FrameType | None], object]
    ) -> Callable[[int, FrameType | None], None]:
        """Return what to do at a signal: note why, then what was done at it before."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self.is_orphan:
                self.reason = _GONE
            else:
                self.reason = _TERMINATED if number == signal.SIGTERM else _ENDED
            note(self.reason)
            then(number, frame)

        return handle

    def watch_parent(self) -> None:
        """Send the signal that Flower has not sent, once the parent is gone; until :meth:`end`."""
        while not self._over.wait(_LOOK_S):
            if self.is_orphan:
                if not self._over.wait(_FLOWER_WITHIN_S) and self.reason is None:
                    os.kill(os.getpid(), signal.SIGINT)
                return

    def note_at_exit(self, note: Callable[[str], None]) -> None:
        """Have it noted when Flower's simulation is ended; its ServerApp is a thread."""
        with suppress(ImportError):
            # Not published, so it may be elsewhere in another Flower, which then notes nothing.
            from flwr.supercore.exit import add_exit_handler

            def handle() -> None:
                if not self._over.is_set():
                    self.reason = _ENDED
                    note(self.reason)

            add_exit_handler(handle, run_before_force_exit=True)

    def end(self) -> None:
        """Watch no longer."""
        self._over.set()


@contextmanager
def noted_ending(note: Callable[[str], None]) -> Iterator[Ending]:
    """Have Flower's end of this ServerApp noted before it is carried out.

    Does nothing in a process that is not Flower's.

    Args:
        note: Called with the reason, in the main thread between any two of its steps.
    """
    ending = Ending()
    with ExitStack() as stack:
        stack.callback(ending.end)
        if threading.current_thread() is threading.main_thread():
            if _take_signals(ending, note, stack):
                threading.Thread(target=ending.watch_parent, daemon=True).start()
        elif _SIMULATION in sys.modules:
            ending.note_at_exit(note)
        yield ending


def _take_signals(ending: Ending, note: Callable[[str], None], stack: ExitStack) -> bool:
    """Take over the signals that Flower handles, as long as a stack lasts; say if there are any."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    flowers = {
        number: before
        for number, before in handlers.items()
        if callable(before) and _is_flowers(before)
    }
    if flowers:
        # In no other process: a server has no business with what started it.
        ending.note_parents()
    for number, before in flowers.items():
        ours = ending.handler(note, before)
        signal.signal(number, ours)
        stack.callback(_restore, number, ours, before)
    return bool(flowers)


def _superlink_above(pid: int) -> int | None:
    """Return the process that started another, if it is a SuperLink."""
    above = _parent_of(pid)
    with suppress(OSError):
        if _SUPERLINK in Path(f"/proc/{above}/cmdline").read_bytes():
            return above
    return None


def _parent_of(pid: int) -> int | None:
    """Return the parent of a process; None where it has ended, or this is no Linux."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Behind the name, which may hold anything.
    return int(text[text.rindex(")") + 2 :].split()[1])


def _is_flowers(handler: Callable[..., object]) -> bool:
    return getattr(handler, "__module__", "").partition(".")[0] == _FLOWER


def _restore(
    number: int,
    ours: Callable[..., object],
    before: Callable[[int, FrameType | None], object],
) -> None:
    """Let a signal do what it did before, unless Flower has changed that since."""
    if signal.getsignal(number) is ours:
        with suppress(ValueError):
            signal.signal(number, before)
