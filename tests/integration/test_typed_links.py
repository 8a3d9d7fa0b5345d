"""Task links between types: trained as one client would, counted, kept, ranked, predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retexo_fl
from retexo_fl.client.preparation import make_parts
from retexo_fl.errors import InputError
from retexo_fl.graph import GraphPartition
from retexo_fl.methods.forecasts import LAZY
from retexo_fl.training.link_split import LinkSplit
from retexo_fl.training.stage_model import ModelShape
from tests.support.agents import agents, train_with
from tests.support.cli import TINY, CommandLine
from tests.support.limits import PERMISSIVE
from tests.support.links import LINKS, Draws
from tests.support.runs import (
    configured,
    largest_difference,
    ledger_of,
    model_bytes,
    result_of,
    size_of,
    stop_after,
    train,
)
from tests.support.workers import train_in_workers

TOLERANCE = 1e-9
USERS, ITEMS, MAKERS = 40, 16, 6
CUTS = ((2, "louvain"), (3, "random"), (3, "attribute:type"), (7, "random"))
BOUGHT = 0


def market() -> dict[str, Any]:
    """Return users and items with features, makers without; what is bought may be seen, too."""
    rng = np.random.default_rng(3)

    def pairs(first: int, second: int, count: int) -> np.ndarray:
        codes = rng.choice(first * second, count, replace=False)
        return np.stack((codes // second, codes % second))

    friends = pairs(USERS, USERS, 90)
    return {
        "nodes": {
            "user": {"x": rng.normal(size=(USERS, 3)).astype(np.float32)},
            "item": {"x": rng.normal(size=(ITEMS, 5)).astype(np.float32)},
            "maker": {"num_nodes": MAKERS},
        },
        "edges": {
            ("user", "bought", "item"): {
                "edge_index": pairs(USERS, ITEMS, 150),
                "edge_weight": rng.uniform(0.5, 2, 150),
            },
            ("user", "saw", "item"): pairs(USERS, ITEMS, 120),
            ("item", "of", "maker"): pairs(ITEMS, MAKERS, 30),
            ("user", "knows", "user"): friends[:, friends[0] < friends[1]],
        },
    }


KEYS: dict[str, Any] = {
    **LINKS,
    **{"dataset": f"{__name__}:market", "model": "rel-sage", "relation": "bought"},
    "dropout": 0.3,
}


@pytest.fixture
def retexo(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"layers": 3, "negatives": 2},
        {"layers": 1, "metric": "mrr", "link_head": "mlp"},
        {"relation": "knows", "metric": "average-precision"},
        {"relation": "item/of/maker"},
        {"model": "rel-gcn", "num_bases": 2},
        {"model": "rel-gat", "heads": 2, "link_head": "mlp", "metric": "mrr"},
        {"relation": "knows", "edges_are": "directed", "metric": "mrr", "link_head": "mlp"},
        {"relation": "knows", "edges_are": "directed", "model": "rel-gat", "heads": 2},
    ],
    ids=str,
)
def test_any_cut_trains_the_weights_of_one(
    tmp_path: Path, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for clients, partitioner in CUTS:
        # Which nodes a client draws for an edge depends on what it knows: one client is given them.
        draws = Draws(monkeypatch)
        name = f"{clients}-{partitioner.partition(':')[0]}"
        many = train(tmp_path / name, **KEYS | keys, clients=clients, partitioner=partitioner)
        draws.replays = True
        one = train(tmp_path / f"{name}-one", **KEYS | keys, clients=1)
        monkeypatch.undo()
        assert largest_difference(one, many) < TOLERANCE, name
        values = [result_of(run)["metric"]["value"] for run in (one, many)]
        assert values[0] == pytest.approx(values[1], abs=1e-9)


def test_both_types_of_the_relation_are_trained(tmp_path: Path) -> None:
    drawn = train(tmp_path / "drawn", **KEYS, clients=1, learning_rate=1e-9)
    found = train(tmp_path / "run", **KEYS, clients=1)
    for layer in (0, 1):
        for name in ("layer.weight", "layer.weight_1"):
            one, other = (named(run, layer)[name] for run in (drawn, found))
            assert np.abs(one - other).max() > 1e-3
    # Makers are read by items alone, and have no loss: nobody sends weights of theirs.
    assert "layer.weight_2" not in named(found, 0)


def named(run: Path, layer: int) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    (path,) = (run / "model").glob(f"*{layer}.safetensors")
    return load_file(path)


def ends_of(part: GraphPartition) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inner node, other end and weights of each stored edge, ends by key."""
    names = np.concatenate([part.node_keys.astype("S12"), part.boundary_keys.astype("S12")])
    rows = np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
    assert part.edge_values.weights is not None
    return names[rows], names[part.indices], np.asarray(part.edge_values.weights)


