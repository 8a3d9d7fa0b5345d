"""How good a model of links is on the whole graph, whoever trained it.

Clients judge their held-out edges beside pairs of nodes that they know. Here the trained layers are
asked once more, by one client that has the whole graph: the same held-out edges, which follow from
the seed, beside as many pairs drawn uniformly among all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from retexo_fl.channels import MemoryChannel
from retexo_fl.client.api import CollectRequest, EvaluateRequest, PublishRequest, Request
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.store import MemoryStore
from retexo_fl.config import make_config
from retexo_fl.methods.pieces.links.answers import LinkClient
from retexo_fl.training.metrics import AveragePrecision, RocAuc
from sims.trained import Trained
from sims.training import train_whole
from sims.trainings import Keys

#: Where the figures stand in a result, by name.
WHOLE_GRAPH: Final = "whole_graph"
ROC_AUC: Final = "roc-auc"
AVERAGE_PRECISION: Final = "average-precision"
_RANKINGS: Final = {
    ROC_AUC: RocAuc(of_classes=False),
    AVERAGE_PRECISION: AveragePrecision(of_classes=False),
}


def train_links(keys: Keys) -> Trained:
    """Train, and leave the test's rankings on the whole graph under :data:`WHOLE_GRAPH`."""
    asked: dict[int, PublishRequest] = {}
    tests: list[EvaluateRequest] = []

    def listen(index: int, request: Request[Any], answer: Any) -> Any:
        """Keep what made the selected layers' rows, and the test."""
        del index
        if isinstance(request, PublishRequest):
            asked[request.ticket.stage] = request
        if isinstance(request, EvaluateRequest) and request.nodes == "test":
            tests.append(request)
        return answer

    trained = train_whole(keys, listen)
    scores = _judged(keys, asked, tests[0])
    return replace(trained, result={**trained.result, WHOLE_GRAPH: scores})


def _judged(
    keys: Keys, asked: Mapping[int, PublishRequest], test: EvaluateRequest
) -> dict[str, float | None]:
    """Ask one client with the whole graph what all clients were asked."""
    config = make_config({**keys, "clients": 1, "partitioner": "random", "metric": ROC_AUC})
    (part,) = make_parts(config)
    client = LinkClient(
        part, config, job=test.ticket.job, channel=MemoryChannel(), store=MemoryStore()
    )
    for stage in sorted(asked):
        client.ask(asked[stage])
        client.ask(CollectRequest(ticket=asked[stage].ticket, close=True))
    counts = client.ask(replace(test, last=False)).metric.array()
    return {name: ranking.value(counts) for name, ranking in _RANKINGS.items()}
