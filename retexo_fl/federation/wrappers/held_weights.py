"""Asks clients again that lack the weights to which a question's are a change, with whole ones."""

from __future__ import annotations

from dataclasses import replace

from retexo_fl.federation.asking import Answers, Ask, Round, through
from retexo_fl.federation.asking.ask import T


def held_weights(asking: Round[T]) -> Round[T]:
    """Return a round of which clients may have forgotten what they held.

    The answers of a question that can be asked again are held until all have come.
    """
    return through(asking, _asked_until_held)


def _asked_until_held(ask: Ask) -> Round[Answers]:
    if ask.again is None:
        return (yield ask)
    found = dict((yield ask))
    lacking = [client for client, answer in found.items() if answer.lacks_weights]
    if lacking:
        among = ask.among(found if ask.all_again else lacking)
        found = {client: answer for client, answer in found.items() if client not in among.requests}
        whole = ask.again()
        requests = {client: whole[client] for client in among.requests}
        found |= dict((yield replace(among, requests=requests)))
    return sorted(found.items())
