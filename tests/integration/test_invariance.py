"""Many partitions train the weights of one, and report its figures: one table of all ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.support.data import cora_dir
from tests.support.goals import GOALS, write_goals
from tests.support.links import LINKS, Draws
from tests.support.predictions import SMALL, write_small
from tests.support.rare import NODES as RARE_NODES
from tests.support.rare import RARE, write_rare
from tests.support.runs import largest_difference, result_of, train
from tests.support.valued_graphs import VALUED, write_valued

TOLERANCE: Final = 1e-9
NODES: Final = 30
LAYERS: Final = ("gcn", "sage", "gat", "gin", "sage-pool")
#: Layers whose neighbours can be added up before they are sent.
ADDING: Final = ("gcn", "sage", "gin", "dir-gcn", "dir-sage", "dir-gin")
#: What every row has unless it says otherwise.
KEYS: Final[dict[str, Any]] = {
    **{"dtype": "float64", "hidden": 8, "heads": 2, "layers": 2, "rounds": 2, "dropout": 0.3},
}
#: What the rows of a graph have, and into how many clients it is cut.
GRAPHS: Final[dict[str, dict[str, Any]]] = {
    "small": SMALL,
    "rare": RARE,
    "multi-label": {**GOALS, "dataset": "multi-label", "task": "multi-label"},
    "regression": {**GOALS, "dataset": "regression", "task": "regression"},
    "links": {**VALUED, **LINKS},
    "weighted": VALUED,
    "carrying": VALUED,
    "directed": {**VALUED, "edges_are": "directed"},
    "wide": {
        "dataset": "synthetic:nodes=400,edges=1200,classes=3,features=24,words=6,signal=0.6",
        "split": "random:0.4/0.3/0.3",
    },
    "cora": {"dataset": "cora", "hidden": 16},
}
CUTS: Final = ((3, "random"), (2, "louvain"))
THREE, TWO = (CUTS[:1], CUTS[1:])
#: Of a graph with values of edges; many clients take long, so that they train one round.
ONE_EACH: Final = ((48, "one-node"),)
SUPERVISED: Final = {"basis": "supervised", "basis_blocks": 2}
RIDGE: Final = {**SUPERVISED, "solver": "ridge"}


#: Of each task but classes.
TASKS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "multi-label": (
        {},
        {"model": "gcn", "metric": "average-precision", "class_weights": "balanced"},
        {"model": "gat", "loss": "focal:2", "metric": "macro-f1"},
        {"model": "gin", "metric": "f1:2", "class_weights": "1,2,3", "loss": "focal:1"},
        {"metric": "log-loss", "algorithm": "standard"},
        {"metric": "accuracy", "basis": "supervised"},
    ),
    "regression": (
        {},
        {"model": "gcn", "metric": "mae"},
        {"model": "gat", "metric": "r2"},
        {"model": "sage-pool"},
        {"model": "gin", "loss": f"{__name__}:absolute"},
        {"algorithm": "standard"},
        {"basis": "supervised"},
    ),
    "links": (
        {},
        {"model": "gcn", "metric": "average-precision", "negatives": 3},
        {"model": "gin", "link_head": "mlp"},
        {"metric": "mrr", "layers": 1},
        {"model": "gcn", "layers": 3, "metric": "hits:5", "loss": "focal:2"},
        {"model": "gat", "heads": 2},
        {"model": "dir-sage", "edges_are": "directed", "metric": "mrr"},
    ),
}
#: Which models read what edges have, by graph.
READ: Final = {
    "weighted": ("gcn", "sage", "gat", "gin", "pyg:GCNConv"),
    "carrying": ("gat", "gine", "pyg:GATv2Conv"),
    "directed": (
        *("gine", "dir-gcn", "dir-sage", "dir-gat", "dir-gin"),
        *("pyg:GINEConv", "pyg:TransformerConv"),
    ),
}
#: One of every way of reading, which clients of one node each train, too; it takes longest.
ALONE: Final = {
    ("weighted", "gcn"),
    ("weighted", "gat"),
    ("directed", "dir-gcn"),
    ("directed", "pyg:GINEConv"),
}


def absolute(outputs: Any, labels: Any) -> Any:
    """Return a loss of one's own."""
    return (outputs[:, 0] - labels).abs().sum()


