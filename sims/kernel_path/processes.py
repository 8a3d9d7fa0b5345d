"""Objects that live in processes of their own, called over a pipe."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final, Literal, Self

from retexo_fl.errors import ChannelClosed

_PATIENCE_S: Final = 30.0
_END_S: Final = 10.0


class Helper:
    """A process that makes an object and does what it is told with it; for a ``with`` block.

    Args:
        how: ``spawn`` (begins anew) or ``fork`` (has all that this process has; it must have no
            threads).
        make: Makes the object there.
        arguments: Of ``make``.
    """

    def __init__(
        self, how: Literal["spawn", "fork"], make: Callable[..., Any], *arguments: object
    ) -> None:
        context: Any = multiprocessing.get_context(how)
        self._name = make.__name__
        self._pipe, theirs = context.Pipe()
        # A forked process has this end, too, and would never see it closed.
        ours = self._pipe if how == "fork" else None
        self._process = context.Process(target=_serve, args=(ours, theirs, make, arguments))
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method there and return its result; see :meth:`result`."""
        self.begin(method, *arguments)
        return self.result()

    def begin(self, method: str, *arguments: object) -> None:
        """Have a method called; :meth:`result` must follow."""
        self._pipe.send((method, arguments))

    def result(self) -> Any:
        """Return the result of the method that was begun.

        Raises:
            ChannelClosed: It failed, the process ended, or nothing came within half a minute.
        """
        if not self._pipe.poll(_PATIENCE_S):
            raise ChannelClosed(f"{self._name}: no answer within {_PATIENCE_S:g} s")
        try:
            succeeded, result = self._pipe.recv()
        except EOFError as error:
            raise ChannelClosed(f"{self._name}: its process ended") from error
        if not succeeded:
            raise ChannelClosed(f"{self._name}: {result}")
        return result

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self._pipe.close()
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(
    other_end: Connection | None,
    pipe: Connection,
    make: Callable[..., Any],
    arguments: tuple[object, ...],
) -> None:
    if other_end is not None:
        other_end.close()
    made: Any = None
    problem = ""
    try:
        made = make(*arguments)
    except Exception:
        problem = traceback.format_exc()
    while True:
        try:
            method, given = pipe.recv()
        except (EOFError, OSError):
            break
        pipe.send((False, problem) if problem else _answer(made, method, given))
    if hasattr(made, "close"):
        made.close()


def _answer(made: object, method: str, given: tuple[object, ...]) -> tuple[bool, object]:
    try:
        return True, getattr(made, method)(*given)
    except Exception:  # told to whoever called
        return False, traceback.format_exc()
