"""Loggers write to the real, local stores of the tools that they are for."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import retexo_fl
from retexo_fl.errors import ConfigurationError
from tests.support.part import wait_until

KEYS: dict[str, Any] = {"clients": 2, "hidden": 8, "rounds": 3, "candidates": "none"}
KEYS |= {"quiet": True}


def installed(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        find_spec(module) is None, reason=f"{module} is not installed: pip install {module}"
    )


@installed("tensorboard")
def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        # Of what TensorBoard's own modules import.
        warnings.simplefilter("ignore")
        run = retexo_fl.run(
            out=tmp_path / "run",
            metric="macro-f1",
            callbacks=[retexo_fl.TensorBoardLogger(tmp_path / "board")],
            **KEYS,
        )
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(tmp_path / "board"))
        found.Reload()
    for stage in range(2):
        rows = [row for row in run.history() if row.stage == stage]
        losses = found.Scalars(f"stage-{stage}/loss")
        assert [one.step for one in losses] == [1, 2, 3]
        assert [one.value for one in losses] == pytest.approx([row.loss for row in rows])
        metrics = found.Scalars(f"stage-{stage}/val_metric")
        assert [one.value for one in metrics] == pytest.approx([row.val_metric for row in rows])
    assert run.result.metric is not None
    (test,) = found.Scalars("test/metric")
    assert test.value == pytest.approx(run.result.metric.value)


@pytest.mark.system
@installed("mlflow")
def test_mlflow_holds_what_was_logged(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/store.db")
        mlflow.create_experiment("sweeps", artifact_location=(tmp_path / "artifacts").as_uri())
        mlflow.set_experiment("sweeps")
        with mlflow.start_run() as active:
            logger = retexo_fl.MlflowLogger()
            run = retexo_fl.run(out=tmp_path / "run", callbacks=[logger], **KEYS)
        client = mlflow.tracking.MlflowClient()
        stored = client.get_run(active.info.run_id)
        losses = client.get_metric_history(active.info.run_id, "stage-1/loss")
    assert stored.info.status == "FINISHED"
    assert stored.data.params["hidden"] == "8"
    assert stored.data.metrics["test/accuracy"] == run.result.test_accuracy
    rows = [row for row in run.history() if row.stage == 1]
    assert [(one.step, one.value) for one in losses] == [(row.round, row.loss) for row in rows]
    assert list((tmp_path / "artifacts").rglob("report.html"))


@pytest.mark.system
@installed("wandb")
def test_weights_and_biases_has_what_was_logged_without_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"MODE": "offline", "ERROR_REPORTING": "false", "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    logged: list[dict[str, float]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wandb: Any = import_module("wandb")
        log = wandb.Run.log

        def noted(run: object, data: dict[str, float]) -> None:
            logged.append(data)
            log(run, data)

        monkeypatch.setattr(wandb.Run, "log", noted)
        logger = retexo_fl.WandbLogger()
        with wandb.init() as active:
            run = retexo_fl.run(out=tmp_path / "run", callbacks=[logger], **KEYS)
            assert wandb.run is active
            assert active.config["hidden"] == 8
            assert active.summary["test/accuracy"] == run.result.test_accuracy
            assert active.summary["stage-1/round"] == 3
        rows = run.history()
        losses = [data[f"stage-{row.stage}/loss"] for data, row in zip(logged, rows, strict=True)]
        assert losses == [row.loss for row in rows]
        # None is active: the logger begins one, and ends it.
        retexo_fl.run(out=tmp_path / "other", callbacks=[logger], **KEYS)
        assert wandb.run is None
    stores = list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    # What `wandb sync` sends is in the files, not in this process alone. A process of its own
    # writes the last of it, on a busy machine after `finish` has returned.
    assert len(stores) == 2
    wait_until(
        lambda: all(b"test/accuracy" in store.read_bytes() for store in stores),
        "the test's accuracy is not in both files",
        within_s=60.0,
    )


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("tensorboard", lambda: retexo_fl.TensorBoardLogger("board")),
        ("mlflow", retexo_fl.MlflowLogger),
        ("wandb", retexo_fl.WandbLogger),
    ],
)
def test_a_tool_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, make: Any
) -> None:
    monkeypatch.setattr("retexo_fl.api.loggers.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=f"{module}: is not installed; expected the extra"):
        make()
