"""A small graph with types of nodes and edges: as a mapping, and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph import GraphPartition
from retexo_fl.relations import Relations
from tests.support.tables import write_table

#: Keys of a training on :func:`bank`; likewise on :func:`judged_bank`.
BANK: Final[dict[str, Any]] = {
    "dataset": "tests.support.typed_graphs:bank",
    "split": "random:0.4/0.3/0.3",
    "model": "rel-sage",
}
JUDGED: Final[dict[str, Any]] = {**BANK, "dataset": "tests.support.typed_graphs:judged_bank"}
#: A graph of which each layer reads nodes of fewer types than the one before.
CHAINED: Final = "tests.support.typed_graphs:chained"
CUSTOMERS: Final = 40
DEVICES: Final = 15
SHOPS: Final = 12
#: Sizes of :func:`chain`.
PEOPLE, ITEMS, MAKERS, WIDTH = 300, 200, 120, 40


def bank() -> dict[str, Any]:
    """Return customers with labels, devices with other features, and shops without any."""
    rng = np.random.default_rng(5)

    def pairs(first: int, second: int, count: int) -> np.ndarray:
        codes = rng.choice(first * second, count, replace=False)
        return np.stack((codes // second, codes % second))

    labels = rng.integers(0, 3, CUSTOMERS)
    labels[3] = -1
    known = pairs(CUSTOMERS, CUSTOMERS, 80)
    return {
        "nodes": {
            "customer": {"x": rng.normal(size=(CUSTOMERS, 5)).astype(np.float32), "y": labels},
            "device": {"x": rng.normal(size=(DEVICES, 3)).astype(np.float32)},
            "shop": {"num_nodes": SHOPS},
        },
        "edges": {
            ("customer", "owns", "device"): pairs(CUSTOMERS, DEVICES, 50),
            ("customer", "buys", "shop"): {
                "edge_index": pairs(CUSTOMERS, SHOPS, 60),
                "edge_weight": rng.uniform(0.1, 3, 60),
            },
            ("customer", "knows", "customer"): known[:, known[0] < known[1]],
            ("device", "stands", "shop"): pairs(DEVICES, SHOPS, 20),
        },
    }


def chained(scale: float = 1.0) -> dict[str, Any]:
    """Return customers whose devices' makers are in countries with features of some size."""
    made = bank()
    rng = np.random.default_rng(1)
    del made["edges"]["customer", "knows", "customer"], made["edges"]["customer", "buys", "shop"]
    made["nodes"]["country"] = {"x": (scale * rng.normal(size=(6, 50))).astype(np.float32)}
    made["edges"]["shop", "in", "country"] = np.stack((np.arange(12), np.arange(12) % 6))
    return made


def judged_bank() -> dict[str, Any]:
    """Return :func:`bank` with labels of devices, too, over the same classes."""
    made = bank()
    labels = np.random.default_rng(6).integers(0, 3, DEVICES)
    labels[-1], labels[0] = -1, 2
    made["nodes"]["device"]["y"] = labels
    return made


