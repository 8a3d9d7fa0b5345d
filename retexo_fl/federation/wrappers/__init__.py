"""What stands around every round: who is there, masks, weights that clients hold, the account."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from retexo_fl.federation.asking import Messenger, Round
from retexo_fl.federation.asking.ask import T
from retexo_fl.federation.rounds.checked_answers import checked
from retexo_fl.federation.rounds.clients import Clients, MaskedClients
from retexo_fl.federation.wrappers.accounted import accounted
from retexo_fl.federation.wrappers.held_weights import held_weights
from retexo_fl.federation.wrappers.masked import masked
from retexo_fl.federation.wrappers.present import present

__all__ = ["Rounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Carries rounds out, which know nothing of what stands around them.

    Attributes:
        messenger: The way to the clients.
        clients: Of the attempt.
        behind: Returns who cannot answer yet.
    """

    messenger: Messenger
    clients: Clients
    behind: Callable[[], Collection[int]] = tuple

    def carry_out(self, asking: Round[T]) -> T:
        """Return the result of a round.

        Raises:
            RetexoError: As :meth:`.Messenger.run`.
        """
        return self.messenger.run(self.wrapped(asking))

    def wrapped(self, asking: Round[T]) -> Round[T]:
        """Return a round with what it needs around it.

        The order is part of the design. What is compared with hellos are the answers that the round
        gets to read, of clients or, under masks, of cohorts. Masks name those who are asked, so who
        is away, where clients may be, is left out before. A client tells that it lacks weights in
        its own answer, so it is asked again before answers are added up. Each answer is accounted
        for, also one that another replaces.
        """
        clients = self.clients
        asking = checked(asking, clients)
        if clients.policy.may_close_early:
            asking = present(asking, clients, self.behind)
        if isinstance(clients, MaskedClients):
            asking = masked(asking, clients)
        if clients.most_held:
            asking = held_weights(asking)
        if clients.exchange_in_rounds:
            asking = accounted(asking, clients)
        return asking
