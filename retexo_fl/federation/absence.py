"""Which replies mean that a client's machine was away, and may come back."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from flwr.app import Message

from retexo_fl.errors import AgentUnreachable
from retexo_fl.federation import records

#: Flower's error codes that say nothing about the question: the same one may be asked again.
_AWAY: Final[Mapping[int, str]] = MappingProxyType(
    {
        3: "the message was not fetched in time",
        4: "it fetched the message and was gone",
        5: "its SuperNode is not connected",
        8: "its ClientApp was killed",
    }
)


def absence(reply: Message) -> str:
    """Return why a client was away; empty for any other reply, errors among them."""
    if reply.has_error():
        return _AWAY.get(reply.error.code, "")
    failure = reply.content.config_records.get(records.FAILURE)
    if failure is not None and failure.get("name") == AgentUnreachable.__name__:
        return "its agent does not answer"
    return ""
