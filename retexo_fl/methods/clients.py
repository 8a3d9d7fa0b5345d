"""Which class of client a training asks for, and whether it exchanges in rounds."""

from __future__ import annotations

from retexo_fl.client.rounds import TrainingClient
from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError
from retexo_fl.graph.labels import LINKS
from retexo_fl.methods.lazy.answers import LazyClient
from retexo_fl.methods.pieces.links.answers import LinkClient
from retexo_fl.methods.propagation.answers import PropagationClient
from retexo_fl.methods.whole.answers import EndToEndClient


def client_class(config: RunConfig, *, predicts: bool) -> type[TrainingClient]:
    """Return the class of clients of a run; predictions are made layer by layer."""
    if config.task == LINKS.name:
        return LinkClient
    if not config.traits.trains:
        return PropagationClient
    return EndToEndClient if config.traits.end_to_end and not predicts else LazyClient


def exchange_in_rounds(config: RunConfig, *, predicts: bool) -> bool:
    """Return whether clients of a run exchange in every round."""
    return config.traits.exchanges_in_rounds and not predicts


def check_by_message(config: RunConfig, *, predicts: bool) -> None:
    """Refuse clients that cannot answer each message without waiting for another client.

    Raises:
        ConfigurationError: They exchange in every round.
    """
    if exchange_in_rounds(config, predicts=predicts):
        raise ConfigurationError(
            f"algorithm: clients of {config.algorithm} exchange in every round, which Flower's "
            "simulation does not support; expected lazy, drop or central, or engine inline"
        )
