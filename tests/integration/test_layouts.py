"""Graphs in layouts of others, from the command line: trained on by their path."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import retexo_fl
from tests.support.cli import TINY, CommandLine
from tests.support.layouts import write_heterophilous, write_musae, write_ogb, write_rows
from tests.support.runs import model_bytes
from tests.support.tables import write_table


def config_of(run: Path) -> dict[str, Any]:
    return tomllib.loads((run / "config.toml").read_text())


@pytest.fixture
def retexo(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


def test_a_path_trains_what_the_name_in_its_folder_does(
    tmp_path: Path, retexo: CommandLine
) -> None:
    write_ogb(tmp_path / "ring")
    chosen: list[str] = ["--clients", "2", "--partitioner", "random", *TINY]
    by_path, by_name = tmp_path / "path", tmp_path / "name"
    retexo.done("run", "--dataset", tmp_path / "ring", *chosen, "--out", by_path)
    retexo.done("run", "--dataset=ring", "--data-dir", tmp_path, *chosen, "--out", by_name)
    assert model_bytes(by_path) == model_bytes(by_name)
    # The name and the folder are recorded apart: a run may be resumed where its data has moved.
    config = config_of(by_path)
    assert (config["dataset"], config["data-dir"]) == ("ring", str(tmp_path))
    out = tmp_path / "predicted"
    retexo.done("predict", by_path, "--dataset", tmp_path / "ring", "--out", out)
    assert out.is_dir()
    years = [*chosen[2:], "--partitioner", "attribute:node_year"]
    retexo.done("run", "--dataset", tmp_path / "ring", *years, "--out", tmp_path / "years")
    assert config_of(tmp_path / "years")["clients"] == 3


def test_problems_are_told_together_and_nothing_is_written(
    tmp_path: Path, retexo: CommandLine
) -> None:
    folder = write_ogb(tmp_path / "ring")
    write_rows(folder / "raw" / "edge.csv.gz", [[0, 1], [2, 30], [31, 3]])
    out = tmp_path / "run"
    assert retexo.problems("run", "--dataset", folder, "--out", out) == [
        f"{folder}/raw/edge.csv.gz: line 2: got 2,30; expected nodes 0 to 29",
        f"{folder}/raw/edge.csv.gz: line 3: got 31,3; expected nodes 0 to 29",
    ]
    assert not out.exists()
    (tmp_path / "none").mkdir()
    told = retexo.refused("run", "--dataset", tmp_path / "none", "--out", out)
    assert told.startswith(f"dataset: {tmp_path / 'none'} is a folder of no known layout; expected")
    told = retexo.refused("run", "--dataset", folder, "--data-dir", tmp_path, "--out", out)
    assert told.startswith("data-dir: cannot be given with the path")
    assert not out.exists()


def test_python_takes_paths(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"clients": 2, "hidden": 4, "rounds": 1, "quiet": True}
    for path in (write_musae(tmp_path / "musae"), write_heterophilous(tmp_path / "het.npz")):
        run = retexo_fl.run(dataset=str(path), out=tmp_path / f"of {path.stem}", **keys)
        assert run.result.test_accuracy is not None


def test_lists_triples_and_patterns_are_tables(tmp_path: Path, retexo: CommandLine) -> None:
    ends = [(node, (node + 1) % 30) for node in range(30)]
    labels = tmp_path / "ring.labels"
    labels.write_text("".join(f"{node} {node % 2}\n" for node in range(30)))
    edges = tmp_path / "ring.txt"
    edges.write_text("# FromNodeId ToNodeId\n" + "".join(f"{a}\t{b}\n" for a, b in ends))
    triples = tmp_path / "ring.nt"
    said = "".join(
        f"<{a}> <http://v/next> <{b}> .\n<{b}> <http://v/not> <{a}> .\n" for a, b in ends
    )
    triples.write_text(said)
    for number, half in enumerate((ends[:15], ends[15:])):
        columns = {
            name: [str(pair[at]) for pair in half] for at, name in enumerate(("source", "target"))
        }
        write_table(tmp_path / f"ring-{number}.parquet", columns)
    chosen = ["--clients", "2", "--partitioner", "random", "--split", "random:0.4/0.3/0.3", *TINY]
    made = {}
    sources: dict[str, list[str | Path]] = {
        "txt": [edges],
        "nt": [triples, "--predicates", "next"],
        "parquet": [tmp_path / "ring-*.parquet"],
    }
    for name, given in sources.items():
        retexo.done("run", "--nodes", labels, "--edges", *given, *chosen, "--out", tmp_path / name)
        made[name] = model_bytes(tmp_path / name)
    assert made["txt"] == made["nt"] == made["parquet"]
    out = tmp_path / "out"
    told = retexo.problems("run", "--nodes", labels, "--edges", triples, *chosen, "--out", out)
    assert len(told) == 21
    assert "is already in line 1, the other way round" in told[0]
    told = retexo.problems(
        *("run", "--nodes", labels, "--edges", triples, "--predicates", "nxt", "--out", out)
    )
    assert told == [
        f"{triples}: predicates: 'nxt' is in no row; expected some of: 'http://v/next', "
        "'http://v/not'"
    ]
    assert not out.exists()
