"""Notices that a node of the Ray cluster, on which Flower simulates the clients, is gone.

As a rule Ray reports that as an error of what a worker there computed. But Flower waits without
limit for a worker, and Ray finds out by silence, so nodes are also looked at from here.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Final

from flwr.serverapp import Grid

from retexo_fl.errors import EngineFailed
from retexo_fl.federation.asking.waiting import Clock

#: After so long without an answer nodes are looked at, and so often.
_AFTER_S: Final = 5.0
_LOOK_EVERY_S: Final = 2.0
#: A node that has not answered for so long is lost.
_LOST_AFTER_S: Final = 10.0
#: Its kernel answers, however much there is to do.
_CONNECT_S: Final = 2.0

Address = tuple[str, int]


class RayNodes:
    """The nodes of the cluster on which Flower simulates clients, if it does so here.

    Args:
        grid: The way to the clients.
        clock: The time by which nodes are waited for.
    """

    def __init__(self, grid: Grid, clock: Clock) -> None:
        # By name: Flower does not publish the class.
        self._is_simulation = type(grid).__name__ == "InMemoryGrid"
        self._clock = clock
        self._there: list[Address] = []
        self._silent_since_s: dict[Address, float] = {}
        self._look_at_s = float("-inf")

    def look(self, silent_s: float, waiting: Callable[[], str]) -> None:
        """Look at the nodes, from time to time, while answers are waited for.

        Args:
            silent_s: How long there has been no answer.
            waiting: Says whose answer is waited for.

        Raises:
            EngineFailed: A node that was there is not there any longer.
        """
        now_s = self._clock.now_s()
        if not self._is_simulation or now_s < self._look_at_s:
            return
        self._look_at_s = now_s + _LOOK_EVERY_S
        if not self._there:
            # Learned before anything is missed: Ray may have forgotten one that is gone.
            self._there = _alive()
        if silent_s < _AFTER_S:
            self._silent_since_s.clear()
            return
        for node in self._there:
            if _answers(node):
                self._silent_since_s.pop(node, None)
            elif now_s - self._silent_since_s.setdefault(node, now_s) >= _LOST_AFTER_S:
                raise EngineFailed(
                    f"{waiting()}: Ray lost a node, {node[0]}:{node[1]}; expected the cluster to "
                    "last"
                )


def _alive() -> list[Address]:
    """Return where the nodes of the cluster are, if this process is part of one."""
    ray = sys.modules.get("ray")
    # Flower imports it in another thread: until that is done, it has no such attribute.
    is_initialized = getattr(ray, "is_initialized", None)
    if ray is None or is_initialized is None or not is_initialized():
        return []
    return [
        (str(node["NodeManagerAddress"]), int(node["NodeManagerPort"]))
        for node in ray.nodes()
        if node["Alive"]
    ]


def _answers(node: Address) -> bool:
    try:
        socket.create_connection(node, timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True
