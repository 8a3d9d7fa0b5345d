"""The bytes of a message, entered in the ledger."""

from __future__ import annotations

from dataclasses import replace

from flwr.app import Message

from retexo_fl.federation.records import content_volumes
from retexo_fl.ledger import Account, TrafficLedger


def count_message(ledger: TrafficLedger, message: Message, control: Account) -> None:
    """Enter a message: what is not weights in the account ``control``, weights in one beside it."""
    weights, other = content_volumes(message.content)
    kind = "weights_down" if control.direction == "in" else "updates_up"
    for account, volume in ((replace(control, kind=kind), weights), (control, other)):
        if volume.payload:
            ledger.add(account, volume)
