"""A stage that goes to workers and back, against the same stage in one process."""

from __future__ import annotations

import logging
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from retexo_fl.additions.devices.training import auto_stage
from retexo_fl.additions.devices.training.auto_stage import AutoStage, SpareDevices
from retexo_fl.additions.devices.training.client_devices import ClientDevices
from retexo_fl.config import make_config
from retexo_fl.errors import DeviceFailed
from retexo_fl.training import stage_pass
from retexo_fl.training.layer_trainer import LayerTrainer
from retexo_fl.training.metrics import make_metric
from retexo_fl.training.recipe import LocalSteps, Recipe
from retexo_fl.training.tally import LayerUpdate
from tests.support.devices_here import DevicesHere
from tests.support.sampled import SmallClient, small_client
from tests.unit.additions.devices.training.test_device_stage import GRAPH, METRIC, weights_of

DROPOUT = 0.3


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have several batches of every use: 300 train nodes are three, 120 others two."""
    monkeypatch.setattr(stage_pass, "ROWS_PER_BATCH", 110)


class Spare(SpareDevices):
    """Two devices of this process, or any others."""

    def __init__(self, devices: ClientDevices, metric: str, model: str) -> None:
        config = make_config({"model": model, "metric": metric, "dropout": DROPOUT, "rounds": 90})
        super().__init__(config, client=3)
        self.devices = devices
        self.units: list[int] = []

    def are_idle(self) -> bool:
        return True

    def of_units(self, units: int) -> ClientDevices:
        self.units.append(units)
        return self.devices


class Scripted:
    """Stands for a trial: workers compute all rounds but every third."""

    own_s = shared_s = 1.0
    is_over = False

    def wants_workers(self, number: int) -> bool:
        return number >= 1

    def goes_to_workers(self, number: int) -> bool:
        return number % 3 != 0

    def own_round(self, seconds: float) -> None:
        assert seconds > 0

    def shared_round(self, seconds: float) -> bool:
        return seconds < 0

    def fail(self) -> None:
        self.is_over = True


def made_of(
    model: str, devices: ClientDevices, of: Recipe, metric: str = "accuracy"
) -> tuple[SmallClient, AutoStage, Spare]:
    made = small_client(model, layers=2, dtype="float32", graph=GRAPH, heads_between=True)
    spare = Spare(devices, metric, model)
    stage = AutoStage(made.shape, 0, made.inputs, made.nodes, recipe=of, spare=spare)
    stage._trial = Scripted()  # type: ignore[assignment]
    return made, stage, spare


def same(one: LayerUpdate, other: LayerUpdate) -> bool:
    spans = one.spans is None and other.spans is None
    tallies = (one.train, one.validation) == (other.train, other.validation)
    return spans and tallies and one.update_sum.tobytes() == other.update_sum.tobytes()


@pytest.mark.parametrize(
    ("model", "metric", "steps"),
    # All pairs: metrics take their turns with the numbers of steps, the other way each model.
    [
        (model, metric, 1 + (at + of) % 2)
        for at, model in enumerate(("gcn", "sage", "gat", "gin", "sage-pool"))
        for of, metric in enumerate(("accuracy", METRIC))
    ],
)
@pytest.mark.each_choice
def test_no_bit_depends_on_who_computes(
    model: str, metric: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_stage, "_main_can_be_imported", lambda: True)
    of = Recipe(metric=make_metric(metric), local=LocalSteps(count=steps))
    devices = DevicesHere([1.0, 1.0])
    made, stage, spare = made_of(model, devices, of, metric)
    alone = LayerTrainer(made.shape, 0, made.inputs, made.nodes, seed=0, recipe=of)
    weights = weights_of(made)
    for number in range(1, 9):
        expected = alone.update(weights, round_number=number, dropout=DROPOUT)
        found = stage.update(weights, round_number=number, dropout=DROPOUT)
        assert same(found, expected)
        if stage._opening is not None:
            stage._opening.join()
        weights = weights - 0.01 * expected.update_sum / 300
    # The second has them opened; the sixth is computed here.
    in_one_pass = model in {"gcn", "sage"} and metric == "accuracy"
    assert spare.units == [3 if in_one_pass else 5]
    rounds = {share.numbers["round"] for step in devices.steps for share in step}
    assert rounds == {3, 4, 5, 7, 8}
    for which in ("validation", "test"):
        assert stage.evaluate(weights, which) == alone.evaluate(weights, which)
    stage.close()
    assert devices.open_tasks == 0


class Failing(DevicesHere):
    """Cannot start, or fails at a step."""

    starts = True

    def open(self, *of: object, **keys: object) -> SimpleNamespace:  # type: ignore[override]
        if not self.starts:
            raise DeviceFailed("cpu:0: its process cannot start")
        return SimpleNamespace(step=self._step, close=lambda: None)

    def _step(self, *of: object) -> None:
        raise DeviceFailed("cpu:1: its process ended by signal 9")


@pytest.mark.parametrize("starts", [True, False])
def test_a_device_that_fails_ends_nothing(
    starts: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_stage, "_main_can_be_imported", lambda: True)
    devices, of = Failing([1.0, 1.0]), Recipe()
    devices.starts = starts
    made, stage, _ = made_of("gat", devices, of)
    alone = LayerTrainer(made.shape, 0, made.inputs, made.nodes, seed=0, recipe=of)
    weights = weights_of(made)
    with caplog.at_level(logging.INFO, "retexo_fl"):
        for number in (1, 2, 3, 4):
            expected = alone.update(weights, round_number=number, dropout=DROPOUT)
            assert same(stage.update(weights, round_number=number, dropout=DROPOUT), expected)
            if stage._opening is not None:
                stage._opening.join()
            if stage._trial.is_over:
                break
    assert stage._trial.is_over
    reason = "ended by signal 9" if starts else "cannot start"
    assert [line.split(" round=")[0] for line in caplog.messages] == [
        "devices client=3 stage=0"
    ] * 2
    assert f'on=cpu reason="cpu:{int(starts)}: its process {reason}"' in caplog.messages[1]


@pytest.mark.parametrize(
    ("main", "can"),
    [
        ({"__file__": "/bin/retexo", "__spec__": None}, True),
        ({"__spec__": None}, True),  # A notebook.
        ({"__file__": "/x/retexo_fl/__main__.py", "__spec__": object()}, True),
        ({"__file__": "/home/u/training.py", "__spec__": None}, False),
    ],
)
def test_a_script_of_a_users_own_is_not_imported_again(
    main: dict[str, object], can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("__main__")
    vars(module).pop("__file__", None)
    vars(module).update(main)
    monkeypatch.setitem(sys.modules, "__main__", module)
    assert auto_stage._main_can_be_imported() is can


def test_workers_are_not_started_where_memory_is_short(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_stage, "_main_can_be_imported", lambda: True)
    monkeypatch.setattr(auto_stage, "free_bytes", lambda: 600_000_000)
    devices = DevicesHere([1.0, 1.0])
    made, stage, _ = made_of("gat", devices, Recipe())
    with caplog.at_level(logging.INFO, "retexo_fl"):
        for number in (1, 2, 3):
            stage.update(weights_of(made), round_number=number, dropout=DROPOUT)
            if stage._trial.is_over:
                break
    assert "workers would take 320" in caplog.text
    assert devices.steps == []


def test_cores_on_which_others_compute_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_stage, "available_cores", lambda: 2)
    spare = SpareDevices(make_config({}), client=0)
    for load, idle in ((1.0, True), (1.4, True), (2.0, False)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0, 0))
        assert spare.are_idle() is idle


@pytest.mark.parametrize(
    ("keys", "cores", "names"),
    [
        ({}, 4, ("cpu:0", "cpu:1", "cpu:2")),
        ({}, 2, ("cpu:0", "cpu:1")),
        ({"threads": 2}, 4, ("cpu:0", "cpu:1")),
        # Processes of a simulation have a core each.
        ({"engine": "flower", "clients": 8}, 4, ()),
    ],
)
def test_devices_are_those_that_this_process_has_for_itself(
    keys: dict[str, object], cores: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("additions.devices.training.auto_stage", "device_names"):
        monkeypatch.setattr(f"retexo_fl.{module}.available_cores", lambda: cores)
    spare = SpareDevices(make_config(keys), client=0)
    assert spare.are_any is bool(names)
    if names:
        assert spare.of_units(3).settled.names == names
        assert spare.of_units(3) is spare.of_units(3)
