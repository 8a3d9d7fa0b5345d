"""The aggregation of Flower's own strategies."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.app.exception import AppExitException
from flwr.serverapp.strategy import FedAvg, Strategy

from retexo_fl.client.api import TRAIN
from retexo_fl.errors import PluginError
from retexo_fl.federation.aggregators.base import RoundFacts
from retexo_fl.federation.records import weights_record
from retexo_fl.units import counted

_LOGGER: Final = logging.getLogger("flwr")
#: What does here what a strategy of Flower's does by more than its aggregation.
_INSTEAD: Final[Mapping[str, str]] = MappingProxyType(
    {
        "FedProx": "proximal-mu with local-steps above 1",
        **{
            name: f"optimizer {optimizer}, or server-optimizer {optimizer} with local-steps above 1"
            for name, optimizer in (
                ("FedAvgM", "momentum"),
                ("FedAdam", "adam"),
                ("FedYogi", "yogi"),
                ("FedAdagrad", "adagrad"),
            )
        },
        **dict.fromkeys(
            ("DifferentialPrivacyFixedClippingBase", "DifferentialPrivacyAdaptiveBase"),
            "update-dp for differential privacy, or norm-clipping, which limits updates without "
            "noise",
        ),
    }
)


class FlowerAggregator:
    """Aggregates as a Flower strategy does: its ``aggregate_train`` and nothing else of it.

    The strategy is given one reply for each client with train nodes: an ArrayRecord with the
    client's mean update as its only array, and a MetricRecord with ``num-examples``, its train
    nodes. The array it returns is the round's update; the step of the weights stays ours.

    So strategies that only combine what came (FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum,
    Bulyan) work. Those that send clients more than weights, ask only some of them, or remember what
    they sent (FedProx, FedAdam, FedAvgM, ...) would train as something else, and are refused.
    """

    needs: Literal["sum", "each"] = "each"

    def __init__(self, strategy: Strategy) -> None:
        """Wrap a strategy.

        Raises:
            PluginError: It is more than an aggregation, or has settings that are not followed.
        """
        check_hooks(type(strategy))
        _check_settings(strategy)
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


def check_hooks(kind: type[Strategy]) -> None:
    """Refuse a class of strategies whose work is more than its ``aggregate_train``.

    Raises:
        PluginError: It does a part before clients are asked, or has them do it.
    """
    if issubclass(kind, FedAvg) and kind.configure_train is FedAvg.configure_train:
        return
    known = (_INSTEAD[base.__name__] for base in kind.__mro__ if base.__name__ in _INSTEAD)
    instead = next(known, "a strategy that differs from FedAvg in aggregate_train alone")
    raise PluginError(
        f"aggregator {kind.__name__}: only its aggregate_train is used, and it does a part of its "
        f"work in configure_train or at the clients; expected {instead}"
    )


def _check_settings(strategy: Strategy) -> None:
    """Refuse settings that nothing follows here."""
    for name, expected in (("fraction_train", 1.0), ("weighted_by_key", "num-examples")):
        if (found := getattr(strategy, name)) != expected:
            raise PluginError(
                f"aggregator {type(strategy).__name__}: {name} is {found!r}, but every client "
                f"trains in every round and reports its train nodes as num-examples; expected "
                f"{expected!r}"
            )


@contextmanager
def _without_info() -> Iterator[None]:
    """Keep Flower's two lines a round out of the terminal; its warnings are shown."""
    level = _LOGGER.level
    _LOGGER.setLevel(logging.WARNING)
    try:
        yield
    finally:
        _LOGGER.setLevel(level)
