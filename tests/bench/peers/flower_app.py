"""FedAvg of PyG models on Flower, as its users write it: a ServerApp, a ClientApp, no retexo_fl.

Each client has a subgraph, without the edges that lead to others, in ``client-N.npz`` of a folder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from tests.bench.peers.gcn import (
    TEST,
    TRAIN,
    VALIDATION,
    Gcn,
    Task,
    optimizer_of,
    right_answers,
    train_epoch,
)

#: Given a round from 1, right and all validation nodes, right and all test nodes.
Observer = Callable[[int, list[int]], None]
_COUNTS = ("validation-right", "validation-nodes", "test-right", "test-nodes")

client_app = ClientApp()


@cache
def _task(folder: str, client: int) -> Task:
    return Task.load(Path(folder, f"client-{client}.npz"))


def _client(message: Message, context: Context) -> tuple[Gcn, Task]:
    """Return the model as it was sent, and this client's part."""
    config = message.content.config_records["config"]
    task = _task(str(config["folder"]), int(str(context.node_config["partition-id"])))
    model = Gcn(task.rows.shape[1], int(str(config["hidden"])), int(str(config["classes"])))
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return model, task


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Take some steps on the client's own train nodes."""
    model, task = _client(message, context)
    optimizer = optimizer_of(model)
    for _ in range(int(str(message.content.config_records["config"]["steps"]))):
        train_epoch(model, optimizer, task)
    metrics = MetricRecord({"num-examples": int(task.masks[TRAIN].sum())})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Count right answers among the client's validation and test nodes."""
    model, task = _client(message, context)
    right = right_answers(model, task)
    counts = [
        int(number[use]) for use in (VALIDATION, TEST) for number in (right, task.masks.sum(dim=1))
    ]
    metrics = MetricRecord({"num-examples": 1, **dict(zip(_COUNTS, counts, strict=True))})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def make_server_app(
    model: Gcn, config: dict[str, str | int], rounds: int, observe: Observer
) -> ServerApp:
    """Return a ServerApp that averages for some rounds, all clients in each."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        del context
        done = iter(range(1, rounds + 1))

        def add_up(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
            del weighted_by
            records = [reply.metric_records["metrics"] for reply in replies]
            sums = [sum(int(str(one[name])) for one in records) for name in _COUNTS]
            observe(next(done), sums)
            return MetricRecord(dict(zip(_COUNTS, sums, strict=True)))

        strategy = FedAvg(evaluate_metrics_aggr_fn=add_up)
        strategy.start(
            grid,
            ArrayRecord(model.state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord(dict(config)),
            evaluate_config=ConfigRecord(dict(config)),
        )

    return app
