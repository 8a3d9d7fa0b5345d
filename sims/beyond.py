"""What lies beyond one machine, by arithmetic: a graph of 10^9 edges over 10^5 clients.

Bytes follow from the closed forms that `retexo plan` uses and measured runs agree with to the byte
(docs/volume.md); how many boundary nodes there are, from the degrees of the synthetic graph; what
Flower's SuperLink takes for a SuperNode, from its own link state, called here as its handlers call
it. HTTP, TLS and protobuf come on top of that, so the SuperLinks are at least so many.
"""

from __future__ import annotations

import math
import secrets
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from retexo_fl.client.memory_estimate import WEIGHT_COPIES
from retexo_fl.client.run_memory import GraphSize
from retexo_fl.config import make_config
from retexo_fl.methods.forecasts import LAZY
from retexo_fl.process_memory import PROCESS_BYTES
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import TrainingSize, stage_parameters
from sims.outcome import Row

NODES: Final = 40_000_000
EDGES: Final = 1_000_000_000
CLIENTS: Final = 100_000
#: Features and classes of ogbn-products; the paper's three layers of 256.
DATASET: Final = f"synthetic:products,nodes={NODES},edges={EDGES}"
ROUNDS: Final = 15
#: Share of the edges that lead to another client, by how parts are made.
CROSSING: Final = {"random parts": 1.0, "parts that keep 90 % of the edges": 0.1}
_KEYS: Final = {
    "dataset": DATASET,
    "clients": CLIENTS,
    "layers": 3,
    "hidden": 256,
    "model": "gcn",
    "rounds": ROUNDS,
    "partitioner": "random",
}
_FLOAT_BYTES: Final = 4
#: An idle SuperNode asks so often, and says so often that it is there. Source: flwr 1.41.0,
#: `supernode/start_client_internal.py`, `common/constant.py`.
POLL_S: Final = 3.0
HEARTBEAT_S: Final = 30.0
#: SuperNodes of which the link state's costs are measured.
_MEASURED_NODES: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStateCost:
    """Processor time of a SuperLink's link state in SQLite, for one call; its median.

    Attributes:
        poll_s: A SuperNode asks for a message and there is none.
        heartbeat_s: A SuperNode says that it is there.
    """

    poll_s: float
    heartbeat_s: float

    @property
    def of_a_node(self) -> float:
        """Share of one core that an idle SuperNode takes."""
        return self.poll_s / POLL_S + self.heartbeat_s / HEARTBEAT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """What a lazy training moves and holds.

    Attributes:
        vectors: Of one exchange.
        between_bytes: Vectors that a client sends in a training, on the mean.
        client_bytes: All that a client sends and receives, on the mean.
        server_bytes: Updates and weights of all clients in a training.
        round_bytes: Updates and weights of all clients in one round of the largest stage.
        superlink_bytes: The answers of such a round, if all lie in the SuperLink at once.
        server_held_bytes: Of the ServerApp: the weights as often as a stage has them, and the
            answers that it takes ahead of their turn.
    """

    vectors: int
    between_bytes: float
    client_bytes: float
    server_bytes: int
    round_bytes: int
    superlink_bytes: int
    server_held_bytes: int


def beyond(crossing: float) -> Beyond:
    """Compute it for parts of which such a share of the edges leads to other clients.

    Args:
        crossing: 1 for parts at random; vectors are in proportion to it, since hardly two of a
            node's neighbours are of one client.
    """
    from retexo_fl.federation.asking.messenger import REPLIES_AHEAD

    config = make_config(_KEYS)
    size = GraphSize.foreseen(config)
    assert size is not None
    vectors = round(crossing * size.boundary)
    shape = ModelShape.of(config, inputs=size.features, classes=size.classes)
    volume = LAZY.volume(
        shape,
        TrainingSize(
            clients=CLIENTS,
            training_clients=CLIENTS,
            asked_clients=CLIENTS,
            validation_clients=CLIENTS,
            vectors=vectors,
            rounds=config.stage_rounds,
        ),
    )
    server_bytes = volume.updates_up + volume.weights_down
    stage_bytes = _FLOAT_BYTES * max(stage_parameters(shape)[0])
    held = (2 * WEIGHT_COPIES + REPLIES_AHEAD) * stage_bytes
    return Beyond(
        vectors=vectors,
        between_bytes=volume.boundary / CLIENTS,
        client_bytes=(2 * volume.boundary + server_bytes) / CLIENTS,
        server_bytes=server_bytes,
        round_bytes=2 * CLIENTS * stage_bytes,
        superlink_bytes=CLIENTS * stage_bytes,
        server_held_bytes=PROCESS_BYTES + held,
    )


