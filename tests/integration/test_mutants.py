"""A change of a copy is what the copy's tests run, also in the programs that they start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.guards import INTEGRATION, integration_tests
from tests.mutants.places import mutants_of
from tests.mutants.trial import passes
from tests.support.commands import ROOT, copy_tree, environment

#: Reads what an agent's process says, not what this process would.
READING = """
from pathlib import Path

from tests.support.agents import agents
from tests.support.runs import make_parts
from retexo_fl.config import make_config


def test_an_agent(tmp_path: Path) -> None:
    with agents(tmp_path, make_parts(make_config({"clients": 2})), start=False) as made:
        made[0].start()
        assert made[0].status()["uptime_s"] < 3600
"""


@pytest.mark.system
def test_an_agents_process_runs_the_changed_copy(tmp_path: Path) -> None:
    copy = copy_tree(tmp_path)
    test = copy / "tests" / "unit" / "test_reading.py"
    test.write_text(READING, encoding="utf-8")
    assert passes(copy, [test])
    places = mutants_of(copy / "retexo_fl" / "agent" / "status.py", copy)
    (mutant,) = [place for place in places if place.after == "(now + started_at)"]
    (copy / mutant.path).write_text(mutant.source, encoding="utf-8")
    assert not passes(copy, [test])


def test_a_copy_stays_on_the_path_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere:{ROOT}")
    assert environment()["PYTHONPATH"] == str(ROOT)
    assert environment({"PYTHONPATH": "/own"})["PYTHONPATH"] == f"{ROOT}:/own"
    assert "PYTHONPATH" not in environment(runs_this_checkout=False)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert "PYTHONPATH" not in environment()


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("LIMIT = 60 * 2.0", {"LIMIT = (2 * (60 * 2.0) + 1)"}),
        ("if a < 7: stop(a)", {"if (a <= 7): stop(a)", "if a < (8): stop(a)", "if a < 7: pass"}),
        ("if known: raise E(1 < 2)", {"if (not (known)): raise E(1 < 2)", "if known: pass"}),
        ("b = f(1.5, x=a)", {"b = (f(1.5))", "b = f((4.0), x=a)"}),
        ("b = c if a else d", {"b = (d if a else c)"}),
        ("b = not a", {"b = (a)"}),
        ("b = a and c", {"b = (a or c)"}),
        ("b += a", {"b = a"}),
        ("b = a // c", {"b = (a * c)"}),
    ],
)
def test_what_is_changed(tmp_path: Path, line: str, changed: set[str]) -> None:
    module, indent = tmp_path / "module.py", "" if line[0].isupper() else "    "
    module.write_text(f"def f(a):\n    pass\n{indent}{line}\n", encoding="utf-8")
    found = {mutant.source.splitlines()[2].strip() for mutant in mutants_of(module, tmp_path)}
    assert found == changed


def is_there(room: str) -> bool:
    return (ROOT / "retexo_fl" / room).is_dir()


# An addition may have been deleted, with its tests.
@pytest.mark.parametrize(
    "room", [room for room in INTEGRATION if is_there(room) or not room.startswith("additions/")]
)
def test_the_tests_that_guard_a_room_are_there(room: str) -> None:
    assert is_there(room)
    for pattern in INTEGRATION[room]:
        assert integration_tests(room, ROOT), pattern
