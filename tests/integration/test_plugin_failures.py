"""What a plug-in raises ends in one line, which names the line of the plug-in's own file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import RetexoError
from tests.support.agents import agents, train_with
from tests.support.cli import CommandLine
from tests.support.commands import ROOT
from tests.support.runs import configured

#: Each fails in the function `_broken`, in its second line.
OWN = """\
from retexo_fl.layers.sage import SageLayer
from retexo_fl.training.metrics import Metric


def _broken(where):
    raise ValueError(f"{where} of 17")


def loss(logits, labels):
    _broken("loss")


def cut(graph, clients, seed):
    _broken("cut")


def split(graph, assignment, seed):
    _broken("split")


class Layer(SageLayer):
    def forward(self, *arguments, **others):
        _broken("layer")


class Score(Metric):
    def sums(self, logits, labels):
        return logits.sum(0)

    def value(self, totals):
        _broken("score")


class Mean:
    needs = "sum"

    def start(self, begun):
        self.total = 0

    def add(self, client, update_sum, count):
        self.total = self.total + update_sum

    def finish(self):
        _broken("mean")
"""
PLACE = "(own_broken.py:6, in _broken)"
SMALL = {"clients": 2, "rounds": 2, "hidden": 8, "profile": "retexo"}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_broken.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_broken", None)


def failed(capture: pytest.CaptureFixture[str], **keys: object) -> tuple[int, str]:
    options = [f"--{key}={value}" for key, value in (SMALL | keys).items()]
    ended = CommandLine(capture)("run", *options, "--quiet", "--out", "run")
    (line,) = ended.err.splitlines()
    return ended.code, line


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("key", "name", "kind"),
    [
        ("loss", "loss", "client 0: loss"),
        ("model", "Layer", "client 0: layer"),
        ("metric", "Score", "metric"),
        ("aggregator", "Mean", "aggregator"),
    ],
)
def test_exception_in_a_round_can_be_resumed_from(
    capfd: pytest.CaptureFixture[str], key: str, name: str, kind: str
) -> None:
    code, line = failed(capfd, **{key: f"own_broken:{name}"})
    says = f"{kind} 'own_broken:{name}': ValueError: {name.lower()} of 17 {PLACE}"
    assert line.startswith(f"retexo: error: {says}; ")
    assert code == 1
    assert Path("run/status.json").exists()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("key", "name"), [("partitioner", "cut"), ("split", "split")])
def test_exception_before_a_run_leaves_nothing(
    capfd: pytest.CaptureFixture[str], key: str, name: str
) -> None:
    code, line = failed(capfd, **{key: f"own_broken:{name}"})
    assert line == (f"retexo: error: {key} 'own_broken:{name}': ValueError: {name} of 17 {PLACE}")
    assert code == 2
    assert not Path("run").exists()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("text", "says"),
    [("x = 1\ny = x / 0\n", "ZeroDivisionError: division by zero"), ("x = 1\ny = (\n", "Syntax")],
)
def test_module_that_cannot_be_imported_names_its_line(
    capfd: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    Path("own_broken.py").write_text(text, encoding="utf-8")
    code, line = failed(capfd, loss="own_broken:loss")
    assert says in line
    assert line.endswith("(own_broken.py:2)")
    assert code == 2


@pytest.mark.system
def test_agent_keeps_the_exceptions_text_to_itself(tmp_path: Path) -> None:
    (tmp_path / "own_broken.py").write_text(OWN, encoding="utf-8")
    keys = {key: value for key, value in SMALL.items() if key != "profile"}
    keys |= {"loss": "own_broken:loss"}
    extra = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    parts = make_parts(make_config(keys))
    allowed = {"allow-plugins": ["own_broken:loss"]}
    with (
        agents(tmp_path, parts, settings=allowed, extra=extra) as made,
        pytest.raises(RetexoError) as caught,
    ):
        train_with(made, configured(tmp_path / "run", **keys))
    # Both fail at once, and the run names whichever answer came first.
    named = str(caught.value).removeprefix("client 0: ").removeprefix("client 1: ")
    assert named == f"loss 'own_broken:loss': ValueError {PLACE}"
