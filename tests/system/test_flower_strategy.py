"""The ServerApp of docs/extending-server.md, run by Flower's command, trains a run's weights."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.federation.trained_model import read_trained_model
from tests.integration.test_extending import blocks, write_files
from tests.support.commands import program, run_command
from tests.support.runs import train

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
SECTION = "ServerApp"


def test_the_documents_server_app_trains_the_weights_of_a_run(
    tmp_path: Path, flower_environment: dict[str, str]
) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    assert len(write_files(SECTION, folder)) == 2
    (project,) = blocks(SECTION, "toml")
    assert project.startswith("# pyproject.toml\n")
    (folder / "pyproject.toml").write_text(project)
    (line,) = blocks(SECTION, "sh")
    weights = tmp_path / "weights.npz"
    _, *arguments = shlex.split(re.sub(r'out="[^"]+"', f'out="{weights}"', line))
    said = run_command([program("flwr"), *arguments], cwd=folder, env=flower_environment)
    assert weights.is_file(), said[-6000:]
    keys = {key: int(number) for key, number in re.findall(r"^(\w+) = (\d+)$", project, re.M)}
    model = read_trained_model(train(tmp_path / "run", **keys))
    with np.load(weights) as trained:
        for stage, expected in enumerate(model.weights):
            assert trained[f"arr_{stage}"].tobytes() == expected.tobytes()
