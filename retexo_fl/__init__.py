"""Federated training of graph neural networks by lazy message passing, on Flower.

``__all__`` lists what Python scripts and notebooks use (docs/python.md); each name is imported when
it is asked for, so that this package alone loads neither PyTorch nor Flower.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from retexo_fl.version import __version__

if TYPE_CHECKING:
    from retexo_fl.api.cuts import CutRow, rolling
    from retexo_fl.api.graph_model import GraphModel
    from retexo_fl.api.loggers import MlflowLogger, TensorBoardLogger, WandbLogger
    from retexo_fl.api.metrics_file import PrometheusFile
    from retexo_fl.api.parts import open_parts, partition, plan
    from retexo_fl.api.predicting import Predictions
    from retexo_fl.api.rows import Rows
    from retexo_fl.api.runs import Callback, OnEnd, OnRound, OnStage, Run, run
    from retexo_fl.api.sweep_rows import SweepRow
    from retexo_fl.api.sweeps import sweep
    from retexo_fl.config import RunConfig
    from retexo_fl.errors import Interrupted, RetexoError
    from retexo_fl.graph import Graph, GraphPartition
    from retexo_fl.graph.sources.tables.query import Query
    from retexo_fl.run_log.events import Event, RoundClosed, StageClosed
    from retexo_fl.run_log.result import Result

__all__ = [
    "Callback",
    "CutRow",
    "Event",
    "Graph",
    "GraphModel",
    "GraphPartition",
    "Interrupted",
    "MlflowLogger",
    "OnEnd",
    "OnRound",
    "OnStage",
    "Predictions",
    "PrometheusFile",
    "Query",
    "Result",
    "RetexoError",
    "RoundClosed",
    "Rows",
    "Run",
    "RunConfig",
    "StageClosed",
    "SweepRow",
    "TensorBoardLogger",
    "WandbLogger",
    "__version__",
    "open_parts",
    "partition",
    "plan",
    "rolling",
    "run",
    "sweep",
]

_HOMES = {
    "api.cuts": ("CutRow", "rolling"),
    "api.graph_model": ("GraphModel",),
    "api.loggers": ("MlflowLogger", "TensorBoardLogger", "WandbLogger"),
    "api.metrics_file": ("PrometheusFile",),
    "api.parts": ("open_parts", "partition", "plan"),
    "api.predicting": ("Predictions",),
    "api.rows": ("Rows",),
    "api.runs": ("Callback", "OnEnd", "OnRound", "OnStage", "Run", "run"),
    "api.sweep_rows": ("SweepRow",),
    "api.sweeps": ("sweep",),
    "config": ("RunConfig",),
    "errors": ("Interrupted", "RetexoError"),
    "graph": ("Graph", "GraphPartition"),
    "graph.sources.tables.query": ("Query",),
    "run_log.events": ("Event", "RoundClosed", "StageClosed"),
    "run_log.result": ("Result",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
