"""Samplers of other libraries beside ours: the same graph, fanouts and roots, in turn.

Each library draws in a process of its own (``sampler_process.py``), so that memory is its own and a
library may need another interpreter, which the environment names. What is not installed is left
out, by name.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from retexo_fl.additions.devices.sampling import Adjacency
from tests.bench import sampler_process
from tests.bench.measure import Spread
from tests.bench.outcome import Row

OURS: Final = "retexo_fl"
#: Variables that name the interpreters of other libraries; without them this one.
INTERPRETERS: Final = {"PyG": "BENCH_PYG_PYTHON", "GraphBolt": "BENCH_DGL_PYTHON"}
_REPOSITORY: Final = Path(__file__).resolve().parents[2]
#: Longest time for reading the graph or one mini-batch.
_TIMEOUT_S: Final = 300.0


class Drawer:
    """A process that draws mini-batches with one library.

    Attributes:
        facts: ``versions`` and ``draws``, or ``missing``: why the library cannot be used.
    """

    def __init__(self, library: str, folder: Path) -> None:
        """Start it, and wait until it has read the graph.

        Args:
            library: A name of ``sampler_process.LIBRARIES``.
            folder: With ``indptr.npy`` and ``indices.npy``.
        """
        python = os.environ.get(INTERPRETERS.get(library, ""), sys.executable)
        self._process = subprocess.Popen(
            [python, "-m", sampler_process.__name__, library, str(folder)],
            cwd=_REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._read()

    def __enter__(self) -> Self:
        """Return the process."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def draw(self, draw: str, roots: int) -> Mapping[str, Any]:
        """Draw one mini-batch: ``seconds``, ``nodes``, ``edges``, and ``peak_bytes`` so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"draw": draw, "roots": roots}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _TIMEOUT_S)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self._process.kill()
            raise ChildProcessError(
                f"{self._process.args!r}: ended, or was {_TIMEOUT_S:.0f} s late"
            )
        facts: Mapping[str, Any] = json.loads(line)
        return facts


def beside_libraries(
    adjacency: Adjacency, batches: tuple[int, ...], repeats: int
) -> tuple[list[Row], list[Row], dict[str, str]]:
    """Draw with every library that is there, in turn.

    Returns:
        Ratios, what they were made of, and for each other library its versions or why it is left
        out.
    """
    with tempfile.TemporaryDirectory(prefix="retexo-bench-") as folder, ExitStack() as stack:
        np.save(Path(folder, "indptr.npy"), adjacency.indptr)
        np.save(Path(folder, "indices.npy"), adjacency.indices)
        drawers = {
            library: stack.enter_context(Drawer(library, Path(folder)))
            for library in sampler_process.LIBRARIES
        }
        said = {name: _said(drawers[name]) for name in INTERPRETERS}
        there = {name: one for name, one in drawers.items() if "missing" not in one.facts}
        cases = [
            (name, draw, roots)
            for draw in (sampler_process.NEIGHBOUR, sampler_process.SHADOW, sampler_process.GNS)
            for roots in batches
            for name, drawer in there.items()
            if draw in drawer.facts["draws"]
        ]
        found = _in_turn(there, cases, repeats)
    ratios = [
        row
        for name, draw, roots in cases
        if name in INTERPRETERS
        for row in _ratios(draw, roots, name, found[name, draw, roots], found[OURS, draw, roots])
    ]
    times = [row for case in cases for row in _figures(case, found[case])]
    times += [_peak(name, found) for name in there]
    return ratios, times, said


_Case = tuple[str, str, int]
_Answers = list[Mapping[str, Any]]


def _in_turn(
    drawers: Mapping[str, Drawer], cases: list[_Case], repeats: int
) -> dict[_Case, _Answers]:
    """Draw every case once in each turn, after one turn that warms up."""
    found: dict[_Case, _Answers] = {case: [] for case in cases}
    for turn in range(repeats + 1):
        for case in cases if turn % 2 == 0 else cases[::-1]:
            name, draw, roots = case
            answer = drawers[name].draw(draw, roots)
            if turn:
                found[case].append(answer)
    return found


def _ratios(draw: str, roots: int, name: str, theirs: _Answers, ours: _Answers) -> tuple[Row, Row]:
    pairs = list(zip(theirs, ours, strict=True))
    label = f"{draw}, {roots} roots"
    seconds = [one["seconds"] / other["seconds"] for one, other in pairs]
    rates = [_rate(other) / _rate(one) for one, other in pairs]
    return (
        Row(metric=f"{label}: CPU, {name} / here", unit="x", spread=Spread.of(seconds), target=1.0),
        Row(
            metric=f"{label}: edges a CPU second, here / {name}", unit="x", spread=Spread.of(rates)
        ),
    )


def _figures(case: _Case, answers: _Answers) -> tuple[Row, Row]:
    name, draw, roots = case
    nodes, edges = (round(np.median([one[what] for one in answers])) for what in ("nodes", "edges"))
    milliseconds = Spread.of([1e3 * one["seconds"] for one in answers])
    rates = Spread.of([_rate(one) / 1e6 for one in answers])
    return (
        Row(
            metric=f"{draw}, {roots} roots, {nodes} nodes, {edges} edges: {name}",
            unit="ms",
            spread=milliseconds,
        ),
        Row(metric=f"{draw}, {roots} roots, million edges a second: {name}", unit="", spread=rates),
    )


def _rate(answer: Mapping[str, Any]) -> float:
    return float(answer["edges"] / max(answer["seconds"], 1e-6))


def _peak(name: str, found: Mapping[_Case, _Answers]) -> Row:
    peak = max(one["peak_bytes"] for case in found if case[0] == name for one in found[case]) / 1e9
    spread = Spread(median=peak, low=peak, high=peak, samples=1)
    return Row(metric=f"peak resident memory: {name}", unit="GB", spread=spread)


def _said(drawer: Drawer) -> str:
    if "missing" in drawer.facts:
        return f"left out: {drawer.facts['missing']}"
    return " ".join(f"{name} {version}" for name, version in drawer.facts["versions"].items())