@pytest.mark.parametrize("ranks_nodes", [False, True])
def test_edges_of_the_relation_alone_are_split_and_held_out(
    tmp_path: Path, ranks_nodes: bool
) -> None:
    parts = make_parts(configured(tmp_path, **KEYS, clients=3))
    made = market()
    bought = {
        (f"user/{u}".encode(), f"item/{i}".encode())
        for u, i in made["edges"]["user", "bought", "item"]["edge_index"].T.tolist()
    }
    seen = {
        (f"user/{u}".encode(), f"item/{i}".encode())
        for u, i in made["edges"]["user", "saw", "item"].T.tolist()
    }
    assert bought & seen
    uses: dict[tuple[bytes, bytes], str] = {}
    counted = 0
    splits = []
    for part in parts:
        split = LinkSplit.of(
            part, split="random:0.5/0.2/0.2", seed=0, predicted=BOUGHT, ranks_nodes=ranks_nodes
        )
        splits.append(split)
        names = np.concatenate([part.node_keys.astype("S12"), part.boundary_keys.astype("S12")])
        for use, pairs in split.pairs.items():
            counted += len(pairs)
            for one, other in zip(names[pairs.first], names[pairs.second], strict=True):
                if ranks_nodes and use != "train":
                    assert one.startswith(b"user/")
                uses[(one, other) if one.startswith(b"user/") else (other, one)] = use
    assert counted == len(uses)
    assert uses.keys() <= bought
    held = {pair for pair, use in uses.items() if use != "train"}
    assert held & seen
    relations = parts[0].relations
    assert relations is not None
    channels = {"bought": (0, relations.num_channels - 1), "saw": (1, relations.num_channels - 2)}
    for part, split in zip(parts, splits, strict=True):
        for name, all_of in (("bought", bought - held), ("saw", seen)):
            one, other, weights = ends_of(split.part)
            there = (weights[:, channels[name]] != 0).any(axis=1)
            read = {
                (a, b) if a.startswith(b"user/") else (b, a)
                for a, b in zip(one[there], other[there], strict=True)
            }
            own = {*part.node_keys.tolist()}
            assert read == {pair for pair in all_of if own.intersection(pair)}


def test_pairs_without_an_edge_are_of_both_types_and_uniform(tmp_path: Path) -> None:
    (part,) = make_parts(configured(tmp_path, **KEYS, clients=1))
    split = LinkSplit.of(part, split="random:0.6/0.2/0.2", seed=0, predicted=BOUGHT)
    first, second = split.known.draw(np.arange(60_000, dtype=np.uint64), 1, "judge")
    kinds = np.asarray(part.kinds)
    of_ends = np.sort(np.stack([kinds[first[:, 0]], kinds[second[:, 0]]]), axis=0)
    assert (of_ends == [[0], [1]]).all()
    keys = part.node_keys
    users = np.where(kinds[first[:, 0]] == 0, first[:, 0], second[:, 0])
    items = np.where(kinds[first[:, 0]] == 0, second[:, 0], first[:, 0])
    drawn = {(keys[u], keys[i]) for u, i in zip(users, items, strict=True)}
    bought = {
        (f"user/{u}".encode(), f"item/{i}".encode())
        for u, i in market()["edges"]["user", "bought", "item"]["edge_index"].T.tolist()
    }
    assert not drawn & bought
    assert len(drawn) == USERS * ITEMS - len(bought)
    _, counts = np.unique(users * len(keys) + items, return_counts=True)
    expected = 60_000 / len(drawn)
    assert (np.abs(counts - expected) < 6 * np.sqrt(expected)).all()
    own = split.known.draw(split.pairs["test"].keys, 5, "rank", first=split.pairs["test"].first)
    assert (kinds[own[0]] != kinds[own[1]]).all()


