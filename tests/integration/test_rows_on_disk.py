"""Where rows do not fit into memory they are on disk: same bits, same bytes, less memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.cli import run_command
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.run_memory import GraphSize, budget_bytes, memory_by_phase
from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError
from retexo_fl.simulation.inline_engine import run_inline
from tests.support.runs import configured, curves_of, model_bytes, train

KEYS: dict[str, Any] = {
    "dataset": "synthetic:nodes=300,degree=8,features=24",
    "clients": 4,
    "layers": 3,
    "hidden": 16,
    "rounds": 3,
}


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"model": "gcn"}, marks=pytest.mark.slow),
        {"model": "sage", "dropout": 0.3, "codec": "fixed", "boundary_plan": "cover"},
        {"model": "gin", "row_bits": 8, "hidden": 32, "dtype": "float64"},
        pytest.param(
            {"model": "sage", "class_weights": "balanced", "links": "wan-50ms"},
            marks=pytest.mark.slow,
        ),
        {"model": "gcn", "basis": "supervised", "basis_rows": "sums", "warm_start": True},
        pytest.param(
            {"model": "sage", "basis": "supervised", "solver": "ridge"}, marks=pytest.mark.slow
        ),
    ],
)
def test_bits_curves_and_bytes_are_those_of_memory(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys = {**KEYS, **keys}
    memory = train(tmp_path / "memory", **keys)
    config = configured(tmp_path / "disk", **keys)
    folder = tmp_path / "rows"
    (folder / "spool").mkdir(parents=True)
    (folder / "left-by-a-killed-run").touch()
    seen: list[set[str]] = []
    run_inline(
        config,
        make_parts(config),
        [lambda _: seen.append({path.name for path in folder.iterdir()})],
        folder=folder,
    )
    assert {"spool", "clients"} in seen
    assert not folder.exists()
    assert model_bytes(tmp_path / "disk") == model_bytes(memory)
    assert curves_of(tmp_path / "disk") == curves_of(memory)
    ledgers = [(run / "ledger.csv").read_text() for run in (memory, tmp_path / "disk")]
    assert ledgers[0] == ledgers[1]


def test_a_run_that_exceeds_its_budget_goes_to_disk_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"dataset": "synthetic:nodes=12000,degree=20,features=64", "clients": 6, "layers": 3}
    keys |= {"hidden": 128, "rounds": 1, "model": "gcn"}
    options = ["--profile", "retexo"]
    options += [word for key, value in keys.items() for word in (f"--{key}", str(value))]
    size = GraphSize.foreseen(make_config(keys))
    assert size is not None
    usual, small = (
        max(memory_by_phase(make_config(keys), size, on_disk=on_disk).values())
        for on_disk in (False, True)
    )
    room = budget_bytes(make_config({**keys, "memory-budget": "400MB"}))
    assert small < room < usual
    assert room == 0.85 * 4e8
    for run, budget in (("memory", "auto"), ("disk", "400MB")):
        out = ["--out", str(tmp_path / run), "--memory-budget", budget]
        assert run_command(["run", *options, *out]) == 0
        said = re.search(r"memory: about .*", capsys.readouterr().err)
        assert said is not None
        assert (" of disk; 340 MB may be planned of memory-budget 400MB" in said[0]) == (
            run == "disk"
        )
    assert model_bytes(tmp_path / "disk") == model_bytes(tmp_path / "memory")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "memory"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), r"memory: stage \d takes about 3\d\d MB with rows on disk; expected .*-budget 365MB"),
        (("--algorithm", "standard"), r"memory: stage 0 takes about [\d.]+ MB; .*-budget 365MB"),
        (("--model", "gat"), r"memory: stage \d takes about [\d.]+ MB; expected .*-budget 365MB"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused_before_work_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    command = ["run", "--dataset", "synthetic:nodes=6000,degree=20,features=64", "--hidden", "128"]
    out = tmp_path / "run"
    command += ["--memory-budget", "365MB", "--out", str(out), *more]
    assert run_command(command) == 2
    assert re.search(said, capsys.readouterr().err)
    assert not out.exists()


def test_a_budget_of_other_engines_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="memory-budget: '4GB' cannot be kept by engine flower"
    ):
        make_config({"memory-budget": "4GB", "engine": "flower"})


@pytest.mark.parametrize("budget", ["4", "0GB", "-1GB", "4 GB", "4TB", "1e3MB"])
def test_a_budget_is_a_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], budget: str
) -> None:
    out = tmp_path / "run"
    assert run_command(["run", "--memory-budget", budget, "--out", str(out)]) == 2
    assert "expected auto, or a size such as 4GB or 500MB" in capsys.readouterr().err
