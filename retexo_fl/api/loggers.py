"""Callbacks that write a run's course where other tools show it."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from retexo_fl.config import config_values
from retexo_fl.errors import ConfigurationError
from retexo_fl.run_log.events import RoundClosed

if TYPE_CHECKING:
    from retexo_fl.api.runs import Run

#: Figures of a round; their names begin with the stage's.
_FIGURES: Final = ("loss", "val_loss", "val_accuracy", "val_metric", "bytes_payload")


class TensorBoardLogger:
    """Writes a curve of each stage's figures by round, and at the end the test's.

    Args:
        folder: Of event files, for ``tensorboard --logdir``; one for each run.

    Raises:
        ConfigurationError: TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        _demand("tensorboard", "tensorboard")
        self._folder = Path(folder)
        self._writer: Any = None

    def on_round(self, event: RoundClosed, /) -> None:
        """Write the figures of a round."""
        for name, value in _figures(event).items():
            self._open().add_scalar(name, value, event.round)
        self._open().flush()

    def on_end(self, run: Run, /) -> None:
        """Write the configuration and the test, and close the file."""
        writer = self._open()
        for name, value in _ends(run).items():
            writer.add_scalar(name, value)
        lines = [f"| {key} | {value} |" for key, value in config_values(run.config).items()]
        writer.add_text("config", "\n".join(["| key | value |", "|---|---|", *lines]))
        writer.close()
        self._writer = None

    def _open(self) -> Any:
        if self._writer is None:
            made = import_module("torch.utils.tensorboard").SummaryWriter
            self._writer = made(str(self._folder))
        return self._writer


class MlflowLogger:
    """Logs to MLflow's active run: each stage's figures by round; at the end keys, test and report.

    Where MLflow's tracking is, and which run is active, is MLflow's own to say:
    ``with mlflow.start_run(): retexo_fl.run(..., callbacks=[MlflowLogger()])``.

    Raises:
        ConfigurationError: MLflow is not installed.
    """

    def __init__(self) -> None:
        _demand("mlflow", "mlflow")
        self._mlflow = import_module("mlflow")

    def on_round(self, event: RoundClosed, /) -> None:
        """Log the figures of a round."""
        self._mlflow.log_metrics(_figures(event), step=event.round)

    def on_end(self, run: Run, /) -> None:
        """Log the configuration, the test and the report."""
        self._mlflow.log_params(config_values(run.config))
        self._mlflow.log_metrics(_ends(run))
        self._mlflow.log_artifact(str(run.report()))


class WandbLogger:
    """Logs to a run of Weights & Biases: each stage's figures by round; at the end keys and test.

    The run is the active one, which `wandb.init(...)` returned, or one that this begins and ends;
    where it goes is Weights & Biases' own to say, by its arguments or by ``WANDB_MODE=offline``.
    Its steps are counted over all stages; ``stage-N/round`` are the rounds.

    Raises:
        ConfigurationError: Weights & Biases is not installed.
    """

    def __init__(self) -> None:
        _demand("wandb", "wandb")
        self._wandb = import_module("wandb")
        self._begun: Any = None

    def on_round(self, event: RoundClosed, /) -> None:
        """Log the figures of a round."""
        self._run().log({**_figures(event), f"stage-{event.stage}/round": event.round})

    def on_end(self, run: Run, /) -> None:
        """Log the configuration and the test, and end a run that this began."""
        self._run().config.update(config_values(run.config))
        self._run().summary.update(_ends(run))
        if self._begun is not None:
            self._begun.finish()
            self._begun = None

    def _run(self) -> Any:
        if self._begun is not None:
            return self._begun
        if self._wandb.run is None:
            self._begun = self._wandb.init()
        return self._begun or self._wandb.run


def _demand(module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise ConfigurationError(
            f"{module}: is not installed; expected the extra {extra!r} of retexo-fl"
        )


def _figures(event: RoundClosed) -> dict[str, float]:
    """Return the figures of a round that it has, by name."""
    values = asdict(event)
    known = {name: values[name] for name in _FIGURES if values[name] is not None}
    return {f"stage-{event.stage}/{name}": float(value) for name, value in known.items()}


def _ends(run: Run) -> dict[str, float]:
    """Return the figures of a finished run that it has, by name."""
    result = run.result
    found = {
        "test/accuracy": result.test_accuracy,
        "test/metric": None if result.metric is None else result.metric.value,
        "run/bytes_payload": result.volumes["payload"]["total"],
        "run/seconds": result.seconds["total"],
    }
    return {name: float(value) for name, value in found.items() if value is not None}
