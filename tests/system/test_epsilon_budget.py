"""Agents, as real processes, whose owners bound what noised sums give away in all jobs together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import RetexoError
from tests.support.agents import agents, retexo, train_with
from tests.support.limits import PERMISSIVE
from tests.support.runs import configured, result_of
from tests.support.ways import profile_keys

pytestmark = pytest.mark.system

KEYS: dict[str, Any] = {"clients": 3, "hidden": 4, "layers": 1, "model": "gcn"}
ROUNDS = {"rounds": 2, "learning_rate": 0.05, "dropout": 0.0}
#: By name, keys of a training with an epsilon of 2, and how many sums with noise are of it.
WAYS: dict[str, tuple[dict[str, Any], int]] = {
    "updates": (ROUNDS, 2),
    "one shot": ({**profile_keys("one-shot"), "basis_blocks": 2}, 3),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_second_job_beyond_it_is_refused_in_one_line_also_by_an_agent_that_was_killed(
    tmp_path: Path, way: str
) -> None:
    more, sums = WAYS[way]
    keys = {**KEYS, **more, "secure_aggregation": "masked", "update_dp": 2.0}
    parts = make_parts(make_config(KEYS))
    budget = {**PERMISSIVE, "max-epsilon": 2.5}
    with agents(tmp_path, parts, settings=budget) as made:
        run = train_with(made, configured(tmp_path / "one", **keys))
        assert result_of(run)["test_accuracy"] > 0.2
        made[0].kill()
        made[0].start()
        for agent in made:
            told = agent.status()["epsilon"]
            assert told["most"] == 2.5
            assert list(told["spent"].values()) == [pytest.approx(2.0)]
            lines = (agent.state / "epsilon.jsonl").read_text().splitlines()
            assert len({json.loads(line)["identity"] for line in lines}) == len(lines) == sums
        said = retexo("agent", "status", "--config", str(made[0].settings))
        assert "epsilon 2 of at most 2.5 given away (delta 1e-05)" in said.stdout
        expected = (
            r"^client \d: update-dp: 2, after an epsilon of 2 that its part has given away in all "
            r"jobs; expected at most 2\.5 together \(max-epsilon in its agent\.toml\)$"
        )
        with pytest.raises(RetexoError, match=expected):
            train_with(made, configured(tmp_path / "other", **keys))
        for agent in made:
            lines = (agent.state / "epsilon.jsonl").read_text().splitlines()
            assert len(lines) == sums