def write_bank(folder: Path, made: dict[str, Any] | None = None) -> list[str]:
    """Write :func:`bank`, or one like it, as tables; return the options that name them."""
    made = bank() if made is None else made
    options: list[str] = []

    def write(key: str, name: str, head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
        path = folder / f"{name}.csv"
        lines = [",".join(map(str, row)) for row in (head, *rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        options.extend((f"--{key}", str(path)))

    for kind, store in made["nodes"].items():
        x, labels = store.get("x"), store.get("y")
        head = ["key", *([] if labels is None else ["label"])]
        head += [] if x is None else [f"x{column}" for column in range(x.shape[1])]
        rows = [
            [
                f"{kind[0]}{row}",
                *([] if labels is None else ["" if labels[row] < 0 else labels[row]]),
                *([] if x is None else [f"{value:.9g}" for value in x[row]]),
            ]
            for row in range(store.get("num_nodes") or len(x))
        ]
        write("nodes", kind, head, rows)
    for (source, name, target), store in made["edges"].items():
        of_weights = store.get("edge_weight") if isinstance(store, dict) else None
        ends = store["edge_index"] if isinstance(store, dict) else store
        weights = [] if of_weights is None else [f"{weight:.17g}" for weight in of_weights]
        rows = [
            [f"{source[0]}{one}", f"{target[0]}{other}", *weights[at : at + 1]]
            for at, (one, other) in enumerate(ends.T.tolist())
        ]
        write("edges", name, ["source", "target", *(["weight"] if weights else [])], rows)
    return options


def write_one_bank(folder: Path) -> list[str]:
    """Write :func:`bank` as one table of nodes and one of edges; return their options.

    Rows of types are mixed, and edges between two types stand in either orientation.
    """
    made = bank()
    width = max(store["x"].shape[1] for store in made["nodes"].values() if "x" in store)
    nodes, edges = [], []
    for kind, store in made["nodes"].items():
        x = store.get("x", np.empty((store.get("num_nodes", 0), 0)))
        for row in range(len(x)):
            label = store["y"][row] if "y" in store else -1
            cells = [f"{value:.9g}" for value in x[row]] + [""] * (width - x.shape[1])
            nodes.append([f"{kind[0]}{row}", kind, "" if label < 0 else label, *cells])
    for at, ((source, name, target), store) in enumerate(made["edges"].items()):
        is_store = isinstance(store, dict)
        ends = store["edge_index"] if is_store else store
        weights = store["edge_weight"] if is_store else np.ones(ends.shape[1])
        for row, (one, other) in enumerate(ends.T.tolist()):
            pair = [f"{source[0]}{one}", f"{target[0]}{other}"]
            turned = pair[::-1] if row and (row + at) % 3 == 0 else pair
            edges.append([*turned, name, f"{weights[row]:.17g}"])
    order = np.random.default_rng(3).permutation(len(nodes))
    # Types are numbered by their first rows.
    firsts = [next(i for i, row in enumerate(nodes) if row[1] == kind) for kind in made["nodes"]]
    rows = [nodes[at] for at in [*firsts, *(at for at in order.tolist() if at not in firsts)]]
    heads = (
        ["key", "type", "label", *(f"x{column}" for column in range(width))],
        ["source", "target", "type", "weight"],
    )
    options = []
    for key, head, content in zip(("nodes", "edges"), heads, (rows, edges), strict=True):
        path = folder / f"all-{key}.csv"
        lines = [",".join(map(str, row)) for row in (head, *content)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        options += [f"--{key}", str(path)]
    return options


def bank_arrays(
    made: dict[str, Any] | None = None, *, of_types: bool = True
) -> dict[str, np.ndarray]:
    """Return :func:`bank`, or one like it, as arrays that say types; features by type."""
    made = bank() if made is None else made
    sizes = [len(s["x"]) if "x" in s else s["num_nodes"] for s in made["nodes"].values()]
    starts = dict(zip(made["nodes"], np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
    ends, of_edges, weights = [], [], []
    for at, ((source, _, target), store) in enumerate(made["edges"].items()):
        is_store = isinstance(store, dict)
        pairs = store["edge_index"] if is_store else store
        ends.append(pairs + np.array([[starts[source]], [starts[target]]]))
        of_edges.append(np.full(pairs.shape[1], at))
        weights.append(store["edge_weight"] if is_store else np.ones(pairs.shape[1]))
    labels = np.full(sum(sizes), -1)
    for kind, store in made["nodes"].items():
        if "y" in store:
            labels[starts[kind] : starts[kind] + len(store["y"])] = store["y"]
    arrays = {
        "edge_index": np.concatenate(ends, axis=1),
        "edge_weight": np.concatenate(weights),
        "y": labels,
        "node_type": np.repeat(np.arange(len(sizes)), sizes),
        "node_type_names": np.array([*made["nodes"]]),
        "edge_type": np.concatenate(of_edges),
        "edge_type_names": np.array([*made["edges"]]),
    }
    if of_types:
        arrays |= {f"x/{kind}": s["x"] for kind, s in made["nodes"].items() if "x" in s}
    return arrays


def bank_networkx(made: dict[str, Any] | None = None) -> Any:
    """Return :func:`bank`, or one like it, as an undirected NetworkX graph that says types."""
    import networkx as nx

    made = bank() if made is None else made
    graph = nx.Graph()
    for kind, store in made["nodes"].items():
        for row in range(len(store["x"]) if "x" in store else store["num_nodes"]):
            graph.add_node(f"{kind[0]}{row}", type=kind)
            if "x" in store:
                graph.nodes[f"{kind[0]}{row}"]["x"] = store["x"][row]
            if "y" in store and store["y"][row] >= 0:
                graph.nodes[f"{kind[0]}{row}"]["y"] = int(store["y"][row])
    for (source, name, target), store in made["edges"].items():
        is_store = isinstance(store, dict)
        pairs = store["edge_index"] if is_store else store
        weights = store["edge_weight"] if is_store else np.ones(pairs.shape[1])
        for (one, other), weight in zip(pairs.T.tolist(), weights.tolist(), strict=True):
            graph.add_edge(f"{source[0]}{one}", f"{target[0]}{other}", type=name, weight=weight)
    return graph


def export_typed_part(
    part: GraphPartition,
    folder: Path,
    *,
    clients: Sequence[str],
    with_split: bool = True,
    told: bool = False,
) -> list[str]:
    """Write what one client knows as tables; return the options that name them.

    Args:
        part: Of a typed graph.
        folder: Made if needed; edges to peers lie in ``boundary`` below it.
        clients: Names of all.
        with_split: Whether nodes with labels have a column ``split``.
        told: Write the edges in one table with columns ``type``, and so the boundary, with all
            columns of types.
    """
    relations = part.relations
    assert relations is not None
    options: list[str] = []

    def write(key: str, name: str, columns: dict[str, Any]) -> None:
        options.extend((f"--{key}", str(write_table(folder / f"{name}.csv", columns))))

    for name, columns in _nodes_of(part, relations, with_split=with_split):
        write("nodes", name, columns)
    for key, found in (("edges", _inner_of(part, relations)), ("boundary", _far_of(part, clients))):
        there = [(at, columns) for at, columns in found if len(columns["weight"])]
        if told and there:
            write(key, key, _told(relations, there))
            continue
        for at, columns in there:
            one = relations.relations[at]
            if one.source != one.target:
                columns.pop("direction", None)
            write(key, f"boundary/{one.name}" if key == "boundary" else one.name, columns)
    return options


def _bare(keys: np.ndarray) -> np.ndarray:
    """Return keys without their types."""
    return np.array([key.split(b"/", 1)[1] for key in keys.tolist()] or [b""])


def _nodes_of(
    part: GraphPartition, relations: Relations, *, with_split: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    kinds, keys = part.kinds, _bare(part.node_keys)
    dense = part.features.toarray() if isinstance(part.features, csr_array) else part.features
    for kind, name in enumerate(relations.types):
        rows = np.flatnonzero(kinds == kind)[::-1]
        if not len(rows):
            continue
        columns: dict[str, Any] = {"key": keys[rows]}
        if kind in relations.with_labels:
            columns["label"] = part.labels[rows]
            if with_split:
                masks = {word: getattr(part, f"{word}_mask") for word in ("train", "val", "test")}
                columns["split"] = np.select([*masks.values()], [*masks], default="")[rows]
        own = dense[rows][:, relations.columns(kind)]
        if own.shape[1] > 1 or (own != 1).any():
            columns |= {f"x{at}": own[:, at] for at in range(own.shape[1])}
        yield name, columns


def _channels_of(part: GraphPartition, relations: Relations, at: int) -> list[np.ndarray]:
    """Return [e] what weighs in a relation's two channels: what comes in, and what goes out."""
    weights = part.edge_values.weights
    assert weights is not None
    return [weights[:, at], weights[:, relations.num_channels - 1 - at]]


def _inner_of(part: GraphPartition, relations: Relations) -> Iterator[tuple[int, dict[str, Any]]]:
    keys, rows = _bare(part.node_keys), np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
    for at, one in enumerate(relations.relations):
        comes, _ = _channels_of(part, relations, at)
        chosen = np.flatnonzero((part.indices < part.num_inner) & (comes != 0))
        if one.symmetric:
            chosen = chosen[rows[chosen] < part.indices[chosen]]
        yield (
            at,
            {
                "source": keys[part.indices[chosen]],
                "target": keys[rows[chosen]],
                "weight": comes[chosen],
            },
        )


def _far_of(part: GraphPartition, clients: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    relations = part.relations
    assert relations is not None
    keys, far = _bare(part.node_keys), _bare(part.boundary_keys)
    rows = np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
    names = np.array(clients)
    for at, one in enumerate(relations.relations):
        found: dict[str, list[np.ndarray]] = {}
        ways = _channels_of(part, relations, at)[: 1 if one.symmetric else 2]
        for word, weights in zip(("in", "out"), ways, strict=False):
            chosen = np.flatnonzero((part.indices >= part.num_inner) & (weights != 0))
            slots = part.indices[chosen] - part.num_inner
            columns = {
                "own": keys[rows[chosen]],
                "foreign": far[slots],
                "peer": names[part.boundary_owners[slots]],
                "weight": weights[chosen],
                "direction": np.full(len(chosen), word),
            }
            for key, column in columns.items():
                if key != "direction" or not one.symmetric:
                    found.setdefault(key, []).append(column)
        yield at, {key: np.concatenate(columns) for key, columns in found.items()}


def _told(relations: Relations, tables: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """Return the edges of all relations as one table that says of which relation each is."""
    found: dict[str, list[np.ndarray]] = {}
    has_all = all("direction" in columns for _, columns in tables)
    for at, columns in tables:
        one = relations.relations[at]
        first, second = relations.types[one.source], relations.types[one.target]
        count = len(columns["weight"])
        ends = ("source", "target") if "source" in columns else ("own", "foreign")
        turned = columns.get("direction", np.full(count, "out")) == "in"
        told = {
            "type": np.full(count, one.name),
            f"{ends[0]}_type": np.where(turned, second, first),
            f"{ends[1]}_type": np.where(turned, first, second),
        }
        for key, column in {**columns, **told}.items():
            if key != "direction" or has_all:
                found.setdefault(key, []).append(column)
    return {key: np.concatenate(columns) for key, columns in found.items()}


def chain(*, ids: bool = False) -> dict[str, Any]:
    """Return people who like what one column of its makers says; of makers 40 are known, or names.

    What makers are is two edges away, so that only rows of items can bring it.
    """
    rng = np.random.default_rng(7)
    makers = rng.normal(size=(MAKERS, WIDTH)).astype(np.float32)
    made_by = rng.integers(0, MAKERS, ITEMS)
    liked = rng.integers(0, ITEMS, (PEOPLE, 3))
    labels = (makers[made_by[liked], 0].mean(axis=1) > 0).astype(int)
    x = np.eye(MAKERS, dtype=np.float32) if ids else makers
    pairs = np.stack((np.repeat(np.arange(PEOPLE), 3), liked.ravel()))
    return {
        "nodes": {
            "person": {"num_nodes": PEOPLE, "y": labels},
            "item": {"num_nodes": ITEMS},
            "maker": {"x": x},
        },
        "edges": {
            ("person", "likes", "item"): np.unique(pairs, axis=1),
            ("item", "by", "maker"): np.stack((np.arange(ITEMS), made_by)),
        },
    }
