"""The ledger of a real run equals closed forms that are written out here."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.ledger import TrafficLedger
from tests.support.data import cora_dir
from tests.support.runs import configured, largest_difference, result_of, train

FEATURES, CLASSES, HIDDEN, ROUNDS, FLOAT32 = 1433, 7, 64, 2, 4
#: Of each of GAT's 8 heads.
HEAD = HIDDEN // 8
#: Of LayerNorm and of the head of classes of stage 0.
ENDS = 2 * HIDDEN + HIDDEN * CLASSES + CLASSES
#: Of stage 0 (layer, LayerNorm, head) and of stage 1, by hand.
PARAMETERS = {
    "gcn": (FEATURES * HIDDEN + HIDDEN + ENDS, HIDDEN * CLASSES + CLASSES),
    "sage": (2 * FEATURES * HIDDEN + HIDDEN + ENDS, 2 * HIDDEN * CLASSES + CLASSES),
    "gat": (
        FEATURES * 8 * HEAD + 2 * 8 * HEAD + HEAD + 2 * HEAD + HEAD * CLASSES + CLASSES,
        HEAD * 8 * CLASSES + 2 * 8 * CLASSES + CLASSES,
    ),
    # Epsilon, the MLP's two maps and its LayerNorm.
    "gin": (
        1 + FEATURES * HIDDEN + HIDDEN + 2 * HIDDEN + HIDDEN * HIDDEN + HIDDEN + ENDS,
        1 + HIDDEN * HIDDEN + HIDDEN + 2 * HIDDEN + HIDDEN * CLASSES + CLASSES,
    ),
    # What is pooled is as wide as the hidden rows.
    "sage-pool": (
        FEATURES * HIDDEN + HIDDEN + (FEATURES + HIDDEN) * HIDDEN + HIDDEN + ENDS,
        HIDDEN * HIDDEN + HIDDEN + (HIDDEN + HIDDEN) * CLASSES + CLASSES,
    ),
}
#: Width of the rows that a stage passes on: GAT averages its heads.
STATE = {"gcn": HIDDEN, "sage": HIDDEN, "gat": HEAD, "gin": HIDDEN, "sage-pool": HIDDEN}


def boundary_nodes(clients: int) -> int:
    """Count (node, other client) pairs joined by an edge, from the raw edge list."""
    config = configured(Path("unused"), dataset="cora", data_dir=cora_dir(), clients=clients)
    owner = np.empty(2708, np.int64)
    for part in make_parts(config):
        owner[[int(key) for key in part.node_keys]] = part.client
    edges = np.load(cora_dir() / "cora.npz")["edge_index"]
    pairs = {
        (int(node), int(owner[other]))
        for node, other in np.hstack([edges, edges[::-1]]).T
        if owner[node] != owner[other]
    }
    return len(pairs)


@pytest.mark.parametrize(
    ("model", "clients"),
    [
        *(("gcn", 10), ("gat", 2), ("sage-pool", 2)),
        *(
            pytest.param(model, clients, marks=pytest.mark.slow)
            for model, clients in (("gcn", 2), ("sage", 10), ("gin", 10))
        ),
    ],
)
def test_raw_bytes_equal_the_closed_forms(tmp_path: Path, model: str, clients: int) -> None:
    run = train(
        tmp_path / "run",
        dataset="cora",
        data_dir=cora_dir(),
        clients=clients,
        model=model,
        hidden=HIDDEN,
        rounds=ROUNDS,
    )
    first, second = PARAMETERS[model]
    boundary = FLOAT32 * boundary_nodes(clients) * (FEATURES + STATE[model])
    reduced = FLOAT32 * clients * ROUNDS * (first + second)
    # Beyond RETEXO's count: w(R) of each stage is validated, the selected layer 0 goes out with the
    # second exchange, the selected layer 1 with the test.
    beyond = FLOAT32 * clients * ((first + second) + first + second)
    result = result_of(run)
    assert result["bytes"]["raw"] == {
        "boundary": boundary,
        "updates_up": reduced,
        "weights_down": reduced + beyond,
        "control": 0,
        "total": boundary + 2 * reduced + beyond,
    }
    ledger = _ledger(run)
    assert ledger.sum(kind="weights_down", purpose="train").raw == reduced
    assert ledger.sum(kind="boundary", direction="in").raw == boundary
    assert result["plan"]["predicted_raw"]["total"] == result["bytes"]["raw"]["total"]


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin", "sage-pool"])
def test_payload_of_first_exchange_is_far_under_dense(tmp_path: Path, model: str) -> None:
    run = train(
        tmp_path / "run",
        dataset="cora",
        data_dir=cora_dir(),
        clients=2,
        model=model,
        hidden=16,
        rounds=1,
    )
    first = _ledger(run).sum(kind="boundary", layer=0, direction="out")
    assert first.raw == FLOAT32 * boundary_nodes(2) * FEATURES
    assert first.raw > 50 * first.payload
    assert first.wire is not None
    assert first.payload < first.wire < 1.1 * first.payload + 1000


def test_clients_that_only_validate_send_no_updates(tmp_path: Path) -> None:
    """Clients 0 and 2 train, 1 and 3 validate, 4 has test nodes alone."""
    whole = make_parts(configured(tmp_path / "unused", clients=1))[0]
    owner = np.full(whole.num_inner, 4)
    for mask, clients in ((whole.train_mask, (0, 2)), (whole.val_mask, (1, 3))):
        nodes = np.flatnonzero(mask)
        owner[nodes[::2]], owner[nodes[1::2]] = clients
    by_index = dict(zip((int(key) for key in whole.node_keys), owner.tolist(), strict=True))
    owners = tmp_path / "owners.txt"
    owners.write_text("\n".join(str(by_index[node]) for node in range(len(owner))))
    keys = {"rounds": 3, "hidden": 8, "dtype": "float64"}
    alone = train(tmp_path / "alone", clients=1, **keys)
    run = train(tmp_path / "run", clients=5, partitioner=f"file:{owners}", **keys)
    assert largest_difference(alone, run) < 1e-9
    reduced = result_of(alone)["bytes"]["raw"]["updates_up"]
    result, ledger = result_of(run), _ledger(run)
    assert result["bytes"]["raw"]["updates_up"] == 2 * reduced
    assert ledger.sum(kind="weights_down", purpose="train").raw == 4 * reduced
    assert result["plan"]["predicted_raw"]["total"] == result["bytes"]["raw"]["total"]


def test_both_ends_count_the_same_bytes(tmp_path: Path) -> None:
    run = train(tmp_path / "run", rounds=2, clients=4)
    ledger = _ledger(run)
    for kind in ("boundary", "control"):
        sent = ledger.sum(kind=kind, purpose="exchange", direction="out")
        arrived = ledger.sum(kind=kind, purpose="exchange", direction="in")
        assert sent == arrived
        assert sent.payload > 0


def test_ledger_file_adds_up_to_the_result(tmp_path: Path) -> None:
    run = train(tmp_path / "run", rounds=2)
    assert _ledger(run).totals() == result_of(run)["bytes"]
    with (run / "ledger.csv").open() as file:
        assert {row["attempt"] for row in csv.DictReader(file)} == {"1"}


def _ledger(run: Path) -> TrafficLedger:
    return TrafficLedger.from_csv((run / "ledger.csv").read_text().splitlines())
