"""Which tests have to notice a change of a module."""

from __future__ import annotations

from pathlib import Path
from typing import Final

GRID: Final = "test_recorded_grid.py"
#: By room, the integration tests that a change there is tried with, beside the unit tests.
INTEGRATION: Final = {
    "additions/bluetooth": ("test_agent_bluetooth.py",),
    "additions/devices": (GRID, "test_devices.py", "test_unified_training.py"),
    "additions/kernel_path": ("test_agent_datagrams.py",),
    "agent": (
        "test_refusals.py",
        "test_agent_*.py",
        "test_peer_network.py",
        "test_predict_in_place.py",
    ),
    "api": (
        "test_python_*.py",
        "test_sweep.py",
        "test_predict.py",
        "test_plan_*.py",
        "test_loggers.py",
    ),
    "channels": ("test_tcp_channel.py", "test_peer_network.py", "test_peer_attacks.py"),
    "cli": ("test_cli_*.py", "test_sweep.py", "test_predict.py", "test_features.py"),
    "client": (
        GRID,
        "test_refusals.py",
        "test_masked_*.py",
        "test_rows_on_disk.py",
        "test_false_answers.py",
    ),
    "config": (GRID, "test_cli_options.py", "test_profiles.py"),
    "doctor": ("test_doctor.py",),
    "exchange": (GRID, "test_codecs.py", "test_links.py"),
    "federation": (
        GRID,
        "test_composition.py",
        "test_resume.py",
        "test_masked_training.py",
        "test_strategy.py",
    ),
    "graph": (GRID, "test_features.py", "test_shared_recipe.py", "test_masked_recipe.py"),
    "layers": (GRID, "test_invariance.py", "test_edge_invariance.py"),
    "masking": ("test_refusals.py", "test_masked_*.py"),
    "progress": ("test_steps_said.py",),
    "report": ("test_cli_run.py",),
    "run_log": ("test_cli_json.py", "test_resume.py"),
    "simulation": (GRID, "test_traffic.py"),
    "training": (GRID, "test_link_prediction.py", "test_tasks.py", "test_one_shot.py"),
    "updates": (GRID, "test_few_bits.py", "test_masked_training.py"),
}


def steps_of(path: Path, root: Path) -> list[tuple[str, list[Path]]]:
    """Return the tests that guard a module, those that fail soonest first.

    Args:
        path: The module, from the folder that holds the package.
        root: That folder.
    """
    module = ".".join(path.with_suffix("").parts)
    package, _, name = module.rpartition(".")
    named = (f"{module} import", f"import {module}", f"from {package} import {name}", f"{module}.")
    # Each addition is a room of its own.
    room = Path(*path.parts[1 : 3 if path.parts[1] == "additions" else 2])
    unit = root / "tests" / "unit"
    importing = [
        test
        for test in sorted(unit.rglob("test_*.py"))
        if any(words in test.read_text(encoding="utf-8") for words in named)
    ]
    of_room = [test for test in sorted((unit / room).rglob("test_*.py")) if test not in importing]
    return [
        ("module", importing),
        ("room", of_room),
        ("together", integration_tests(str(room), root)),
    ]


def integration_tests(room: str, root: Path) -> list[Path]:
    """Return the integration tests of a room, in the order of its patterns."""
    folder = root / "tests" / "integration"
    return [test for pattern in INTEGRATION.get(room, ()) for test in sorted(folder.glob(pattern))]
