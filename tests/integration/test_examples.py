"""The scripts in examples/ as a user starts them, on graphs that they make themselves."""

from __future__ import annotations

import csv
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest

from tests.support.cli import CommandLine, environment
from tests.support.commands import ROOT

BRANCHES = ("north", "south", "west")
PLAIN = ("examples/unified_training.py", "--epochs", "2", "--batch-size", "128")
SMALL = ("--dataset", "synthetic:nodes=1000,edges=5000,classes=4")
PYG = ("examples/unified_pyg.py", "--epochs", "2", "--nodes", "400", "--batch-size", "64")
needs_pyg = pytest.mark.skipif(
    find_spec("torch_geometric") is None,
    reason="PyTorch Geometric is not installed: pip install torch_geometric",
)
#: As if it were not installed.
WITHOUT_PYG = """
import runpy, sys
sys.modules["torch_geometric"] = None
runpy.run_path("examples/unified_pyg.py", run_name="__main__")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def lines_of(*arguments: str) -> list[str]:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def losses(lines: Sequence[str]) -> list[float]:
    found = [re.match(r"epoch \d+: loss (\d+\.\d+), ", line) for line in lines[1:]]
    return [float(match[1]) for match in found if match]


@pytest.mark.slow
def test_plain_module_learns_the_same_on_one_device_and_on_two(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, *options = PLAIN
    monkeypatch.setattr(sys, "argv", [script, *options, *SMALL, "--devices", "cpu"])
    runpy.run_path(str(ROOT / script), run_name="__main__")
    one = losses(capsys.readouterr().out.splitlines())
    lines = lines_of(*PLAIN, *SMALL, "--devices", "cpu:2")
    assert lines[0] == "devices: training on cpu:2"
    first, last = two = losses(lines)
    assert last < first
    assert two == pytest.approx(one, abs=2e-4)
    shares = re.search(r"next shares (\d\.\d+)/(\d\.\d+)$", lines[-1])
    assert shares
    assert float(shares[1]) + float(shares[2]) == pytest.approx(1, abs=0.011)


@needs_pyg
@pytest.mark.system
def test_layers_of_pyg_learn_where_the_gpu_may_be_absent() -> None:
    lines = lines_of(*PYG, "--devices", "cuda:0,cpu")
    assert lines[0].startswith("devices: ")
    first, last = losses(lines)
    assert last < first


@needs_pyg
@pytest.mark.slow
def test_layers_of_pyg_learn_the_same_on_two_devices() -> None:
    one, two = (losses(lines_of(*PYG, "--devices", name)) for name in ("cpu", "cpu:2"))
    assert two == pytest.approx(one, abs=2e-4)


@pytest.mark.system
def test_without_pyg_one_line_says_what_to_install() -> None:
    done = run("-c", WITHOUT_PYG)
    assert done.returncode == 1
    assert done.stderr == "PyTorch Geometric is not installed: pip install torch_geometric\n"


# ---- a bank -------------------------------------------------------------------------------------

BANK = ("examples/fraud/make_bank.py", "--accounts", "800", "--transfers", "3200")
FRAUD = ROOT / "examples" / "fraud" / "README.md"


def test_bank_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    for out, seed in (("one", "3"), ("two", "3"), ("other", "4")):
        told = lines_of(*BANK, "--seed", seed, "--out", str(tmp_path / out))
        assert told[0].startswith("800 accounts (8 of 800 labelled ones are fraud), 3,200 transf")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    for name in names:
        content = (tmp_path / "one" / name).read_bytes()
        assert content == (tmp_path / "two" / name).read_bytes()
        assert content != (tmp_path / "other" / name).read_bytes()
    transfers = _rows(tmp_path / "one" / "transfers.csv")
    pairs = {(row["source"], row["target"]) for row in transfers}
    # Directed and repeated, and at the branches what is in all.
    assert len(pairs) < len(transfers) == 3200
    inner = [_rows(tmp_path / "one" / f"{name}-transfers.csv") for name in BRANCHES]
    boundary = [_rows(tmp_path / "one" / f"{name}-boundary.csv") for name in BRANCHES]
    assert sum(map(len, inner)) + sum(map(len, boundary)) // 2 == 3200
    assert any((two, one) in pairs for one, two in pairs)
    accounts = _rows(tmp_path / "one" / "accounts.csv")
    branches = [_rows(tmp_path / "one" / f"{name}-accounts.csv") for name in BRANCHES]
    assert sorted(chain(*branches), key=lambda row: row["account"]) == accounts
    assert any(not row["age"] for row in accounts)
    done = run(*BANK, "--out", str(tmp_path / "one"))
    assert done.returncode == 2
    assert "one exists; expected a new folder" in done.stderr


def test_bank_with_types_has_the_same_accounts_and_other_mules(tmp_path: Path) -> None:
    lines_of(*BANK, "--out", str(tmp_path / "plain"))
    for out in ("one", "two"):
        (told,) = lines_of(*BANK, "--typed", "--out", str(tmp_path / out))
    assert " devices (uses: " in told
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == [
        f"{name}.csv" for name in ("accounts", "devices", "merchants", "pays", "transfers", "uses")
    ]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    accounts, plain = (_rows(tmp_path / name / "accounts.csv") for name in ("one", "plain"))
    assert [{**row, "account": row["key"]} for row in accounts] == [
        {**row, "key": row["account"]} for row in plain
    ]
    # Half of the mules trade with no shell company, and pay instead.
    keys = {row["key"] for row in accounts}
    for edges, nodes in (("uses", "devices"), ("pays", "merchants")):
        known = {row["key"] for row in _rows(tmp_path / "one" / f"{nodes}.csv")}
        rows = _rows(tmp_path / "one" / f"{edges}.csv")
        assert {row["source"] for row in rows} <= keys
        assert {row["target"] for row in rows} <= known
    uses = [(row["source"], row["target"]) for row in _rows(tmp_path / "one" / "uses.csv")]
    assert len(set(uses)) == len(uses)
    done = run(*BANK, "--typed", "--out", str(tmp_path / "one"), "--overwrite")
    assert done.returncode == 0, done.stderr


def test_labels_of_a_share_of_the_bank(tmp_path: Path) -> None:
    lines_of(*BANK, "--labelled", "0.05", "--out", str(tmp_path / "bank"))
    labels = [row["fraud"] for row in _rows(tmp_path / "bank" / "accounts.csv")]
    assert 20 <= sum(map(bool, labels)) <= 60


def test_commands_of_the_bank_lead_from_tables_to_predictions(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FRAUD.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    commands = [shlex.split(line) for block in blocks for line in block.splitlines()]
    lines_of(*BANK, "--out", str(tmp_path / "bank"))
    monkeypatch.chdir(tmp_path)
    retexo = CommandLine(capfd)
    done, told = set(), ""
    for command in commands:
        if command[0] == "python":
            assert command == ["python", BANK[0], "--out", "bank"]
            continue
        assert command[0] == "retexo"
        if command[1:3] == ["partition", "local"] and not Path("peers.toml").exists():
            Path("peers.toml").write_text(_peers(text, told))
        short = ("--rounds", "2", "--quiet") if command[1] == "run" else ()
        told = retexo.done(*command[1:], *short)
        done.add(command[1])
    assert done == {"run", "report", "predict", "features", "partition"}
    retexo.done(
        *("features", "fit", "bank/accounts.csv", "--key-column", "account"),
        *("--label-column", "fraud", "--drop", "branch", "--out", "whole.toml"),
    )
    assert Path("whole.toml").read_bytes() == Path("recipe.toml").read_bytes()
    predicted = _rows(Path("predicted/predictions-0.csv"))
    assert len(predicted) == 800
    assert list(predicted[0]) == ["key", "class", "p_no", "p_yes"]
    assert sum(len(_rows(path)) for path in Path("parts").glob("predictions-*.csv")) == 800


def _peers(text: str, told: str) -> str:
    """Return the guide's peers file with the width of the smaller bank's recipe."""
    (peers,) = re.findall(r"^```toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (width,) = re.findall(r"features = (\d+)", told)
    return str(re.sub(r"features = \d+", f"features = {width}", peers))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
