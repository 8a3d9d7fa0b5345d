"""Calls of a grid that waits without limit, with a limit.

Flower's grid of a deployment repeats a call for ever while its SuperLink does not answer. A
ServerApp that lives on another machine than its SuperLink would then hold its run directory for
ever, and the run could not be resumed.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, TypeVar

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from retexo_fl.errors import EngineFailed

#: Longest time for which the SuperLink may be silent.
PATIENCE_S: Final = 300.0
#: After so long a silence it is reported.
_TOLD_AFTER_S: Final = 5.0
#: A signal that another thread of this process has sent to it is handled between two looks.
_LOOK_S: Final = 0.2
#: A SuperLink that has failed is asked again after.
_AGAIN_AFTER_S: Final = 1.0
#: Flower's first pause before it asks again for a piece of a reply that is on its way, and ours.
_PIECE_PAUSE_S: Final = (1, 0.05)

_T = TypeVar("_T")


class BoundedGrid:
    """The three calls of a grid that the messenger makes, each within ``patience_s``.

    A call runs in a thread of its own. One that is given up continues until the process ends, which
    it is about to do.

    Args:
        grid: The grid.
        patience_s: Longest time for which the SuperLink may be silent.
        on_superlink: Called with False when it has been silent for some seconds, and with True
            when it answers again.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        patience_s: float = PATIENCE_S,
        on_superlink: Callable[[bool], None] = lambda answers: None,
    ) -> None:
        _look_for_pieces_soon()
        self._grid = grid
        self._patience_s = patience_s
        self._on_superlink = on_superlink

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are connected."""
        return self._within(lambda: list(self._grid.get_node_ids()))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return a name for each that the SuperLink took.

        It knows a message by its digest, so one that is pushed again arrives once. One whose life
        is over, as that of a nudge soon is, would fail all that go with it, however often.
        """
        sent = list(messages)

        def push() -> list[str]:
            living = [message for message in sent if _left_s(message) > 0]
            return list(self._grid.push_messages(living)) if living else []

        return self._within(push)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        wanted = list(message_ids)
        return self._within(lambda: list(self._grid.pull_messages(wanted)))

    def _within(self, call: Callable[[], _T]) -> _T:
        """Return what a call returns.

        A server error is as good as silence, and the SuperLink is asked again: it fails so where
        its database is busy for 5 s, and where one message is deleted while another that shares a
        piece with it is stored (docs/upstream.md).

        Raises:
            EngineFailed: The SuperLink is silent for too long, or refuses.
        """
        outcomes: queue.SimpleQueue[tuple[list[_T], BaseException | None]] = queue.SimpleQueue()
        until_s = time.monotonic() + self._patience_s

        def work() -> None:
            while True:
                try:
                    return outcomes.put(([call()], None))
                except BaseException as error:
                    if not (_is_its_fault(error) and time.monotonic() < until_s):
                        return outcomes.put(([], error))
                time.sleep(_AGAIN_AFTER_S)

        threading.Thread(target=work, name="retexo-grid", daemon=True).start()
        values, error = self._first(outcomes)
        if isinstance(error, httpx.HTTPError):
            raise EngineFailed(f"the SuperLink does not serve this run ({error})") from error
        if error is not None:
            raise error
        return values[0]

    def _first(self, outcomes: queue.SimpleQueue[_T]) -> _T:
        """Return what comes, or raise once it takes too long."""
        begun_s, is_told = time.monotonic(), False
        while True:
            try:
                outcome = outcomes.get(timeout=min(_LOOK_S, self._patience_s))
            except queue.Empty as silence:
                silent_s = time.monotonic() - begun_s
                if silent_s >= self._patience_s:
                    raise EngineFailed(
                        f"the SuperLink has not answered for {self._patience_s:g} s; start it "
                        "again, then resume the run"
                    ) from silence
                if silent_s >= _TOLD_AFTER_S and not is_told:
                    self._on_superlink(False)
                    is_told = True
            else:
                if is_told:
                    self._on_superlink(True)
                return outcome


def _left_s(message: Message) -> float:
    """Return the rest of a message's life, as the SuperLink reckons."""
    return message.metadata.created_at + message.metadata.ttl - time.time()


def _is_its_fault(error: BaseException | None) -> bool:
    return isinstance(error, httpx.HTTPStatusError) and error.response.is_server_error


def _look_for_pieces_soon() -> None:
    """Shorten Flower's first pause in this process, if it is what it was.

    A reply is known to the SuperLink before its pieces are there. Who asks in between is asked to
    wait a second, one reply in four, which is most of a message where no SuperNode sleeps longer.
    """
    flowers_s, ours_s = _PIECE_PAUSE_S
    with suppress(ImportError):
        # Not published, so it may be elsewhere in another Flower, which is then as slow as it is.
        from flwr.supercore.inflatable.inflatable_utils import pull_objects

        defaults = getattr(pull_objects, "__kwdefaults__", None) or {}
        if defaults.get("initial_backoff") == flowers_s:
            defaults["initial_backoff"] = ours_s
