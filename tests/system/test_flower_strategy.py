"""The Flower project of examples/own_server_app, run by its own command, trains a run's weights."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.federation.trained_model import read_trained_model
from tests.support.commands import ROOT, program, run_command
from tests.support.runs import model_bytes, train

# By day a ServerApp trains the same without Flower's processes: tests/integration/test_strategy.py.
pytestmark = [pytest.mark.system, pytest.mark.deployed, pytest.mark.slow]
EXAMPLE = ROOT / "examples" / "own_server_app"


def test_the_examples_server_app_trains_the_weights_of_a_run(
    tmp_path: Path, flower_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As copied: nothing else of the repository is beside it.
    app = tmp_path / EXAMPLE.name
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    text = (app / "README.md").read_text(encoding="utf-8")
    ((line,),) = [
        block.splitlines() for block in re.findall(r"^```sh\n(.*?)^```$", text, re.S | re.M)
    ]
    weights = tmp_path / "weights.npz"
    _, *arguments = shlex.split(re.sub(r'out="[^"]+"', f'out="{weights}"', line))
    said = run_command([program("flwr"), *arguments], cwd=app, env=flower_environment)
    assert weights.is_file(), said[-6000:]
    project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    keys = {key: value for key, value in project["tool"]["flwr"]["app"]["config"].items() if value}
    monkeypatch.syspath_prepend(str(app))
    model = read_trained_model(train(tmp_path / "run", **keys), allow_plugins=True)
    with np.load(weights) as trained:
        for stage, expected in enumerate(model.weights):
            assert trained[f"arr_{stage}"].tobytes() == expected.tobytes()
    # The aggregator of the example took part.
    del keys["aggregator"]
    assert model_bytes(train(tmp_path / "mean", **keys)) != model_bytes(tmp_path / "run")
