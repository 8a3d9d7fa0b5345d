"""Of what owners are warned before a training."""

from __future__ import annotations

from typing import Any

import pytest

from retexo_fl.config import make_config
from retexo_fl.training.leak_warnings import leak_warnings

FEW = "have fewer than 10 train nodes"
SINGLE = "features are of one client alone"
MASKED = {"secure-aggregation": "masked"}


@pytest.mark.parametrize(
    ("keys", "sizes", "single", "told"),
    [
        ({}, (9, 3, 40, 0), None, [FEW]),
        ({}, (10, 30, 40, 0), None, []),
        # Clients without train nodes send no updates.
        ({}, (0, 0, 40, 50), None, []),
        (MASKED, (9, 3, 40, 0), None, []),
        ({"clients": 1}, (9,), 20, []),
        # Links have train edges.
        ({"task": "links", "layers": 1}, (9, 3, 40, 0), None, []),
        ({}, (50, 50), 5, []),
        ({}, (50, 50), 6, [SINGLE]),
        (MASKED, (50, 50), 0, []),
        (MASKED, (50, 50), 1, [SINGLE]),
        ({}, (9, 9), 6, [FEW, SINGLE]),
        ({"layers": 3}, (50, 50), None, ["with 3 layers a peer that changes a row"]),
        ({"layers": 3, "second-rows": "none"}, (50, 50), None, []),
        # Of classes few change, and no row crosses again.
        ({"layers": 3, "second-rows": "class"}, (50, 50), None, []),
        # Sums over all neighbours cross: a row comes back a layer earlier.
        ({"task": "links", "layers": 2}, (50, 50), None, ["with 2 layers a peer that changes"]),
        ({"task": "links", "layers": 1}, (50, 50), None, []),
        ({"layers": 3, "algorithm": "drop"}, (50, 50), None, []),
    ],
)
def test_small_clients_and_features_of_one_are_told(
    keys: dict[str, Any], sizes: tuple[int, ...], single: int | None, told: list[str]
) -> None:
    config = make_config({"clients": 4, **keys})
    found = leak_warnings(
        config, is_masked=keys == MASKED, train_nodes=sizes, features=100, of_one_client=single
    )
    assert len(found) == len(told)
    for warning, part in zip(found, told, strict=True):
        assert part in warning
        assert "docs/privacy.md" in warning


def test_one_client_is_told_as_one() -> None:
    config = make_config({"clients": 3})
    (found,) = leak_warnings(config, is_masked=False, train_nodes=(1, 20, 20))
    assert found.startswith("1 of 3 clients has fewer than 10 train nodes, whose labels")
