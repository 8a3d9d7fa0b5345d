"""The share of vectors that agents may add up as they arrive, as `retexo plan` tells it."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_facts import plan_facts
from retexo_fl.cli import run_command
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.graph import BoundaryPlan


@cache
def plans(**keys: Any) -> dict[str, Any]:
    values = {name.replace("_", "-"): value for name, value in keys.items()}
    config = make_config({"clients": 3, "hidden": 8, **values})
    facts: dict[str, Any] = plan_facts(config, PlannedParts(make_parts(config)))["plans"]
    return facts


def test_both_plans_have_what_their_clients_add() -> None:
    parts = make_parts(make_config({"clients": 3}))
    for kind, facts in plans().items():
        made = [BoundaryPlan.from_partition(part, kind) for part in parts]
        assert facts["vectors_added"] == sum(plan.num_added for plan in made)
        assert facts["gradients_added"] == sum(plan.num_added_back for plan in made)
    assert plans()["rows"]["vectors_added"] == 0 < plans()["cover"]["vectors_added"]


def test_if_peers_may_stay_away_nothing_is_added_before_a_stage() -> None:
    dropping = plans(missing_peers="drop")["cover"]
    assert dropping["vectors_added"] == 0
    assert dropping["gradients_added"] == plans()["cover"]["gradients_added"]


@pytest.mark.parametrize("algorithm", ["lazy", "standard"])
def test_the_terminal_shows_the_shares(algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["plan", "--clients", "3", "--algorithm", algorithm]
    assert run_command([*options, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["plans"]
    assert run_command(options) == 0
    text = capsys.readouterr().out
    for label, kind in (("rows", "rows"), ("rows and sums (cover)", "cover")):
        share = 100 * facts[kind]["vectors_added"] / facts[kind]["vectors"]
        count = f"{facts[kind]['vectors']:,}"
        assert re.search(rf"^{re.escape(label)} +{count} +{share:.1f} % ", text, re.M)
    back = 100 * facts["rows"]["gradients_added"] / facts["rows"]["vectors"]
    assert (f"gradients that come back: {back:.1f} %." in text) == (algorithm == "standard")
