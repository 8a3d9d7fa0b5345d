"""Which trainer a client gets, by its configuration and by what is there."""

from __future__ import annotations

import logging
import os
import re
from typing import Any

import pytest

from retexo_fl.additions.devices.training import auto_stage
from retexo_fl.additions.devices.training.auto_stage import AutoStage
from retexo_fl.additions.devices.training.client_devices import ClientDevices
from retexo_fl.additions.devices.training.device_stage import DeviceStage
from retexo_fl.additions.devices.training.sampled_trainer import SampledTrainer
from retexo_fl.client.trainers import ClientTrainers
from retexo_fl.config import make_config
from retexo_fl.device_names import Machine
from retexo_fl.errors import ConfigurationError
from retexo_fl.training.end_to_end import EndToEndPlan, EndToEndTrainer
from retexo_fl.training.layer_trainer import LayerTrainer
from tests.support.sampled import GRAPH, small_client

BARE = Machine(num_gpus=0, num_cores=2, why_no_gpu="PyTorch sees no GPU")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "here", lambda: BARE)


def config_of(**keys: Any) -> Any:
    given = {name.replace("_", "-"): value for name, value in keys.items()}
    return make_config(
        {"dataset": GRAPH, "clients": 1, "model": "gat", "hidden": 6, "heads": 2, "layers": 3}
        | given
    )


def trainers(**keys: Any) -> ClientTrainers:
    made = small_client("gat", heads_between=keys.get("algorithm", "lazy") == "lazy")
    return ClientTrainers(config_of(**keys), made.shape, made.nodes, client=4)


def stage_of(of: ClientTrainers, *, predicts: bool = False) -> LayerTrainer:
    return of.stage(0, small_client("gat", heads_between=True).inputs, predicts=predicts)


def whole_of(of: ClientTrainers) -> object:
    made = small_client("gat")
    plan = EndToEndPlan(boundary=[made.plan] * (made.shape.layers - 1), seed=0, recipe=of.recipe)
    trainer = EndToEndTrainer(made.shape, made.inputs, made.nodes, plan=plan)
    return of.whole(trainer, made.inputs)


@pytest.mark.parametrize(
    ("keys", "cores", "may"),
    [
        ({}, 2, True),
        ({}, 1, False),
        # One batch, which nobody can share without other roundings.
        ({"model": "sage"}, 2, False),
        # All of its rounds are over before a worker has started.
        ({"rounds": 50_000, "last_rounds": 50_000}, 2, False),
    ],
)
def test_auto_may_share_long_stages_of_several_batches(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], cores: int, may: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(auto_stage, "available_cores", lambda: cores)
    many = {"rounds": 1_000_000, "last_rounds": 1_000_000} | keys
    made = stage_of(trainers(devices="auto", **many))
    assert type(made) is (AutoStage if may else LayerTrainer)
    assert type(stage_of(trainers(devices="auto", **many), predicts=True)) is LayerTrainer


def test_auto_samples_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(whole_of(trainers(devices="auto", algorithm="central", sampler="full"))) is (
        SampledTrainer
    )
    assert ClientDevices.of(config_of(devices="auto", sampler="full")).in_process
    gpu = Machine(num_gpus=1, num_cores=2, why_no_gpu="")
    monkeypatch.setattr(Machine, "here", lambda: gpu)
    assert ClientDevices.of(config_of(devices="auto", sampler="full")).settled.names == ("cuda:0",)


@pytest.mark.parametrize("devices", ["cpu", "cuda:0"])
def test_a_stage_alone_on_the_cpu_has_no_worker(devices: str) -> None:
    assert type(stage_of(trainers(devices=devices))) is LayerTrainer


@pytest.mark.parametrize("devices", ["cpu:1", "cpu:2", "cuda:0,cpu:2"])
def test_a_stage_is_shared_by_the_devices_that_are_named(devices: str) -> None:
    of = trainers(devices=devices)
    assert type(stage_of(of)) is DeviceStage
    assert type(stage_of(of, predicts=True)) is LayerTrainer


@pytest.mark.parametrize("algorithm", ["drop", "central"])
def test_a_sampler_makes_mini_batches(algorithm: str) -> None:
    assert type(whole_of(trainers(algorithm=algorithm))) is EndToEndTrainer
    assert type(whole_of(trainers(algorithm=algorithm, sampler="full"))) is SampledTrainer


def test_the_log_says_what_was_chosen_once(caplog: pytest.LogCaptureFixture) -> None:
    of = trainers(devices="cuda:0,cpu:2")
    with caplog.at_level(logging.INFO, "retexo_fl"):
        stage_of(of)
        stage_of(of)
    (told,) = caplog.messages
    assert re.match(r'devices client=4 found="cuda:0 .*; .*cpu:2"$', told)


def test_the_log_says_where_devices_do_not_matter(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "retexo_fl"):
        whole_of(trainers(algorithm="standard", devices="cpu:2"))
    (told,) = caplog.messages
    assert re.match('devices client=4 on=cpu reason=".*batch.*"$', told)


def test_a_resumed_run_may_name_other_devices() -> None:
    of = trainers(devices="cpu")
    assert not of.follow(config_of(devices="cpu", rounds=7))
    assert of.follow(config_of(devices="cpu:2"))
    assert type(stage_of(of)) is DeviceStage
    assert of.follow(config_of(devices="cpu:2", balance="static"))
    assert of.follow(config_of(devices="cpu"))
    assert type(stage_of(of)) is LayerTrainer


def test_sampler_and_model_that_do_not_go_together_are_refused() -> None:
    of = trainers(algorithm="central", sampler="gns", model="sage-pool", fanouts="5/5/5")
    with pytest.raises(ConfigurationError, match="^sampler: 'gns' "):
        whole_of(of)
