"""Wrappers of every round: who is there, masks, weights that clients hold, the account."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from retexo_fl.federation.asking import Wrapper
from retexo_fl.federation.rounds.checked_answers import checked
from retexo_fl.federation.rounds.clients import Clients, MaskedClients
from retexo_fl.federation.wrappers.accounted import accounted
from retexo_fl.federation.wrappers.held_weights import held_weights
from retexo_fl.federation.wrappers.masked import masked
from retexo_fl.federation.wrappers.present import present

__all__ = ["wrappers_of"]


def wrappers_of(clients: Clients, behind: Callable[[], Collection[int]]) -> tuple[Wrapper, ...]:
    """Return what the rounds of an attempt need around them, from the inside.

    The order is part of the design. What is compared with hellos are the answers that the round
    gets to read, of clients or, under masks, of cohorts. Masks name those who are asked, so who is
    away, where clients may be, is left out before. A client says that it lacks weights in its own
    answer, so it is asked again before answers are added up. Each answer is accounted for, also one
    that another replaces.

    Args:
        clients: Of the attempt.
        behind: Returns who cannot answer yet.
    """
    wrappers: list[Wrapper] = [partial(checked, clients=clients)]
    if clients.policy.may_close_early:
        wrappers.append(partial(present, clients=clients, behind=behind))
    if isinstance(clients, MaskedClients):
        wrappers.append(partial(masked, clients=clients))
    if clients.most_held:
        wrappers.append(held_weights)
    if clients.exchange_in_rounds:
        wrappers.append(partial(accounted, clients=clients))
    return tuple(wrappers)
