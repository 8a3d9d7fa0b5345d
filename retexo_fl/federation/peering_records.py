"""Flower's records of what is asked of agents beside training; goes with :mod:`.records`."""

from __future__ import annotations

import numpy as np
from flwr.app import ConfigRecord

from retexo_fl.agent.peering import IntroduceAnswer, IntroduceRequest, RelayAnswer, RelayRequest
from retexo_fl.federation.record_fields import counts, take, ticket_of


def introduce_of(settings: ConfigRecord) -> IntroduceRequest:
    """Read a ``query.introduce``."""
    return IntroduceRequest(ticket=ticket_of(settings), roster=take(settings, "roster", str))


def introduced_of(settings: ConfigRecord) -> IntroduceAnswer:
    """Read the reply to a ``query.introduce``."""
    return IntroduceAnswer(members=take(settings, "members", int))


def relay_of(settings: ConfigRecord) -> RelayRequest:
    """Read a ``query.relay``."""
    return RelayRequest(
        ticket=ticket_of(settings),
        trip=take(settings, "trip", int),
        peers=counts(settings, "peers"),
        sizes=counts(settings, "sizes"),
        parcels=np.frombuffer(take(settings, "parcels", bytes), np.uint8),
    )


def relayed_of(settings: ConfigRecord) -> RelayAnswer:
    """Read the reply to a ``query.relay``."""
    return RelayAnswer(
        peers=counts(settings, "peers"),
        sizes=counts(settings, "sizes"),
        parcels=np.frombuffer(take(settings, "parcels", bytes), np.uint8),
    )
