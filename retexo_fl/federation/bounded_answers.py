"""Answers of a SuperLink within bounds: in bytes, in time, and from no other place than asked."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import httpx

from retexo_fl.errors import RetexoError
from retexo_fl.units import format_bytes

if TYPE_CHECKING:
    from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

#: An answer's body may take so long: a piece of 5 MiB comes at 23 kbit/s by then.
_LONGEST_S: Final = 1800.0
#: What is read of an error.
_MOST_OF_ERROR: Final = 2**16


class AnswerTooLong(RetexoError):
    """What the SuperLink sends has more bytes than it may."""


class Budget:
    """Bytes that one answer, or several at a time, may have.

    Args:
        most_bytes: So many.
        name: Of what has them.
        why: What sets the limit.
    """

    def __init__(self, most_bytes: int, name: str = "an answer", why: str = "") -> None:
        self._most, self._left, self._lock = most_bytes, most_bytes, threading.Lock()
        self._name, self._why = name, why

    def take(self, size: int) -> None:
        """Count bytes; fewer than none are given back.

        Raises:
            AnswerTooLong: There are too many.
        """
        with self._lock:
            self._left -= size
            if self._left >= 0:
                return
        most = format_bytes(self._most)
        raise AnswerTooLong(f"{self._name} of more than {most}; expected at most that{self._why}")


class BoundedAnswers:
    """The innermost interceptor of Flower's client, which sends in its place.

    Flower's own reads an answer whole and unpacks it before its size can be looked at, bounds the
    time to each next byte alone, and follows redirects, to any host and from https to http.

    Args:
        tls: Whom to trust; None without TLS.
        budget_of: Returns what the answer to a request may have.
    """

    def __init__(self, tls: ssl.SSLContext | None, budget_of: Callable[[Any], Budget]) -> None:
        self._client = httpx.Client(verify=False if tls is None else tls, follow_redirects=False)
        self._budget_of = budget_of

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def intercept(self, context: ProtobufRequestContext, _: ProtobufCall) -> httpx.Response:
        """Send a request; return the answer, of an error its beginning.

        Raises:
            AnswerTooLong: As :meth:`Budget.take`.
            httpx.HTTPError: Nobody answers, or not in time.
        """
        request = context.request
        # Unpacked, a few bytes can be many.
        request.headers["accept-encoding"] = "identity"
        response = self._client.send(request, stream=True)
        with closing(response):
            content = self._read(response, self._budget_of(context.message))
        return httpx.Response(response.status_code, content=content, request=request)

    def _read(self, response: httpx.Response, budget: Budget) -> bytes:
        deadline = time.monotonic() + _LONGEST_S
        content, is_wanted = bytearray(), response.is_success
        try:
            for chunk in response.iter_raw():
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout(f"not whole after {_LONGEST_S:g} s")
                if is_wanted:
                    budget.take(len(chunk))
                content += chunk
                if not is_wanted and len(content) >= _MOST_OF_ERROR:
                    break
        except httpx.HTTPError:
            if is_wanted:
                # It is asked for again.
                budget.take(-len(content))
            raise
        return bytes(content)
