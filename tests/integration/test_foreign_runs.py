"""A run directory that somebody else has written: what is read of it, and that nothing is run."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from retexo_fl import Run
from retexo_fl.errors import PluginError
from retexo_fl.federation.checkpoints import read_checkpoint, write_checkpoint
from retexo_fl.federation.trained_model import read_trained_model
from tests.support.cli import CommandLine
from tests.support.predictions import SMALL, cut, files_in, summary_of, write_small
from tests.support.runs import train

#: A program, and an extension: importing it leaves a file where it is run.
SPY = """
from pathlib import Path
from retexo_fl.layers.sage import SageLayer
from torch.nn.functional import cross_entropy

Path("imported").touch()

class Layer(SageLayer):
    pass

def loss(logits, labels):
    return cross_entropy(logits, labels, reduction="sum")
"""


@pytest.fixture
def retexo(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CommandLine]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # Processes of Flower are started elsewhere.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "spy.py").write_text(SPY)
    yield CommandLine(capfd)
    sys.modules.pop("spy", None)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run on a small graph, over 2 clients whose parts lie in ``parts``."""
    write_small(tmp_path / "small.npz")
    keys = {**SMALL, "data_dir": tmp_path, "clients": 2}
    cut(tmp_path / "parts", **keys)
    return train(tmp_path / "run", **keys, rounds=2, hidden=4)


def rewritten(run: Path, **keys: str) -> None:
    """Have a run's configuration say something else."""
    path = run / "config.toml"
    values = tomllib.loads(path.read_text()) | keys
    path.write_text(tomli_w.dumps(values))


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("model", "spy:Layer"),
        ("loss", "spy:loss"),
        ("metric", "spy:Metric"),
        ("model", "os:fork"),
        ("loss", "builtins:breakpoint"),
    ],
)
def test_predict_imports_nothing_that_a_run_directory_names(
    tmp_path: Path, retexo: CommandLine, run: Path, key: str, name: str
) -> None:
    rewritten(run, **{key: name})
    told = retexo.refused("predict", "run", "--partitions", "parts")
    assert told.startswith(f"run/config.toml: names plug-ins ({key} {name!r}), ")
    assert "expected none, or --allow-plugins" in told
    assert not (tmp_path / "imported").exists()
    assert not list((tmp_path / "parts").glob("predictions*"))
    with pytest.raises(PluginError, match=f"{key} '{name}'"):
        read_trained_model(run)


@pytest.mark.parametrize("engine", ["inline", pytest.param("flower", marks=pytest.mark.slow)])
def test_predict_imports_what_its_user_allows(
    tmp_path: Path, retexo: CommandLine, run: Path, engine: str
) -> None:
    retexo.done("predict", "run", "--partitions", "parts", "--out", "before")
    rewritten(run, model="spy:Layer", loss="spy:loss")
    more = ("--engine", engine, "--allow-plugins", "--out", "after")
    ended = retexo("predict", "run", "--partitions", "parts", *more)
    assert ended.code == 0, ended.err
    assert [line for line in ended.err.splitlines() if line.startswith("exchange ")]
    assert (tmp_path / "imported").exists()
    before, after = files_in(tmp_path / "before"), files_in(tmp_path / "after")
    assert before.pop("predictions.json") != after.pop("predictions.json")
    assert before == after
    one, other = summary_of(tmp_path / "before"), summary_of(tmp_path / "after")
    assert (one["engine"], other["engine"]) == ("inline", engine)
    for measure in ("raw", "payload"):
        for kind in ("boundary", "weights_down"):
            assert one["bytes"][measure][kind] == other["bytes"][measure][kind]
    for name in ("labelled", "files"):
        assert one[name] == other[name]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("dataset", "spy:graph"),
        ("partitioner", "spy:cut"),
        ("split", "spy:split"),
        ("aggregator", "spy:Mean"),
        ("model", "spy:Layer"),
        ("loss", "builtins:breakpoint"),
        ("metric", "spy:Metric"),
    ],
)
def test_resume_imports_nothing_that_a_run_directory_names(
    tmp_path: Path, retexo: CommandLine, run: Path, key: str, name: str
) -> None:
    """A directory that holds together: its checkpoint says the same."""
    (run / "result.json").unlink()
    rewritten(run, **{key: name})
    path = run / "checkpoint.safetensors"
    checkpoint = read_checkpoint(path)
    checkpoint.facts["config"][key] = name
    write_checkpoint(path, checkpoint)
    told = retexo.refused("run", "--resume", "run")
    assert told.startswith(f"{tmp_path}/run/config.toml: names plug-ins ({key} {name!r}), ")
    assert "expected none, or --allow-plugins" in told
    with pytest.raises(PluginError, match="expected none, or allow_plugins=True"):
        Run.open(run).resume()
    assert not (tmp_path / "imported").exists()


def test_resume_imports_what_its_user_allows(tmp_path: Path, retexo: CommandLine) -> None:
    """The line that says how to go on has all that it takes."""
    broken = "[][0] if len(calls) > 30 else calls.append(0)\n    return cross"
    (tmp_path / "spy.py").write_text("calls = []\n" + SPY.replace("return cross", broken))
    keys = {"clients": "2", "rounds": "20", "hidden": "4", "partitioner": "random"}
    words = [f"--{key}={value}" for key, value in keys.items()]
    ended = retexo("run", "--quiet", "--loss=spy:loss", *words, "--out", "run")
    assert ended.code == 1
    assert f"go on with: retexo run --resume {tmp_path}/run --allow-plugins" in ended.err
    sys.modules.pop("spy")
    (tmp_path / "spy.py").write_text(SPY)
    retexo.done("run", "--quiet", "--resume", "run", "--allow-plugins")
    assert (tmp_path / "run" / "result.json").exists()
    told = retexo.refused("run", "--allow-plugins", *words)
    assert told == "allow-plugins: expected --resume RUN with it"


def test_keys_that_an_inference_does_not_read_are_not_imported(
    tmp_path: Path, retexo: CommandLine, run: Path
) -> None:
    names = {"dataset": "spy:graph", "split": "spy:split", "partitioner": "spy:cut"}
    rewritten(run, **names, aggregator="spy:Mean")
    retexo.done("predict", "run", "--partitions", "parts")
    assert not (tmp_path / "imported").exists()


def test_report_imports_nothing(tmp_path: Path, retexo: CommandLine, run: Path) -> None:
    names = {"dataset": "spy:graph", "split": "spy:split", "aggregator": "spy:Mean"}
    rewritten(run, **names, model="spy:Layer", loss="spy:loss", metric="spy:Metric")
    retexo.done("report", "run")
    assert "spy:Layer" in (run / "report.html").read_text()
    assert not (tmp_path / "imported").exists()
