"""The examples of docs/your-own-graph.md, own-parts.md and data-sets.md do what these say."""

from __future__ import annotations

import csv
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from retexo_fl.graph import open_partition
from retexo_fl.graph.sources.named.table import NAMED
from retexo_fl.graph.sources.synthetic import SyntheticSpec
from tests.support.cli import CommandLine
from tests.support.commands import ROOT

DOCS = ROOT / "docs"


#: What is said of a test that counts nodes which trained the model.
CAUTION = "without a split all labelled nodes count, also any that trained this model\n"


def test_guide_makes_parts_of_its_tables_and_trains(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "own-parts.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    tables = [content for kind, content in blocks if kind == "csv"]
    names = re.findall(r"`((?:north|south)-\w+\.csv)`", text)
    assert len(tables) == len(names) == 6
    for name, content in zip(names, tables, strict=True):
        Path(name).write_text(content)
    (peers,) = (content for kind, content in blocks if kind == "toml")
    Path("peers.toml").write_text(peers)
    retexo = CommandLine(capfd)
    commands = [line for kind, content in blocks if kind == "sh" for line in content.splitlines()]
    assert len(commands) == 4
    for command in commands:
        assert command.startswith("retexo ")
        retexo.done(*shlex.split(command)[1:])
    north = open_partition(Path("parts/part-0"))
    assert north.node_keys.tolist() == [b"ann", b"bob", b"cid"]
    assert north.boundary_keys.tolist() == [b"dan", b"eve"]
    assert Path("runs/own/result.json").is_file()


def test_guide_trains_on_whole_graphs(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    guide = (DOCS / "your-own-graph.md").read_text(encoding="utf-8")
    text = guide.partition("## CSV files")[2].partition("\n## Tables")[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    tables = [content for kind, content in blocks if kind == "csv"]
    for name, content in zip(("nodes.csv", "edges.csv", "pets.csv"), tables, strict=True):
        Path(name).write_text(content)
    (module,) = (text for kind, text in blocks if kind == "python" and text.startswith("# "))
    Path(module.splitlines()[0].removeprefix("# ")).write_text(module)
    retexo = CommandLine(capfd)
    commands = [line for kind, content in blocks if kind == "sh" for line in content.splitlines()]
    assert len(commands) == 6
    for command in commands:
        retexo.done(*shlex.split(command)[1:])
    assert _classes(Path("predicted/predictions-0.csv")) <= {"0", "1"}
    assert _classes(Path("pets/predictions-0.csv")) <= {"cat", "dog"}
    again = ("predict", "runs/tables", "--nodes", "nodes.csv", "--edges", "edges.csv")
    assert CAUTION in retexo.done(*again, "--out", "again", "--quiet")
    east, west = (open_partition(Path("sites") / f"part-{client}") for client in range(2))
    assert east.node_keys.tolist() == [b"dan", b"eve", b"fay"]
    assert west.node_keys.tolist() == [b"ann", b"bob", b"cid"]
    result = json.loads(Path("runs/clubs/result.json").read_text())
    assert (result["dataset"], result["clients"]) == ("clubs:karate", 2)


def test_guide_trains_and_predicts_a_pyg_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch_geometric")
    monkeypatch.chdir(tmp_path)
    guide = (DOCS / "your-own-graph.md").read_text(encoding="utf-8")
    text = guide.partition("## PyG `Data`")[2].partition("\n## ")[0]
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    labels, ends = torch.arange(120) % 3, torch.arange(120)
    given: dict[str, Any] = {
        "features": torch.nn.functional.one_hot(labels, 5).float(),
        "edges": torch.stack([ends, (ends + 3) % 120]),
        "labels": labels,
    }
    exec(compile(example, "your-own-graph.md", "exec"), given)  # noqa: S102 - our own example
    # Of one client, rows are in the order of `data`.
    assert list(given["class_of"]) == [*range(120)]
    right = [given["class_of"][node] == label for node, label in enumerate(labels.tolist())]
    told = given["predictions"].summary["labelled"]["test"]
    assert (sum(right), 120) == (told["right"], told["nodes"])
    assert given["run"].result.test_accuracy > 0.9


def _classes(predictions: Path) -> set[str]:
    with predictions.open(newline="") as file:
        return {row["class"] for row in csv.DictReader(file)}


def test_guide_trains_on_directed_transfers(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    guide = (DOCS / "your-own-graph.md").read_text(encoding="utf-8")
    text = guide.partition("## Directions")[2].partition("\n## ")[0]
    (command,) = re.findall(r"^```sh\n(.*)\n```$", text, re.MULTILINE)
    nodes = [f"n{at},{at % 2},{at % 7}" for at in range(60)]
    Path("nodes.csv").write_text("\n".join(["key,label,x0", *nodes, ""]))
    # Loops, repeated transfers and some in both directions, as accounts have them.
    transfers = [f"n{at % 60},n{at * at % 59}" for at in range(300)]
    Path("transfers.csv").write_text("\n".join(["source,target", *transfers, ""]))
    CommandLine(capfd).done(*shlex.split(command)[1:], "--rounds", "3", "--quiet")
    assert json.loads(Path("runs/transfers/result.json").read_text())["model"] == "dir-sage"


def test_guide_trains_on_a_synthetic_graph(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    guide = (DOCS / "data-sets.md").read_text(encoding="utf-8")
    text = guide.partition("## Synthetic graphs")[2].partition("\n## ")[0]
    (command,) = re.findall(r"^```sh\n(.*)\n```$", text, re.MULTILINE)
    CommandLine(capfd).done(*shlex.split(command)[1:])
    assert Path("runs/synthetic/result.json").is_file()


def test_guide_lists_the_parameters_and_the_public_data_sets() -> None:
    text = (DOCS / "data-sets.md").read_text(encoding="utf-8")
    public, _, synthetic = text.partition("## Synthetic graphs")
    assert [name for name in NAMED if f"`{name}`" not in public] == []
    words = set(re.findall(r"`(\w+)`", synthetic))
    assert {field.name for field in fields(SyntheticSpec)} <= words
