"""Flower's simulation without its processes: two workers, either of which gets any message."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import serde
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp import ServerApp
from ray import cloudpickle

from retexo_fl.client.factory import SCRATCH_VARIABLE
from retexo_fl.config import Scalar, config_values
from retexo_fl.federation import make_client_app
from retexo_fl.federation.server_app import make_server_app
from retexo_fl.simulation.inline_grid import InlineGrid
from tests.support.runs import configured


class TwoWorkers(ClientApp):
    """The ClientApp that ``clients/app.py`` makes, twice: with clients, as with Ray's actors, that
    were in the other worker meanwhile. Messages pass as Flower's bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._apps = [make_client_app(), make_client_app()]
        self._rng = random.Random(0)

    def __call__(self, message: Message, context: Context) -> Message:
        """Have either worker answer."""
        answer: Callable[[Message, Context], Message] = self._rng.choice(self._apps)
        return _carried(answer(_carried(message), context))


class PickledApp(ClientApp):
    """The ClientApp as Ray brings it to a worker: pickled and unpickled with every message."""

    def __init__(self) -> None:
        super().__init__()
        app = make_client_app()
        # Flower has it in a function of its own.
        self._pickled = cloudpickle.dumps(lambda: app)

    def __call__(self, message: Message, context: Context) -> Message:
        """Have a copy answer."""
        answer: Callable[[Message, Context], Message] = cloudpickle.loads(self._pickled)()
        return _carried(answer(_carried(message), context))


def _carried(message: Message) -> Message:
    content = serde.message_to_proto(message).SerializeToString()
    return serde.message_from_proto(ProtoMessage.FromString(content))


def train_in_workers(out: Path, workers: Callable[[], ClientApp] = TwoWorkers, **keys: Any) -> Path:
    """Train as :func:`~tests.support.runs.train`, with clients that move between two workers."""
    values = config_values(configured(out, **keys, engine="flower"))
    run_app(make_server_app(), values, workers(), scratch=Path(f"{out}-scratch"))
    return out


def run_app(
    app: ServerApp, values: Mapping[str, Scalar], clients: ClientApp, *, scratch: Path
) -> None:
    """Have a ServerApp ask clients, both with a Flower run configuration.

    Args:
        app: Of the server.
        values: The run configuration.
        clients: Who answers.
        scratch: Folder in which clients keep what another worker needs.
    """
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(values)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SCRATCH_VARIABLE, str(scratch))
        app(InlineGrid(clients, int(values["clients"]), values), context)
