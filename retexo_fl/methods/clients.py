"""Which class of client a training asks for."""

from __future__ import annotations

from retexo_fl.client.client import GraphClient
from retexo_fl.config import RunConfig
from retexo_fl.graph.labels import LINKS
from retexo_fl.methods.lazy.answers import LazyClient
from retexo_fl.methods.pieces.links.answers import LinkClient
from retexo_fl.methods.whole.answers import EndToEndClient


def client_class(config: RunConfig, *, end_to_end: bool) -> type[GraphClient]:
    """Return the class of clients of a run; predictions are made layer by layer."""
    if config.task == LINKS:
        return LinkClient
    return EndToEndClient if end_to_end else LazyClient
