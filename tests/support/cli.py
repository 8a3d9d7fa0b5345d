"""The command line as a user meets it, in this process or in one of its own; and small graphs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.cli import run_command

#: A training that takes a second.
TINY = ("--rounds", "2", "--hidden", "8", "--quiet")
#: The command in a process of its own.
PROGRAM = (sys.executable, "-m", "retexo_fl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Runs commands in this process."""

    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> Ended:
        """Run ``retexo ARGUMENTS``."""
        self.capture.readouterr()
        code = run_command([str(argument) for argument in arguments])
        captured = self.capture.readouterr()
        return Ended(code=code, out=captured.out, err=captured.err)

    def refused(self, *arguments: str | Path, code: int = 2) -> str:
        """Run a command that must end in one line, and return its sentence."""
        return sentence(self(*arguments), code=code)

    def problems(self, *arguments: str | Path) -> list[str]:
        """Run a command that must end with the problems of a table, and return them."""
        ended = self(*arguments)
        assert ended.code == 2, ended
        assert ended.out == ""
        lines = ended.err.splitlines()
        assert all(line.startswith("retexo: error: ") for line in lines), ended.err
        return [line.removeprefix("retexo: error: ") for line in lines]

    def done(self, *arguments: str | Path) -> str:
        """Run a command that must succeed, and return its standard output."""
        ended = self(*arguments)
        assert ended.code == 0, ended.err
        return ended.out


def sentence(ended: Ended, *, code: int) -> str:
    """Return the one line that a refused command left on standard error."""
    lines = ended.err.splitlines()
    assert ended.code == code, ended
    assert len(lines) == 1, ended.err
    assert ended.out == ""
    head, _, text = lines[0].partition("retexo: error: ")
    assert head == ""
    assert len(text) > 10
    assert "Traceback" not in text
    return text


def environment() -> dict[str, str]:
    """Return the variables for a command in a process of its own."""
    return os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80"}


def path_graph(nodes: int = 12) -> dict[str, np.ndarray]:
    """Return the arrays of a path of nodes with two classes, as a ``.npz`` data set holds them."""
    ends = np.arange(nodes - 1, dtype=np.int32)
    labels = (np.arange(nodes) % 2).astype(np.int16)
    features = np.zeros((nodes, 3), dtype=np.float32)
    features[np.arange(nodes), labels] = 1.0
    features[:, 2] = np.arange(nodes)
    return {"edge_index": np.stack((ends, ends + 1)), "y": labels, "x": features}


def write_graph(folder: Path, **arrays: np.ndarray) -> Path:
    """Write a path graph with some arrays changed as ``small.npz``, and return its folder."""
    folder.mkdir(exist_ok=True)
    np.savez(folder / "small.npz", **{**path_graph(), **arrays})  # type: ignore[arg-type]
    return folder