def test_the_ledger_is_the_closed_form(tmp_path: Path) -> None:
    keys = {**KEYS, "clients": 3, "codec": "dense"}
    run = train(tmp_path / "run", **keys)
    config = configured(tmp_path / "planned", **keys)
    parts = make_parts(config)
    size = size_of(config, parts)
    shape = ModelShape.of_part(config, parts[0])
    # Features of all types stand side by side; a layer reads own rows and three relations of users.
    assert shape.exchange_width(0) == 3 + 5 + 1
    assert shape.exchange_width(1) == 3 + 5 + 5 + 3
    assert shape.exchange_width(2) == 4 * 8
    volume = LAZY.volume(shape, size)
    ledger = ledger_of(run)
    assert ledger.sum(kind="boundary").raw == volume.boundary
    assert ledger.sum(kind="updates_up").raw == volume.updates_up
    assert ledger.sum(kind="weights_down").raw == volume.weights_down


def test_masks_workers_and_an_interruption_change_no_model(tmp_path: Path) -> None:
    keys = {**KEYS, "clients": 3, "metric": "node-ndcg:3"}
    plain = train(tmp_path / "plain", **keys)
    masked = train(tmp_path / "masked", **keys, secure_aggregation="masked")
    assert largest_difference(plain, masked) < 1e-4
    values = [result_of(run)["metric"]["value"] for run in (plain, masked)]
    assert values[0] == pytest.approx(values[1], abs=1e-3)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "resumed", stop_after(2, stage=1), **keys)
    train(tmp_path / "resumed", **keys, resume=tmp_path / "resumed")
    assert model_bytes(tmp_path / "resumed") == model_bytes(plain)
    assert model_bytes(train_in_workers(tmp_path / "workers", **keys)) == model_bytes(plain)


@pytest.mark.system
def test_agents_train_the_bits_of_one_process(tmp_path: Path) -> None:
    keys = {**KEYS, "clients": 2}
    parts = make_parts(configured(tmp_path / "planned", **keys))
    one = train(tmp_path / "one", **keys)
    with agents(tmp_path / "agents", parts, settings=PERMISSIVE) as pair:
        train_with(pair, configured(tmp_path / "deployed", **keys))
    assert model_bytes(tmp_path / "deployed") == model_bytes(one)


def rows_of(kind: str, features: np.ndarray) -> list[str]:
    head = ",".join(["key", *(f"x{column}" for column in range(features.shape[1]))])
    return [head, *(f"{kind}{at},{','.join(map(str, row))}" for at, row in enumerate(features))]


def write_shop(folder: Path) -> list[str | Path]:
    """Write users, items and what was bought as tables; return the options that name them."""
    made = market()
    for kind in ("user", "item"):
        lines = rows_of(kind[0], made["nodes"][kind]["x"])
        (folder / f"{kind}s.csv").write_text("\n".join(lines) + "\n")
    ends = made["edges"]["user", "bought", "item"]["edge_index"]
    lines = ["source,target", *(f"u{u},i{i}" for u, i in ends.T.tolist())]
    (folder / "bought.csv").write_text("\n".join(lines) + "\n")
    names = (("nodes", "users"), ("nodes", "items"), ("edges", "bought"))
    return [word for key, name in names for word in (f"--{key}", folder / f"{name}.csv")]


