"""A finished run trained on by agents, and by Flower's simulation, as by one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import retexo_fl
from retexo_fl.client.preparation import make_parts
from tests.integration.test_extend import KEYS, said
from tests.support.agents import agents, train_with
from tests.support.runs import configured, model_bytes, train

pytestmark = [pytest.mark.system, pytest.mark.deployed]


def test_agents_train_on_as_one_process_does(tmp_path: Path) -> None:
    keys = {**KEYS, "clients": 2, "rounds": 2}
    with agents(tmp_path, make_parts(configured(tmp_path / "none", **keys))) as made:
        config = configured(tmp_path / "agents", **keys)
        run = train_with(made, config)
        # They have forgotten the job; one has ended since.
        made[0].kill()
        made[0].start()
        train_with(made, replace(config, out="", resume=str(run), last_rounds=4))
    out = train(tmp_path / "inline", **keys, last_rounds=4)
    assert model_bytes(run) == model_bytes(out)
    assert said(run) == said(out)


# Agents train on above, and by day Flower's simulation trains in tests/system/test_engines.py.
@pytest.mark.slow
def test_flowers_simulation_trains_on_what_one_process_had_trained(tmp_path: Path) -> None:
    out = train(tmp_path / "run", **KEYS)
    retexo_fl.Run.open(out).extend(rounds=1, engine="flower", quiet=True)
    assert model_bytes(out) == model_bytes(train(tmp_path / "whole", **KEYS, last_rounds=5))
    assert said(out) == said(tmp_path / "whole")
