"""The aggregation of Flower's own strategies."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.app.exception import AppExitException
from flwr.serverapp.strategy import Strategy

from retexo_fl.client.api import TRAIN
from retexo_fl.errors import PluginError
from retexo_fl.federation.aggregators.base import RoundFacts
from retexo_fl.federation.records import weights_record
from retexo_fl.units import counted

_LOGGER: Final = logging.getLogger("flwr")


class FlowerAggregator:
    """Aggregates as a Flower strategy does: its ``aggregate_train`` and nothing else of it.

    The strategy is given one reply for each client with train nodes: an ArrayRecord with the
    client's mean update as its only array, and a MetricRecord with ``num-examples``, its train
    nodes. The array it returns is the round's update; the step of the weights stays ours.

    So strategies that only combine what came (FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum,
    Bulyan) work. Those that compare it with the weights they sent out (FedAdam, FedAvgM, ...) have
    sent none, and refuse.
    """

    needs: Literal["sum", "each"] = "each"

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def start(self, begun: RoundFacts) -> None:
        """See :class:`~retexo_fl.federation.aggregators.Aggregator`."""
        self._round = begun.number
        self._replies: list[Message] = []

    def add(self, client: int, update_sum: np.ndarray, count: int) -> None:
        """See :class:`~retexo_fl.federation.aggregators.Aggregator`."""
        content = RecordDict(
            {
                "arrays": weights_record(update_sum / count),
                "metrics": MetricRecord({"num-examples": count}),
            }
        )
        asked = Message(RecordDict(), dst_node_id=client, message_type=TRAIN.message_type)
        self._replies.append(Message(content, reply_to=asked))

    def finish(self) -> np.ndarray:
        """See :class:`~retexo_fl.federation.aggregators.Aggregator`.

        Raises:
            PluginError: The strategy refused, or returned something other than one array.
        """
        name = type(self._strategy).__name__
        replies, self._replies = self._replies, []
        try:
            with _without_info():
                arrays, _ = self._strategy.aggregate_train(self._round, replies)
        except AppExitException as error:
            raise PluginError(f"aggregator {name}: Flower refused ({error})") from error
        if arrays is None or len(arrays) != 1:
            raise PluginError(
                f"aggregator {name}: got {counted(len(arrays or ()), 'array')} for the "
                f"updates of {counted(len(replies), 'client')}; expected one"
            )
        return next(iter(arrays.values())).numpy()


@contextmanager
def _without_info() -> Iterator[None]:
    """Keep Flower's two lines a round out of the terminal; its warnings are shown."""
    level = _LOGGER.level
    _LOGGER.setLevel(logging.WARNING)
    try:
        yield
    finally:
        _LOGGER.setLevel(level)