def test_a_recommender_is_one_command(tmp_path: Path, retexo: CommandLine) -> None:
    tables = write_shop(tmp_path)
    asked = ("--task", "links", "--model", "rel-sage", "--metric", "node-ndcg:5", *TINY)
    shares = ("--split", "random:0.6/0.2/0.2", "--clients", "3", "--out", tmp_path / "run")
    told = retexo.done("run", *tables, *asked, *shares)
    result = result_of(tmp_path / "run")
    degrees = result["profile"]["degrees_metric"]
    assert f"test node-ndcg:5 {result['metric']['value']:.4f}" in told
    assert f"degrees alone   {degrees:.4f} (node-ndcg:5), " in told
    assert 0 < degrees < 1
    assert "sides_auc" not in result["profile"]
    told = retexo.done("predict", tmp_path / "run", *tables, "--out", tmp_path / "found")
    assert f"the likeliest links of {USERS} nodes" in told
    (path,) = (tmp_path / "found").glob("predictions*.csv")
    lines = path.read_text().splitlines()
    assert lines[0] == "key,other,p"
    pairs = [tuple(line.split(",")[:2]) for line in lines[1:]]
    ends = market()["edges"]["user", "bought", "item"]["edge_index"]
    assert not {(f"u{u}", f"i{i}") for u, i in ends.T.tolist()} & {*pairs}
    assert {one for one, _ in pairs} == {f"u{user}" for user in range(USERS)}
    assert {other for _, other in pairs} <= {f"i{item}" for item in range(ITEMS)}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"relation": ""}, "relation: got ''; expected the one whose edges are to be learned: bou"),
        (
            {"relation": "sold"},
            "relation: got 'sold'; expected the one whose .*: bought, saw, of, ",
        ),
        ({"relation": "bought", "task": "classes"}, "relation: 'bought' does not go with task cla"),
        ({"algorithm": "standard"}, "algorithm: 'standard' does not go with task links; expected"),
        ({"profile": "lean"}, "basis: 'supervised' does not go with task links; expected none"),
        (
            {"relation": "knows", "edges_are": "directed", "hidden": 9},
            "hidden: 9 has no half, of which one is of where links with directions begin",
        ),
        ({"model": "gcn"}, "nodes have types, which model gcn does not take; expected "),
        ({"metric": "node-hits:0"}, "metric: got 'node-hits:0'; expected"),
        ({"task": "classes", "relation": ""}, "labels: no type has them; expected one type with"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    tmp_path: Path, keys: dict[str, Any], told: str
) -> None:
    asked: dict[str, Any] = {"task": "links", "model": "rel-sage", "relation": "bought", **keys}
    with pytest.raises(InputError, match=told) as caught:
        retexo_fl.run(graph=market(), **asked, clients=2, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_relation_is_of_types(tmp_path: Path, retexo: CommandLine) -> None:
    data = ("--dataset", "synthetic:nodes=60,edges=90,classes=2,features=4,words=2")
    line = retexo.refused(
        "run", *data, "--task", "links", "--relation", "bought", "--out", tmp_path / "run"
    )
    assert "relation: 'bought' does not go with a graph whose nodes have no types" in line


def test_names_of_several_relations_are_told_with_their_types(tmp_path: Path) -> None:
    made = market()
    made["edges"]["user", "of", "maker"] = made["edges"].pop(("user", "saw", "item")) % MAKERS
    made["edges"]["user", "of", "maker"] = np.unique(made["edges"]["user", "of", "maker"], axis=1)
    asked: dict[str, Any] = {"task": "links", "model": "rel-sage", "clients": 2}
    with pytest.raises(InputError, match="item/of/maker, knows, user/of/maker"):
        retexo_fl.run(graph=made, **asked, relation="of", out=tmp_path / "run")
    asked |= {"hidden": 4, "rounds": 1, "relation": "user/of/maker"}
    run = retexo_fl.run(graph=made, **asked, out=tmp_path / "run")
    assert run.result.metric is not None


@pytest.mark.parametrize("metric", ["node-hits:3", "node-ndcg:3", "node-mrr"])
def test_nodes_without_types_rank_each_other(tmp_path: Path, metric: str) -> None:
    rng = np.random.default_rng(0)
    ends = np.sort(rng.integers(0, 40, (2, 160)), axis=0)
    ends = np.unique(ends[:, ends[0] < ends[1]], axis=1)
    graph = {"edge_index": ends, "x": rng.normal(size=(40, 3)).astype(np.float32)}
    split = "random:0.6/0.2/0.2"
    run = retexo_fl.run(
        graph=graph,
        task="links",
        model="gcn",
        metric=metric,
        split=split,
        hidden=4,
        rounds=2,
        clients=3,
        out=tmp_path / "run",
    )
    assert run.result.metric is not None
    assert run.result.metric.value is not None
    assert 0 <= run.result.metric.value <= 1
    # Each held-out edge is ranked from both of its ends.
    tested = sum(row.test for row in run.result.client_table)
    parts = make_parts(run.config, graph=graph, quiet=True)
    both = [LinkSplit.of(p, split=split, seed=0).pairs["test"] for p in parts]
    assert tested == 2 * sum(map(len, both))
