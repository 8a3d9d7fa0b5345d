"""Messages of Flower's simulation, found by their node.

Flower 1.41 looks for each node's next message by going through all messages that are on their way:
N^2 looks with N clients, again and again until all have answered. Here Flower looks at the message
that waits for the node, and at none where none does.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any, Final

from flwr.app import Message
from flwr.serverapp import Grid

#: By name: Flower does not publish the class.
_SIMULATED: Final = "InMemoryGrid"
_STORE: Final = "message_ins_store"


def with_messages_by_node(grid: Grid) -> Grid:
    """Return the grid; one of Flower's simulation finds messages by their node from now on.

    Where Flower is built otherwise, its simulation is as fast as it is.
    """
    state = getattr(grid, "state", None)
    if type(grid).__name__ != _SIMULATED or not isinstance(getattr(state, _STORE, None), dict):
        return grid
    if not isinstance(vars(state).get("get_message_ins"), _Finder):
        # Both are looked up anew at each call, also by Flower's own threads.
        finder: Any = _Finder(state)
        vars(state)["get_message_ins"] = finder
        vars(grid)["push_messages"] = finder.pushing(grid.push_messages)
    return grid


class _Finder:
    """Replaces ``get_message_ins`` of ``state``, in which a simulation keeps messages."""

    def __init__(self, state: Any) -> None:
        self._state = state
        #: By node, ids of messages that it has not got yet, in the order of sending.
        self._waiting: dict[int, deque[str]] = defaultdict(deque)
        for name, message in list(getattr(state, _STORE).items()):
            if not message.metadata.delivered_at:
                self._waiting[message.metadata.dst_node_id].append(name)

    def pushing(self, push: Any) -> Any:
        """Return what sends messages as ``push`` does, and notes for whom they are."""

        def push_messages(messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            taken = list(push(messages))
            nodes = {one.metadata.message_id: one.metadata.dst_node_id for one in messages}
            if not nodes.keys() >= set(taken):
                # A Flower that names messages otherwise: it looks for them itself again.
                vars(self._state).pop("get_message_ins", None)
            for name in taken:
                if name in nodes:
                    self._waiting[nodes[name]].append(name)
            return taken

        return push_messages

    def __call__(self, node_id: int, *given: Any, **how: Any) -> list[Message]:
        """Return the next message of a node, as Flower does."""
        waiting = self._waiting.get(node_id)
        if not waiting:
            return []
        view: Any = _View(self._state, waiting.popleft())
        found: list[Message] = type(self._state).get_message_ins(view, node_id, *given, **how)
        return found


class _View:
    """A simulation's state in which there is one message, to Flower's own code."""

    def __init__(self, state: Any, name: str) -> None:
        self._state = state
        self.message_ins_store = _Only(getattr(state, _STORE), name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


class _Only:
    """One entry of a dictionary, while it is there."""

    def __init__(self, entries: dict[str, Message], name: str) -> None:
        self._entries = entries
        self._name = name

    def keys(self) -> Iterable[str]:
        """Return its name."""
        return [self._name]

    def get(self, name: str) -> Message | None:
        """Return it; None where it is gone."""
        return self._entries.get(name)
