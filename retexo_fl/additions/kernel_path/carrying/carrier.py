"""Advances every exchange of an agent, in a thread of its own.

The thread reads notices and grants from the depot, and passes the endpoint what to send and what
to take.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from retexo_fl.additions.kernel_path.carrying.incoming import IncomingExchange
from retexo_fl.additions.kernel_path.carrying.outgoing import OutgoingExchange
from retexo_fl.additions.kernel_path.carrying.ticketed import TicketedExchange
from retexo_fl.additions.kernel_path.endpoint.endpoint import DatagramEndpoint
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.client.log_lines import LOGGER, line
from retexo_fl.client.vector_carrier import ExchangeId
from retexo_fl.errors import ExchangeIncomplete, RetexoError

#: The thread looks at least so often, though it is woken for every event.
_LOOK_S: Final = 0.5
_STOP_S: Final = 5.0


@dataclass(slots=True)
class OpenExchanges:
    """What is on its way.

    Attributes:
        changed: Held while the rest is used; notified when something may have come.
        steps: How often the thread has looked.
        outgoing: By exchange.
        incoming: By exchange, one for all peers or one for each.
        failures: What went wrong, by exchange.
    """

    changed: threading.Condition = field(default_factory=threading.Condition)
    steps: int = 0
    outgoing: dict[ExchangeId, OutgoingExchange] = field(default_factory=dict)
    incoming: dict[ExchangeId, list[IncomingExchange | TicketedExchange]] = field(
        default_factory=dict
    )
    failures: dict[ExchangeId, RetexoError] = field(default_factory=dict)


class Carrier:
    """The thread.

    Args:
        exchanges: Those that it advances.
        depot: Source of notices and grants.
        endpoint: Takes and sends datagrams.
    """

    def __init__(
        self, exchanges: OpenExchanges, depot: BlockDepot, endpoint: DatagramEndpoint
    ) -> None:
        self._open = exchanges
        self._depot = depot
        self._endpoint = endpoint
        self._news = threading.Event()
        self._ended = False
        self._threads = [
            threading.Thread(target=self._run, name="vectors", daemon=True),
            threading.Thread(target=self._listen, name="vectors-news", daemon=True),
        ]
        depot.on_arrival(self.wake)

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End, within seconds."""
        self._ended = True
        self.wake()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_STOP_S)

    def wake(self) -> None:
        """Have the thread look; called from the network's thread, too, which must not wait."""
        self._news.set()

    def _run(self) -> None:
        while not self._ended:
            self._news.wait(_LOOK_S)
            self._news.clear()
            with self._open.changed:
                self._step()
                self._open.steps += 1
                # Also wakes callers that wait for blocks, which come without this thread.
                self._open.changed.notify_all()

    def _step(self) -> None:
        """Advance every exchange."""
        for exchange, outgoing in self._open.outgoing.items():
            self._attempt(exchange, partial(outgoing.step, self._depot, time.monotonic()))
        for exchange, units in self._open.incoming.items():
            for incoming in units:
                self._attempt(exchange, partial(incoming.step, self._depot))

    def _attempt(self, exchange: ExchangeId, step: Callable[[], object]) -> None:
        """Do a step; keep its error for the callers that ask for the exchange."""
        if exchange in self._open.failures:
            return
        try:
            step()
        except RetexoError as error:
            LOGGER.warning(line("vectors", job=exchange[0], stage=exchange[1], failed=str(error)))
            self._open.failures[exchange] = error
        except Exception as error:
            # The thread serves all exchanges and peers: an error ends its own exchange only.
            LOGGER.exception(line("vectors", job=exchange[0], stage=exchange[1]))
            self._open.failures[exchange] = ExchangeIncomplete(
                f"stage {exchange[1]}: {type(error).__name__} in the agent, which is a bug of "
                "retexo-fl; see its log"
            )

    def _listen(self) -> None:
        """Wake the thread after every change at the endpoint."""
        while not self._ended:
            try:
                self._endpoint.wait_for_change(_LOOK_S)
            except RetexoError as error:
                # Callers that wait get the error of the next step, which fails likewise.
                LOGGER.error(line("vectors", failed=str(error)))
                return
            self.wake()