Row = tuple[str, dict[str, Any], tuple[tuple[int, str], ...]]


def rows() -> Iterator[Row]:
    """Yield the graph, the keys and the cuts of each row."""
    yield from _of_layers()
    yield from _of_classes()
    for task, ways in TASKS.items():
        for at, keys in enumerate(ways):
            yield task, keys, (THREE, TWO)[at % 2]
    for graph, models in READ.items():
        for model in models:
            yield from _of_edges(graph, model)


def _of_layers() -> Iterator[Row]:
    for model in LAYERS:
        yield "small", {"model": model, "layers": 3}, (*TWO, (NODES, "one-node"))
        yield "small", {"model": model, "algorithm": "standard"}, THREE
        yield "small", {"model": model, **SUPERVISED}, TWO
    yield "small", {"model": "gat", "algorithm": "standard", "layers": 3}, ((12, "random"),)
    for model in ("gcn", "sage", "gin"):
        yield "small", {"model": model, **SUPERVISED, "basis_rows": "sums"}, THREE
    for layers, model in product((1, 2, 3), ("gcn", "sage")):
        yield "wide", {"model": model, **RIDGE, "basis_rows": "sums", "layers": layers}, TWO
    for layers in (1, 2, 3):
        yield "wide", {"model": "gcn", **RIDGE, "layers": layers}, THREE
        yield "wide", {"model": "sage", **RIDGE, "basis": "none", "layers": layers}, TWO
    for optimizer in ("yogi", "adagrad"):
        yield "small", {"optimizer": optimizer, "model": "gcn"}, THREE
    # A published split, and as wide as features are.
    yield "cora", {"model": "gcn"}, ((5, "louvain"),)
    yield "cora", {"model": "sage", **SUPERVISED}, ((5, "metis"),)


def _of_classes() -> Iterator[Row]:
    yield "rare", {"class_weights": "balanced"}, THREE
    yield "rare", {"loss": "focal:2", "model": "gat"}, TWO
    yield "rare", {"loss": "focal:1.5", "class_weights": "balanced", "model": "gin"}, THREE
    yield "rare", {"class_weights": "balanced", "algorithm": "standard"}, TWO
    for metric in ("balanced-accuracy", "macro-f1", "recall:1", "precision:1"):
        yield "rare", {"metric": metric}, THREE
    for metric in ("average-precision", "log-loss"):
        yield "rare", {"metric": metric}, TWO
    # Clients without a rare node, and those without any other: with weights and by a metric of
    # counts, and by one that ranks.
    for keys in (
        {"class_weights": "1,7.5", "model": "gcn", "metric": "f1:1"},
        {"metric": "roc-auc"},
    ):
        yield "rare", {**keys, "rounds": 1}, (*TWO, (RARE_NODES, "one-node"))


def _of_edges(graph: str, model: str) -> Iterator[Row]:
    keys = {"model": model, "heads": 3, "hidden": 12}
    is_alone = (graph, model) in ALONE
    yield graph, keys | ({"rounds": 1} if is_alone else {}), ONE_EACH if is_alone else THREE
    yield graph, {**keys, "algorithm": "standard"}, THREE
    if model in ADDING:
        for algorithm in ("lazy", "standard"):
            yield graph, {**keys, "boundary_plan": "cover", "algorithm": algorithm}, THREE


ROWS: Final = list(rows())


def is_of_night(row: Row) -> bool:
    """Return whether a row repeats what others have: CI trains it each night.

    By day a regression is solved for behind as many layers as models have by default, of counted
    and of ranking metrics one each is told, and sums cross by a cover for one layer of each way.
    """
    graph, keys, _ = row
    if keys.get("solver") == "ridge":
        return bool(keys["layers"] != 2)
    if keys.get("boundary_plan") == "cover":
        return str(keys["model"]) not in {"gcn", "dir-gcn"}
    return graph == "rare" and keys.get("metric") in {
        *("macro-f1", "recall:1", "precision:1", "log-loss"),
    }


