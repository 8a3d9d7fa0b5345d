"""A small graph with types of nodes and edges: as a mapping, and as tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

#: Keys of a training on :func:`bank`.
BANK: Final[dict[str, Any]] = {
    "dataset": "tests.support.typed_graphs:bank",
    "split": "random:0.4/0.3/0.3",
    "model": "rel-sage",
}
CUSTOMERS: Final = 40
DEVICES: Final = 15
SHOPS: Final = 12


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


def write_bank(folder: Path) -> list[str]:
    """Write :func:`bank` as tables; return the options that name them."""
    made = bank()
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
