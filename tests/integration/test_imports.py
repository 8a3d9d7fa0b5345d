"""What a command loads: each of these would be waited for before it says anything."""

from __future__ import annotations

import gc
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import retexo_fl
from retexo_fl.cli.imports import imports_uncollected
from tests.support.commands import ROOT, environment

NOT_NEEDED = (
    "numba",
    "retexo_fl.channels.roster",
    "retexo_fl.methods.predict.script",
    "sklearn",
    "torch._dynamo",
)
SCRIPT = f"""
import sys
from retexo_fl.cli import run_command
keys = "--dataset synthetic:nodes=200,degree=6,features=8 --clients 2 --rounds 1 --hidden 8"
assert run_command(["run", *keys.split(), "--quiet", "--out", sys.argv[1]]) == 0
print([name for name in {NOT_NEEDED} if name in sys.modules])
"""


def last_line_of(script: str, *arguments: str) -> str:
    """Run a script in a process of its own; return the last line that it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    return done.stdout.splitlines()[-1]


def test_run_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    assert last_line_of(SCRIPT, str(tmp_path / "run")) == "[]"


def test_an_agent_without_datagrams_loads_no_compiler_and_before_a_job_no_pytorch() -> None:
    script = (
        "import sys, retexo_fl.agent.process\n"
        "print([name for name in ('numba', 'sklearn', 'torch') if name in sys.modules])\n"
    )
    assert last_line_of(script) == "[]"


LATE_SCRIPT = """
import sys
from retexo_fl.late_modules import _LATE, import_late

import_late()
import scipy.sparse, torch
from retexo_fl.cli import run_command

def executed():
    return sorted(name for name in _LATE if type(sys.modules[name]).__name__ == "module")

keys = "--dataset synthetic:nodes=200,degree=6,features=8 --clients 2 --rounds 1 --hidden 8"
assert run_command(["run", *keys.split(), "--quiet", "--out", sys.argv[1]]) == 0
unused = executed()
import numpy
from numpy.polynomial import Polynomial
import torch.distributions.normal
assert Polynomial([1, 2])(3) == 7
numpy.testing.assert_array_equal(numpy.ones(2), [1, 1])
assert torch.distributions.Normal(0.0, 1.0).variance == 1
assert torch.distributions.__spec__.loader is torch.distributions.__loader__
print(unused, executed())
"""


def test_a_training_executes_no_late_module_and_each_is_there_for_whoever_uses_it(
    tmp_path: Path,
) -> None:
    used = ["numpy.polynomial", "numpy.testing", "torch.distributions"]
    assert last_line_of(LATE_SCRIPT, str(tmp_path / "run")) == f"[] {used}"


RUN_AGENT_SCRIPT = """
import sys
from types import SimpleNamespace
from retexo_fl.cli import run_command

def run_agent(settings):
    import httpx, scipy.sparse
    print([type(sys.modules[name]).__name__ for name in ("numpy.f2py", "httpx._main")])

sys.modules["retexo_fl.agent.process"] = SimpleNamespace(run_agent=run_agent)
assert run_command(["agent", "run", "--config", sys.argv[1]]) == 0
"""


def test_an_agent_imports_late_what_it_does_not_use(tmp_path: Path) -> None:
    settings = tmp_path / "agent.toml"
    names = ("partition", "socket", "key", "certificate", "roster", "state")
    settings.write_text("listen = []\n" + "".join(f'{name} = "{name}"\n' for name in names))
    assert last_line_of(RUN_AGENT_SCRIPT, str(settings)) == "['_LateModule', 'NoneType']"


@pytest.mark.parametrize(
    ("option", "not_needed"),
    [
        ("--version", ("asyncio", "importlib.metadata", "retexo_fl.config", "rich")),
        ("--help", ("flwr", "numpy", "retexo_fl.graph", "torch")),
    ],
)
def test_words_about_the_command_load_nothing_that_trains(
    option: str, not_needed: tuple[str, ...]
) -> None:
    script = (
        "import sys\n"
        "from retexo_fl.cli import run_command\n"
        f"assert run_command([{option!r}]) == 0\n"
        f"print([name for name in {not_needed} if name in sys.modules])\n"
    )
    assert last_line_of(script) == "[]"


def test_version_is_the_same_in_both_places() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert retexo_fl.__version__ == project["version"]


def test_collector_leaves_alone_what_was_imported() -> None:
    before = gc.get_freeze_count()
    try:
        with imports_uncollected():
            kept = [[] for _ in range(10_000)]  # type: ignore[var-annotated]
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(kept)
    finally:
        gc.unfreeze()