def link_state_cost() -> LinkStateCost:
    """Measure Flower's link state in SQLite, with SuperNodes that wait for messages."""
    from flwr.server.superlink.linkstate.linkstate_factory import LinkStateFactory
    from flwr.supercore.object_store.object_store_factory import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    with tempfile.TemporaryDirectory(prefix="retexo-linkstate-") as folder:
        database = str(Path(folder) / "state.db")
        manager = NoOpFederationManager()
        state = LinkStateFactory(database, manager, ObjectStoreFactory(database)).state()
        manager.linkstate = state
        nodes = []
        for _ in range(_MEASURED_NODES):
            key = secrets.token_bytes(91)
            nodes.append(state.create_node("owner", "owner", key, HEARTBEAT_S))
            state.activate_node(nodes[-1], HEARTBEAT_S)
        return LinkStateCost(
            poll_s=_median_s(nodes, lambda node: state.get_message_ins(node, 1)),
            heartbeat_s=_median_s(
                nodes, lambda node: state.acknowledge_node_heartbeat(node, HEARTBEAT_S)
            ),
        )


def _median_s(nodes: list[int], call: Callable[[int], object]) -> float:
    times_s = []
    for node in nodes:
        begun_s = time.process_time()
        call(node)
        times_s.append(time.process_time() - begun_s)
    return sorted(times_s)[len(times_s) // 2]


def beyond_rows(cost: LinkStateCost, client_bytes: float) -> list[Row]:
    """Return the figures.

    Args:
        cost: Of a SuperLink.
        client_bytes: What another client adds to a process that holds the server and all clients,
            measured: more than the server's part of it.
    """
    rows = [
        _row("SuperLink, SQLite: an idle poll", "ms", cost.poll_s * 1e3),
        _row("SuperLink, SQLite: a heartbeat", "ms", cost.heartbeat_s * 1e3),
        _row(
            "SuperNodes that one SuperLink's SQLite serves, at most",
            "SuperNodes",
            1 / cost.of_a_node,
        ),
        _row(
            "SuperLinks at least",
            "SuperLinks",
            math.ceil(CLIENTS * cost.of_a_node),
        ),
        _row("another client of `retexo run`, server's part included", "MB", client_bytes / 1e6),
    ]
    for parts, crossing in CROSSING.items():
        found = beyond(crossing)
        rows += [
            _row(f"vectors of an exchange, {parts}", "10^9", found.vectors / 1e9),
            _row(f"vectors that a client sends, {parts}", "MB", found.between_bytes / 1e6),
            _row(f"all bytes at a client, {parts}", "MB", found.client_bytes / 1e6),
        ]
    return [
        *rows,
        _row("bytes at the server, a training", "TB", found.server_bytes / 1e12),
        _row("bytes at the server, a round of the largest layer", "GB", found.round_bytes / 1e9),
        _row("SuperLink, answers of a round at once", "GB", found.superlink_bytes / 1e9),
        _row("ServerApp, weights and answers ahead", "GB", found.server_held_bytes / 1e9),
        _row(
            "ServerApp, what it keeps of clients, at most",
            "GB",
            client_bytes * CLIENTS / 1e9,
        ),
    ]


def _row(metric: str, unit: str, ours: float) -> Row:
    return Row(metric=f"10^9 edges, 10^5 clients: {metric}", unit=unit, ours=ours)