def name_of(row: tuple[str, Mapping[str, Any], Any]) -> str:
    """Return how a row is called."""
    return " ".join([row[0], *(str(value).rpartition(":")[2] for value in row[1].values())])


def as_case(row: Row) -> object:
    """Return a row as a case of a test."""
    marks = [pytest.mark.slow] if is_of_night(row) else []
    return pytest.param(*row, marks=marks, id=name_of(row))


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the graphs; return the folder of each."""
    root = tmp_path_factory.mktemp("graphs")
    write_small(root / "small.npz", nodes=NODES)
    write_rare(root)
    write_goals(root)
    found = dict.fromkeys(GRAPHS, root) | {"cora": cora_dir()}
    valued: dict[str, dict[str, Any]] = {
        "links": {"nodes": 60},
        "weighted": {"weighted": True},
        "carrying": {"weighted": True, "carrying": 2},
        "directed": {"weighted": True, "carrying": 2, "directed": True},
    }
    for name, edges in valued.items():
        (root / name).mkdir()
        found[name] = write_valued(root / name, **edges)
    return found


@pytest.mark.parametrize(("graph", "keys", "cuts"), [*map(as_case, ROWS)])
def test_weights_and_figures_do_not_depend_on_the_partition(
    tmp_path: Path,
    graphs: dict[str, Path],
    graph: str,
    keys: dict[str, Any],
    cuts: tuple[tuple[int, str], ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = KEYS | GRAPHS[graph] | {"data_dir": graphs[graph], **keys}
    ends = keys.get("algorithm") == "standard"
    for clients, partitioner in cuts:
        # Which nodes a client draws for a link depends on what it knows: one client is given them.
        draws = Draws(monkeypatch) if graph == "links" else None
        out = tmp_path / f"{clients}-{partitioner}"
        run = train(out, clients=clients, partitioner=partitioner, **keys)
        whole = tmp_path / "whole"
        if draws is not None:
            draws.replays = True
            whole = whole.with_name(f"whole-{clients}")
        if not whole.exists():
            train(whole, clients=1, **keys | ({"algorithm": "central"} if ends else {}))
        monkeypatch.undo()
        assert largest_difference(whole, run) < TOLERANCE, out.name
        found, expected = result_of(run), result_of(whole)
        for name in ("confusion", "test_accuracy", "labels"):
            assert found.get(name) == expected.get(name)
        if "metric" in expected:
            values = [result["metric"].pop("value") for result in (found, expected)]
            assert values[0] == pytest.approx(values[1], rel=1e-9, abs=1e-9)
            assert found["metric"] == expected["metric"]
        # As near as the weights; r2 is about 0.
        assert found.get("errors", {}) == pytest.approx(
            expected.get("errors", {}), rel=1e-9, abs=1e-9
        )
        if not ends:
            rounds = [stage["best_round"] for stage in found["stages"]]
            assert rounds == [stage["best_round"] for stage in expected["stages"]]


@pytest.mark.parametrize(
    "keys", [{"class_weights": "balanced"}, {"loss": "focal:2"}, {"dropout": 0.0}, {"seed": 1}]
)
def test_other_keys_train_other_weights(
    tmp_path: Path, graphs: dict[str, Path], keys: dict[str, Any]
) -> None:
    both = KEYS | RARE | {"data_dir": graphs["rare"], "clients": 1}
    one, other = train(tmp_path / "one", **both), train(tmp_path / "other", **both | keys)
    assert largest_difference(one, other) > 1e-3


def test_weights_follow_the_assignment_file(tmp_path: Path, graphs: dict[str, Path]) -> None:
    assignment = tmp_path / "owners.txt"
    assignment.write_text("\n".join(str(node % 3) for node in range(NODES)))
    keys = KEYS | SMALL | {"data_dir": graphs["small"]}
    whole = train(tmp_path / "whole", clients=1, **keys)
    run = train(tmp_path / "filed", clients=3, partitioner=f"file:{assignment}", **keys)
    assert largest_difference(whole, run) < TOLERANCE
    assert np.array_equal(
        [row["nodes"] for row in result_of(run)["client_table"]], np.bincount(np.arange(NODES) % 3)
    )
