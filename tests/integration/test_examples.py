"""The scripts in examples/ as a user starts them, on graphs that they make themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import pytest

from tests.support.cli import environment
from tests.support.commands import ROOT

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
        timeout=120,
        check=False,
    )


def lines_of(*arguments: str) -> list[str]:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def losses(lines: Sequence[str]) -> list[float]:
    found = [re.match(r"epoch \d+: loss (\d+\.\d+), ", line) for line in lines[1:]]
    return [float(match[1]) for match in found if match]


def test_plain_module_learns_on_two_worker_processes() -> None:
    lines = lines_of(*PLAIN, *SMALL, "--devices", "cpu:2")
    assert lines[0] == "devices: training on cpu:2"
    first, last = losses(lines)
    assert last < first
    shares = re.search(r"next shares (\d\.\d+)/(\d\.\d+)$", lines[-1])
    assert shares
    assert float(shares[1]) + float(shares[2]) == pytest.approx(1, abs=0.011)


@pytest.mark.system
def test_plain_module_learns_the_same_on_one_device_and_on_two() -> None:
    one = losses(lines_of(*PLAIN, *SMALL, "--devices", "cpu"))
    two = losses(lines_of(*PLAIN, *SMALL, "--devices", "cpu:2"))
    assert two == pytest.approx(one, abs=2e-4)


@needs_pyg
def test_layers_of_pyg_learn_where_the_gpu_may_be_absent() -> None:
    lines = lines_of(*PYG, "--devices", "cuda:0,cpu")
    assert lines[0].startswith("devices: ")
    first, last = losses(lines)
    assert last < first


@needs_pyg
@pytest.mark.system
def test_layers_of_pyg_learn_the_same_on_one_device_and_on_two() -> None:
    one = losses(lines_of(*PYG, "--devices", "cpu"))
    two = losses(lines_of(*PYG, "--devices", "cpu:2"))
    assert two == pytest.approx(one, abs=2e-4)


@pytest.mark.system
def test_without_pyg_one_line_says_what_to_install() -> None:
    done = run("-c", WITHOUT_PYG)
    assert done.returncode == 1
    assert done.stderr == "PyTorch Geometric is not installed: pip install torch_geometric\n"
