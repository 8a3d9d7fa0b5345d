"""The Python blocks of docs/python.md and README print what stands below them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import retexo_fl
from retexo_fl.api.sweeps import sweep_in
from tests.support.cli import environment
from tests.support.commands import ROOT
from tests.support.printed import numbers_of, without_numbers

GUIDE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def blocks(text: str) -> list[tuple[str, str]]:
    """Return the language and the text of each fenced block."""
    found: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.S | re.M)
    return found


def printed(script: str, folder: Path) -> str:
    """Run a script as its user does."""
    (folder / "script.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.system
def test_guide_prints_what_stands_there(tmp_path: Path) -> None:
    found = [(kind, block) for kind, block in blocks(GUIDE) if kind in {"python", "text"}]
    scripts, outputs = found[::2], found[1::2]
    assert [kind for kind, _ in scripts] == ["python"] * len(outputs)
    assert [kind for kind, _ in outputs] == ["text"] * len(outputs)
    mark = "print('====')\n"
    told = printed(mark.join(block for _, block in scripts), tmp_path)
    expected = "====\n".join(block for _, block in outputs)
    assert without_numbers(told) == without_numbers(expected)
    for new, old in zip(numbers_of(told), numbers_of(expected), strict=True):
        decimals = len(old.partition(".")[2])
        # Another machine's arithmetic may change the last decimal by one; counts are exact.
        assert float(new) == pytest.approx(float(old), abs=1.1 * 10**-decimals if decimals else 0)


@pytest.mark.system
def test_readme_trains_in_five_lines(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (script,) = [block for kind, block in blocks(text) if kind == "python"]
    assert len([line for line in script.splitlines() if line]) == 5
    assert printed(script, tmp_path).splitlines()[0].startswith("0.9")


def test_guide_names_what_is_exported_and_fits_a_page() -> None:
    assert len(GUIDE.splitlines()) <= 250
    functions = {name for name in retexo_fl.__all__ if name.islower() and name != "__version__"}
    assert [name for name in sorted(functions) if f"`{name}(" not in GUIDE] == []


def test_guides_sweep_is_six_runs(tmp_path: Path) -> None:
    (text,) = [block for kind, block in blocks(GUIDE) if kind == "toml"]
    assert tomllib.loads(text)["base"]["seed"] == [0, 1, 2]
    (tmp_path / "SWEEP.toml").write_text(text)
    runs = sweep_in(tmp_path / "SWEEP.toml")
    assert [(run["model"], run["seed"]) for run in runs] == [
        (model, seed) for model in ("gcn", "gat") for seed in range(3)
    ]
