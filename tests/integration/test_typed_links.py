"""Task links between types: trained as one client would, counted, kept, ranked, predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import retexo_fl
from retexo_fl.client.preparation import make_parts
from retexo_fl.errors import InputError
from retexo_fl.graph import GraphPartition
from retexo_fl.methods.forecasts import LAZY
from retexo_fl.training.link_split import LinkSplit
from retexo_fl.training.stage_model import ModelShape
from tests.support.agents import agents, train_with
from tests.support.cli import TINY, CommandLine
from tests.support.each_choice import by_day
from tests.support.limits import PERMISSIVE
from tests.support.links import LINKS, Draws
from tests.support.runs import (
    Cuts,
    by_turns,
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
#: By turns. Where types part the clients, some have no node of a type with a loss: the first
#: pair is that of rows with attention, which have to know.
CUTS = (
    ((3, "random"), (3, "attribute:type")),
    ((2, "louvain"), (7, "random")),
)
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
    ("keys", "cuts"),
    by_turns(
        CUTS,
        {},
        {"layers": 3, "negatives": 2},
        {"layers": 1, "metric": "mrr", "link_head": "mlp"},
        {"relation": "knows", "metric": "average-precision"},
        {"relation": "item/of/maker"},
        {"model": "rel-gcn", "num_bases": 2},
        {"model": "rel-gat", "heads": 2, "rounds": 2, "link_head": "mlp", "metric": "mrr"},
        {"relation": "knows", "edges_are": "directed", "metric": "mrr", "link_head": "mlp"},
        {"relation": "knows", "edges_are": "directed", "model": "rel-gat", "heads": 2, "rounds": 2},
    ),
    ids=str,
)
@pytest.mark.each_choice
def test_any_cut_trains_the_weights_of_one(
    tmp_path: Path, keys: dict[str, Any], cuts: Cuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for clients, partitioner in cuts:
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


def test_edges_with_directions_are_counted_once_and_held_out_one_way(tmp_path: Path) -> None:
    graph = market()
    friends = graph["edges"]["user", "knows", "user"]
    # Some know each other, which are two edges.
    both = np.concatenate([friends, friends[::-1, ::3]], axis=1)
    graph["edges"]["user", "knows", "user"] = both
    keys = {**KEYS, "relation": "knows", "edges_are": "directed", "clients": 3}
    config = configured(tmp_path, **{**keys, "dataset": "synthetic"})
    parts = make_parts(config, graph=graph, quiet=True)
    relations = parts[0].relations
    assert relations is not None
    number = [one.name for one in relations.relations].index("knows")
    splits = [
        LinkSplit.of(part, split="random:0.4/0.3/0.3", seed=0, predicted=number) for part in parts
    ]
    uses: dict[tuple[bytes, bytes], str] = {}
    counted = 0
    for part, split in zip(parts, splits, strict=True):
        names = np.concatenate([part.node_keys.astype("S12"), part.boundary_keys.astype("S12")])
        for use, pairs in split.pairs.items():
            counted += len(pairs)
            ends_here, first = np.divmod(pairs.first, part.num_inner)
            for ends, one, two in zip(ends_here, names[first], names[pairs.second], strict=True):
                uses[(two, one) if ends else (one, two)] = use
    assert uses.keys() == {(f"user/{u}".encode(), f"user/{v}".encode()) for u, v in both.T.tolist()}
    assert counted == len(uses)
    assert any(uses[edge] != uses.get(edge[::-1], uses[edge]) for edge in uses)
    train_edges = {edge for edge, use in uses.items() if use == "train"}
    for part, split in zip(parts, splits, strict=True):
        here, there, weights = ends_of(split.part)
        come = weights[:, number] != 0
        go = weights[:, relations.num_channels - 1 - number] != 0
        own = {*part.node_keys.tolist()}
        assert {*zip(there[come], here[come], strict=True)} == {
            edge for edge in train_edges if edge[1] in own
        }
        assert {*zip(here[go], there[go], strict=True)} == {
            edge for edge in train_edges if edge[0] in own
        }
        # Pairs are ordered: one whose reverse has an edge may have none.
        names = np.concatenate([part.node_keys.astype("S12"), part.boundary_keys.astype("S12")])
        first, second = split.known.draw(np.arange(20_000, dtype=np.uint64), 1, "judge")
        ends_here, first = np.divmod(first[:, 0], part.num_inner)
        one, two = names[first], names[second[:, 0]]
        drawn = {*zip(np.where(ends_here, two, one), np.where(ends_here, one, two), strict=True)}
        assert not drawn & uses.keys()
        assert {edge[::-1] for edge in drawn} & uses.keys()
        assert 0.4 < ends_here.mean() < 0.6


def test_where_one_end_is_joined_both_are_to_train_and_sources_to_judge(tmp_path: Path) -> None:
    """Items may be known by who bought them alone, and users by what they bought."""
    parts = make_parts(configured(tmp_path, **KEYS, clients=3))
    counts = dict.fromkeys(("train", "validation", "test"), 0)
    keys: list[int] = []
    for part in parts:
        split = LinkSplit.of(
            part, split="random:0.5/0.2/0.2", seed=0, predicted=BOUGHT, joins_one_end=True
        )
        assert part.kinds is not None
        assert part.boundary_kinds is not None
        kinds = np.concatenate((part.kinds, part.boundary_kinds))
        for use, pairs in split.pairs.items():
            counts[use] += len(pairs)
            if use != "train":
                assert (kinds[pairs.first] == 0).all()
        keys += split.pairs["train"].keys.tolist()
        first, second = split.known.draw(np.arange(500, dtype=np.uint64), 1, "judge")
        assert (kinds[first] == 0).all()
        assert (kinds[second] == 1).all()
        split.known.check(part.client)
    # Of each end other pairs are drawn.
    assert len({*keys}) == len(keys) == counts["train"]
    once = [
        len(LinkSplit.of(p, split="random:0.5/0.2/0.2", seed=0, predicted=BOUGHT).pairs[use])
        for p in parts
        for use in counts
    ]
    assert list(counts.values()) == [sum(once[at::3]) * (2 if at == 0 else 1) for at in range(3)]


def followers() -> dict[str, Any]:
    """Return 120 users in three groups, of which each follows the next; features say the group."""
    rng = np.random.default_rng(0)
    group = np.arange(120) % 3
    ends = np.stack(np.nonzero(rng.random((120, 120)) < 0.2))
    ends = ends[:, (group[ends[0]] + 1) % 3 == group[ends[1]]]
    x = np.eye(3)[group] + rng.normal(size=(120, 3)) / 4
    return {
        "nodes": {"user": {"x": x.astype(np.float32)}},
        "edges": {("user", "follows", "user"): ends},
    }


@pytest.mark.parametrize(
    "model", by_day(["rel-sage", "rel-gat", "dir-sage"], "rel-sage", others=pytest.mark.slow)
)
def test_a_score_knows_who_follows_whom(tmp_path: Path, model: str) -> None:
    graph = followers()
    if model == "dir-sage":
        (x,), (ends,) = graph["nodes"]["user"].values(), graph["edges"].values()
        graph = {"x": x, "edge_index": ends}
    asked: dict[str, Any] = {"task": "links", "model": model, "edges_are": "directed", "heads": 2}
    asked |= {"clients": 2, "rounds": 40, "hidden": 16}
    run = retexo_fl.run(graph=graph, **asked, out=tmp_path / "run")
    assert run.result.metric is not None
    assert run.result.metric.value is not None
    # Pairs the wrong way round are half of those of different groups.
    assert run.result.metric.value > 0.8
    model_of_run = run.model()
    rows = model_of_run(graph)
    follows, followed = rows[torch.arange(0, 30, 3)], rows[torch.arange(1, 31, 3)]
    assert model_of_run.score(follows, followed).mean() > 0.5
    assert model_of_run.score(followed, follows).mean() < -0.5


@pytest.mark.parametrize(
    "keys",
    [
        {"relation": "knows", "edges_are": "directed"},
        pytest.param({"model": "rel-gat", "heads": 2}, marks=pytest.mark.slow),
    ],
)
def test_where_one_end_is_joined_or_edges_lead_the_ledger_and_a_resumed_run_hold(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    keys = {**KEYS, **keys, "clients": 3, "codec": "dense", "metric": "node-ndcg:3"}
    run = train(tmp_path / "run", **keys)
    config = configured(tmp_path / "planned", **keys)
    parts = make_parts(config)
    shape = ModelShape.of_part(config, parts[0])
    if "heads" in keys:
        # As of nodes: features, and rows of four values, without an exchange ahead.
        assert [shape.exchange_width(stage) for stage in range(shape.stages)] == [3 + 5 + 1, 4]
    volume, ledger = LAZY.volume(shape, size_of(config, parts)), ledger_of(run)
    assert ledger.sum(kind="boundary").raw == volume.boundary
    assert ledger.sum(kind="updates_up").raw == volume.updates_up
    assert ledger.sum(kind="weights_down").raw == volume.weights_down
    masked = train(tmp_path / "masked", **keys, secure_aggregation="masked")
    assert largest_difference(run, masked) < 1e-4
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "resumed", stop_after(2, stage=1), **keys)
    train(tmp_path / "resumed", **keys, resume=tmp_path / "resumed")
    assert model_bytes(tmp_path / "resumed") == model_bytes(run)


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
    among = result["metric"]["ranked_among"]
    assert f"test node-ndcg:5 {result['metric']['value']:.4f} (each node among {among:.1f}" in told
    assert 1 < among < ITEMS
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
        ({"profile": "lean"}, "basis: 'supervised' does not go with task links, which reads no "),
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
