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
        # Labels of neighbours cross; nothing is added up at the server.
        ({"algorithm": "propagation"}, (9, 3, 40, 0), 20, []),
        # Links have train edges.
        ({"task": "links"}, (9, 3, 40, 0), None, []),
        ({}, (50, 50), 5, []),
        ({}, (50, 50), 6, [SINGLE]),
        (MASKED, (50, 50), 0, []),
        (MASKED, (50, 50), 1, [SINGLE]),
        ({}, (9, 9), 6, [FEW, SINGLE]),
    ],
)
def test_small_clients_and_features_of_one_are_told(
    keys: dict[str, Any], sizes: tuple[int, ...], single: int | None, told: list[str]
) -> None:
    config = make_config({"clients": 4, **keys})
    found = leak_warnings(config, train_nodes=sizes, features=100, of_one_client=single)
    assert len(found) == len(told)
    for warning, part in zip(found, told, strict=True):
        assert part in warning
        assert "docs/privacy.md" in warning


def test_one_client_is_told_as_one() -> None:
    (found,) = leak_warnings(make_config({"clients": 3}), train_nodes=(1, 20, 20))
    assert found.startswith("1 of 3 clients has fewer than 10 train nodes, whose labels")
